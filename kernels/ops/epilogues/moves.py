"""What a product with an epilogue launches and moves, by hand: the ledgers must count the same.

An epilogue adds what it reads and writes beside the sums, each once, and takes no bytes off the
product's own: a bias is asked for by every row of tiles, a residual and what is kept once. What is
saved is what does not happen, the write of the sums and the read of them by the next launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.hardware import VECTOR_BYTES
from kernels.launch import capability, multiprocessors
from kernels.ops.epilogues.configurations import (
    BACKWARD,
    epilogue_tiling,
    hopper_tiles,
    simple_tiling,
    suits_hopper,
)
from kernels.ops.products.configurations import Tiling
from kernels.ops.products.moves import grad_weight_steps, grad_x_steps, requested_bytes
from kernels.registry import Case, Moved, MovedStep, Moves

_CPU = torch.device("cpu")  # where launches are counted


@dataclass(frozen=True)
class Followed:
    """A product of (m, k) and (k, n) and what follows it: what is read or written beside it."""

    sizes: tuple[int, ...]
    itemsize: int
    biased: bool = False
    gated: bool = False
    activated: bool = False
    residual: bool = False
    keeps: bool = False
    heads: bool = False

    @property
    def _sizes(self) -> tuple[int, int, int]:
        m, k, n = self.sizes
        return m, k, n

    @property
    def _aligned(self) -> bool:
        _, k, n = self.sizes
        widths = (k,) if self.heads else (k, n)
        return all(width * self.itemsize % VECTOR_BYTES == 0 for width in widths)

    def tiling(self) -> Tiling:
        """The tiling on the card that is assumed, all rows side by side."""
        more = self.keeps or self.residual
        rule = self._sizes, self.itemsize, self._aligned, self.gated, more
        return epilogue_tiling(*rule, capability(_CPU), multiprocessors(_CPU))

    def step(self, tiling: Tiling | None = None) -> MovedStep:
        """Its launch, in the card's tiling if None."""
        tiling = tiling or self.tiling()
        (m, k, n), size = self.sizes, self.itemsize
        tiles, tiles_m = tiling.tiles(m, n), -(-m // tiling.block_m)
        of_x, of_weight = requested_bytes(m, k, n, tiling, size)
        whole, parts = m * n * size, 1 + self.gated

        def written(name: str, times: int = 1) -> Moved:
            return Moved(name, write_unique=times * whole, write_requested=times * whole)

        moved = [Moved("x", m * k * size, of_x)]
        moved.append(Moved("weight", parts * n * k * size, parts * of_weight))
        moved += [Moved("bias", n * size, n * tiles_m * size)] if self.biased else []
        moved += [Moved("residual", whole, whole)] if self.residual else []
        moved += [written("heads" if self.heads and tiling.persistent else "y")]
        moved += [written("kept", parts)] if self.keeps else []
        if tiling.persistent:
            grid = min(multiprocessors(_CPU), tiles), 1, 1
            return MovedStep("epilogue_persistent", grid, tuple(moved))
        return MovedStep("epilogue_tile", (tiles, 1, 1), tuple(moved))

    def by_simple(self) -> Moves:
        """What the kernel of the page moves on the card that is assumed."""
        return Moves.of(self.step(simple_tiling(self.itemsize, self.gated, capability(_CPU))))

    def suits(self, heads: tuple[int, int, int, int] | None = None) -> bool:
        """Whether the kernel written for Hopper takes it, rows side by side."""
        rule = self._sizes, self.itemsize, self._aligned, self.gated, self.activated, self.keeps
        return suits_hopper(*rule, heads, capability(_CPU), multiprocessors(_CPU))

    def by_hopper(self) -> Moves:
        """What that kernel moves: two groups of a program read a tile's bias, each its residual.

        The copy engine leaves out what lies outside a matrix.
        """
        (m, k, n), size = self._sizes, self.itemsize
        down, across = hopper_tiles(m, n, self.gated)
        weights, bias = (1 + self.gated) * n * k, n * self.biased
        whole = (1 + self.residual) * m * n
        return Moves(
            launches=1,
            unique=(m * k + weights + bias + whole) * size,
            requested=(m * k * across + weights * down + 2 * bias * down + whole) * size,
        )


def activation_step(m: int, n: int, itemsize: int, gated: bool = False) -> MovedStep:
    """The launch of dh = dy · act'(h), all rows side by side; of a gate h and dh are 2N wide."""
    size = m * n * itemsize
    both = (1 + gated) * size
    moved = [Moved("dy", size, size), Moved("kept", both, both)]
    moved.append(Moved("dh", write_unique=both, write_requested=both))
    programs = m * -(-n // BACKWARD.cols) if gated else -(-m * n // BACKWARD.cols)
    return MovedStep("activation_backward", (programs, 1, 1), tuple(moved))


def heads_step(m: int, n: int, itemsize: int) -> MovedStep:
    """The launch that copies a gradient from the layout of heads to m rows of n."""
    size = m * n * itemsize
    moved = Moved("dy", size, size), Moved("rows", write_unique=size, write_requested=size)
    return MovedStep("rows_from_heads", (m * -(-n // BACKWARD.cols), 1, 1), moved)


def back_through_product(
    m: int, k: int, n: int, dtype: torch.dtype, sums: bool
) -> tuple[MovedStep, ...]:
    """The launches of dX and dW, and with `sums` of db, of a product of (m, k) and (k, n)."""
    case = Case((m, k, n), dtype)
    return *grad_x_steps(case), *grad_weight_steps(case, sums=sums)


def rows_of(x: torch.Tensor) -> int:
    """How many rows x (..., K) has."""
    return x.numel() // x.shape[-1] if x.numel() else 0


def moved(followed: Followed) -> Moves | None:
    """What one launch moves; None for a product without rows."""
    return Moves.of(followed.step()) if followed.sizes[0] else None
