"""CUDA C++ in a Python string, in the colours of C++: an extension of Sphinx.

A chapter holds a kernel as one string, which a reader can change. The page shows what is in it as
what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from ipython_pygments_lexers import IPython3Lexer
from pygments.lexers.c_like import CudaLexer
from pygments.token import String
from sphinx.application import Sphinx

_CUDA = re.compile(r"__global__|__device__|^#include\b|^struct\b", re.MULTILINE)
_TEXT = re.compile(r'(?P<open>[rR]?(?P<quotes>"""))(?P<inside>.*?)(?P=quotes)', re.DOTALL)

Tokens = Iterator[tuple[int, Any, str]]


class PythonWithCuda(IPython3Lexer):
    """Notebook cells in Python, with the CUDA C++ of their triple-quoted strings."""

    name = "Python with CUDA C++ in its strings"
    aliases: ClassVar[list[str]] = ["ipython3"]

    def get_tokens_unprocessed(self, text: str) -> Tokens:
        """Yield (place, type, text) of all tokens, in order."""
        begin = 0
        for found in _TEXT.finditer(text):
            if _CUDA.search(found["inside"]):
                yield from self._shifted(super(), text[begin : found.start()], begin)
                yield found.start(), String, found["open"]
                yield from self._shifted(CudaLexer(), found["inside"], found.start("inside"))
                yield found.end("inside"), String, found["quotes"]
                begin = found.end()
        yield from self._shifted(super(), text[begin:], begin)

    @staticmethod
    def _shifted(lexer: Any, text: str, by: int) -> Tokens:
        for place, kind, value in lexer.get_tokens_unprocessed(text):
            yield place + by, kind, value


def setup(app: Sphinx) -> dict[str, bool]:
    """Take the lexer for the cells of notebooks."""
    app.add_lexer("ipython3", PythonWithCuda)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
