"""One call that is graded, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.grading.closeness import describe
from kernels.lab.counting.ledger import TensorTraffic
from kernels.launch import Launches
from kernels.launch.interpreter import tensors_of
from kernels.registry import Tolerance

Tensor = torch.Tensor
# How the fault of an old output begins.
KEPT = "it returned the memory of an earlier call's output"


def memory_of(tensor: Tensor) -> int:
    """Where the memory begins that a tensor is a view of."""
    return tensor.untyped_storage().data_ptr()


@dataclass(frozen=True)
class Case:
    """One call to grade: named tensors and plain options, the first tensor being x.

    `trait` says what is special about the inputs ("" for nothing). The output has the shape of
    `reference`, and `dtype`, or that of x without one.
    """

    tensors: dict[str, Tensor]
    options: tuple[Any, ...]
    reference: Tensor
    tolerance: Tolerance
    trait: str = ""
    dtype: torch.dtype | None = None

    @property
    def x(self) -> Tensor:
        """The first tensor."""
        return next(iter(self.tensors.values()))

    @property
    def like(self) -> Tensor:
        """A tensor without memory that has the output's shape, dtype and device."""
        dtype = self.dtype or self.x.dtype
        return torch.empty((), dtype=dtype, device=self.x.device).expand(self.reference.shape)

    def __str__(self) -> str:
        return describe(self.x) + (f", {self.trait}" if self.trait else "")


@dataclass(frozen=True)
class Run:
    """What became of one case."""

    case: Case
    output: Any
    launches: Launches
    operators: tuple[str, ...]
    fault: str | None = None
    wrong: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))

    def traffic(self, tensor: Tensor) -> TensorTraffic:
        """The bytes that the launches moved of one tensor, under whatever name they took it."""
        total = TensorTraffic("")
        for launch in self.launches:
            names = {
                name
                for name, value in launch.arguments.items()
                if any(memory_of(t) == memory_of(tensor) for t in tensors_of(value))
            }
            for name, *numbers in launch.arena.totals() if launch.arena else ():
                if name.split("[")[0] in names:
                    total += TensorTraffic("", *numbers)
        return total
