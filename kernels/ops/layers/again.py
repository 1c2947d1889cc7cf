"""Tensors that a backward gets made again instead of kept: a recipe stands in autograd's graph.

What an operator saves goes through `torch.autograd.graph.saved_tensors_hooks`. There a tensor is
replaced by how to make it, from others that are kept anyway: its memory is free as soon as the
forward has used it. Going back it is made once for all that saved it, and let go after the last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor


class Recipe:
    """How to make a tensor: `make()` gives the same numbers in the same layout as before.

    `make` may hold what is kept anyway, and must not hold what it makes.
    """

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self._make = make
        self._made: Tensor | None = None
        self._asked = 0
        self.places = 0  # that stand for it in autograd's graph

    def made(self) -> Tensor:
        """The tensor, for one of the places that it was saved at."""
        if self._made is None:
            with torch.no_grad():
                self._made = self._make()
        made = self._made
        self._asked += 1
        if self._asked % self.places == 0:
            self._made = None
        return made

    @contextlib.contextmanager
    def instead_of(self, is_made: Callable[[Tensor], bool]) -> Iterator[None]:
        """A block in which this is kept in place of each saved tensor that `is_made` says is it."""

        def pack(saved: Tensor) -> Any:
            if not is_made(saved):
                return saved
            self.places += 1
            return _Place(self, saved.size(), saved.stride(), int(saved.storage_offset()))

        with torch.autograd.graph.saved_tensors_hooks(pack, _unpacked):
            yield


@dataclass(frozen=True)
class _Place:
    """Where a saved tensor lies in the memory of what a recipe makes."""

    recipe: Recipe
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


def _unpacked(kept: Any) -> Tensor:
    if not isinstance(kept, _Place):
        result: Tensor = kept
        return result
    return kept.recipe.made().as_strided(kept.size, kept.stride, kept.offset)


def may_replace() -> bool:
    """Whether something is saved that a recipe may stand for: inside torch.compile nothing is.

    There the compiler decides what is kept.
    """
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def memory(tensor: Tensor) -> int:
    """The memory of a tensor, by a number that its views share while it is there."""
    return int(tensor.untyped_storage()._cdata)
