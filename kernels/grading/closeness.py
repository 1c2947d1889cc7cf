"""An output held against its float64 reference: the first thing that is wrong, in one sentence."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernels.registry import Tolerance, dtype_name

Tensor = torch.Tensor


def told(value: float) -> str:
    """A number as a sentence shows it."""
    return f"{value:.6g}"


def index_of(flat: int, shape: tuple[int, ...]) -> str:
    """A flat index as `[2, 16]`."""
    places = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        places.append(place)
    return "[" + ", ".join(str(place) for place in reversed(places)) + "]"


def kind_fault(output: Any, like: Tensor) -> str | None:
    """What is wrong with an output before its values count: its type, shape, dtype or device."""
    if type(output) is not torch.Tensor:
        return f"it returned a {type(output).__name__}, not a torch.Tensor"
    if output.layout != torch.strided:
        return f"it returned a tensor of layout {output.layout}, not a plain one"
    if output.shape != like.shape:
        return f"it returned the shape {tuple(output.shape)}, not {tuple(like.shape)}"
    if output.dtype != like.dtype:
        return f"it returned {output.dtype}, not {like.dtype}"
    if output.device != like.device:
        return f"it returned a tensor on {output.device}, not on {like.device}"
    return None


def changed(before: Tensor, after: Tensor) -> int | None:
    """The flat index of the first element whose bits changed, or None; 0 if the shape did."""
    if (before.shape, before.stride(), before.dtype) != (after.shape, after.stride(), after.dtype):
        return 0
    different = (before.view(torch.uint8) != after.view(torch.uint8)).flatten()
    return int(different.int().argmax()) // before.element_size() if bool(different.any()) else None


def wrong_elements(output: Tensor, reference: Tensor, tolerance: Tolerance) -> Tensor:
    """Which elements are wrong, as a flat mask; empty of True if the output is right.

    NaN and infinity are wrong wherever they stand.
    """
    out, ref = output.detach().double().flatten(), reference.flatten()
    error = (out - ref).abs()
    wrong = ~(error <= tolerance.largest * float(ref.abs().max()))
    if not bool(wrong.any()) and relative_error(out, ref) > tolerance.relative_norm:
        # Every element is within its bound, and together they are not: the worst is named.
        wrong[int(error.argmax())] = True
    return wrong


def relative_error(output: Tensor, reference: Tensor) -> float:
    """‖output − reference‖ / ‖reference‖ in float64; infinite if the output isn't finite."""
    difference = float((output.detach().double() - reference).norm())
    norm = float(reference.norm())
    if not math.isfinite(difference):
        return math.inf
    return difference / norm if norm else math.inf if difference else 0.0


def value_fault(output: Tensor, reference: Tensor, wrong: Tensor) -> str:
    """A sentence's part on the first wrong element and how many there are."""
    first = int(wrong.int().argmax())
    place = index_of(first, tuple(output.shape))
    got = float(output.detach().flatten()[first])
    what = f"y{place} is {told(got)} and should be {told(float(reference.flatten()[first]))}"
    return f"{what} ({int(wrong.sum())} of {wrong.numel()} elements are wrong)"


def describe(x: Tensor) -> str:
    """The input of a sentence: `x of shape (3, 17) in fp32`."""
    return f"x of shape {tuple(x.shape)} in {dtype_name(x.dtype)}"
