"""Why a lane reached past a tensor of one value a column, or a row: its mask, or its index.

The reader's function is called again with such tensors longer than they are, once with one number
behind their end and once with another. What a lane loads that its mask should have switched off
changes nothing; what is loaded from there by the index of another tensor changes the output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kernels.grading.cases import Case
from kernels.grading.question import NotAnswered, Wrong

Tensor = torch.Tensor
_USED = "What is loaded there is used: neither a mask nor a guard is missing, the index is wrong. "


def misplaced(case: Case, argument: str, again: Callable[[Case], Any]) -> str:
    """Say which index `argument` takes, if the reader's function gives it another; "" if not.

    `argument` is what the kernel calls the tensor past whose end it went; `again` calls the
    reader's function on a case.
    """
    cols = case.x.shape[-1] if case.x.dim() > 1 else 0
    rows = case.x.numel() // cols if cols else 0
    for size in dict.fromkeys((cols, rows)):
        found = _changed(case, size, again)
        if found is not None and bool(found.any()):
            return _USED + _index_of(argument, found.reshape(rows, cols), by_column=size == cols)
    return ""


def _changed(case: Case, size: int, again: Callable[[Case], Any]) -> Tensor | None:
    """Where an output of x's size changes with what stands behind vectors of `size` elements.

    None if there is no such vector or output, or if it is another tensor that is too short.
    """
    vectors = {
        name: tensor
        for name, tensor in case.tensors.items()
        if tensor.dim() == 1 and tensor.is_floating_point() and len(tensor) == size > 0
    }
    outputs = []
    for behind in (1.0, 3.0) if vectors else ():
        longer = {name: _lengthened(v, case.x.numel(), behind) for name, v in vectors.items()}
        try:
            outputs.append(again(replace(case, tensors={**case.tensors, **longer})))
        except (Wrong, NotAnswered):
            return None
    if not vectors or not all(map(_has_values, outputs)):
        return None
    first, second = (one.detach().double().nan_to_num(1e30) for one in outputs)
    whole = first.shape == second.shape and first.numel() == case.x.numel()
    return first != second if whole else None


def _has_values(output: Any) -> bool:
    plain = type(output) is torch.Tensor and output.layout == torch.strided
    return plain and output.device.type == "cpu"


def _index_of(argument: str, found: Tensor, by_column: bool) -> str:
    """What index a vector takes, and which one it was given; `found` is (rows, cols)."""
    if not by_column:
        return f"{argument} has a value for each row, and its index is the row."
    rows, cols = found.shape
    own = f"{argument} has a value for each column, and its index is the column alone."
    if cols > 1 and found.any(1).nonzero().flatten().tolist() == list(range(cols, rows)):
        return f"Here it is the row. {own}"
    return f"{own} Of an index i that runs through all rows that is i % n_cols."


def _lengthened(vector: Tensor, length: int, behind: float) -> Tensor:
    """`vector` with `behind` after its end, `length` elements in all."""
    return torch.cat([vector, vector.new_full((max(0, length - len(vector)),), behind)])
