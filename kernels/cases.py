"""Where an operation is measured, and how the data files and commands write it.

A `Case` is one place: sizes, a dtype, options. Each part has a short name, and reads back from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

DTYPES: Mapping[str, torch.dtype] = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
}
_LONG_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}

Shape = tuple[int, ...]
Options = tuple[tuple[str, Any], ...]


def dtype_name(dtype: torch.dtype) -> str:
    """Return `fp16`, `bf16` or `fp32`, as the data files write it."""
    for name, known in DTYPES.items():
        if known == dtype:
            return name
    raise ValueError(f"dtype {dtype} is not one of {', '.join(DTYPES)}")


def parse_dtype(text: str) -> torch.dtype:
    """Return the dtype called `text`: `fp16`, `bf16`, `fp32` or PyTorch's long name."""
    short = _LONG_DTYPES.get(text, text)
    if short not in DTYPES:
        known = ", ".join([*DTYPES, *_LONG_DTYPES])
        raise ValueError(f"dtype {text!r} is unknown; it takes one of: {known}")
    return DTYPES[short]


def shape_name(shape: Shape) -> str:
    """Return `4096x8192` for (4096, 8192), as the data files write it."""
    return "x".join(str(size) for size in shape)


def parse_shape(text: str) -> Shape:
    """Return (4096, 8192) for `4096x8192`; ValueError with one sentence otherwise."""
    parts = text.lower().split("x")
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"shape {text!r} is not understood; write sizes joined by x: 4096x8192")
    return tuple(int(part) for part in parts)


def options_name(options: Options) -> str:
    """Return `causal window=1024`, as the data files write it; "" for no options.

    An option that is True stands by its name alone.
    """
    return " ".join(name if value is True else f"{name}={value}" for name, value in options)


def parse_options(text: str) -> Options:
    """Return (("causal", True), ("window", 1024)) for `causal window=1024`.

    A value is read as a whole number or a decimal where it is one. ValueError with one sentence for
    a name that stands twice or is none.
    """
    found: dict[str, Any] = {}
    for part in text.split():
        name, equals, value = part.partition("=")
        if not name.isidentifier() or name in found or (equals and not value):
            raise ValueError(
                f"options {text!r} are not understood; write names and values: causal window=1024"
            )
        found[name] = _value(value) if equals else True
    return tuple(found.items())


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


@dataclass(frozen=True)
class Case:
    """One place where an operation is measured: its sizes, its dtype, its options."""

    shape: Shape
    dtype: torch.dtype
    options: Options = ()

    @property
    def name(self) -> str:
        """The case as a reader writes it: `4096x4096 bf16`, `2x16x4096x64 bf16 causal`."""
        told = f"{shape_name(self.shape)} {dtype_name(self.dtype)}"
        return f"{told} {options_name(self.options)}" if self.options else told


def cases(
    shapes: Iterable[Shape], *dtypes: str, options: Iterable[Options] = ((),)
) -> tuple[Case, ...]:
    """Return a case for each shape, dtype (short names; all if none) and set of options."""
    kinds = [DTYPES[name] for name in dtypes or DTYPES]
    chosen = list(options)
    return tuple(Case(s, dtype, told) for s in shapes for dtype in kinds for told in chosen)
