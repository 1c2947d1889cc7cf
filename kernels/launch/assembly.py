"""What inline assembly means, for the interpreter: a text has a function of NumPy arrays.

`tl.inline_asm_elementwise` hands PTX to a GPU's compiler. No interpreter reads PTX, so whoever
writes such a text says beside it what it does: `means(text, function)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Meaning = Callable[..., "Array | tuple[Array, ...]"]

_MEANINGS: dict[str, Meaning] = {}


def means(text: str, function: Meaning) -> None:
    """Let the interpreter run `function` where a kernel has `text` as inline assembly.

    It is given an array for each input, all of one shape, and returns one of that shape for each
    output: one array, or a tuple of several. Elements stand by themselves, whatever `pack` is.
    """
    _MEANINGS[text] = function


def meaning(text: str) -> Meaning:
    """The function that stands for a text; NotImplementedError where none was given."""
    try:
        return _MEANINGS[text]
    except KeyError:
        raise NotImplementedError(
            "inline assembly isn't interpreted; a GPU alone runs it, unless "
            "kernels.launch.means(text, function) says what it does"
        ) from None
