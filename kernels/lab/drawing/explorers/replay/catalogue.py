"""What can be replayed by name: kernels of chapters 03 to 07, a product, an attention.

All are small: a page shows each element, and a reader steps through each request.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.cuda import Module, cuda
from kernels.lab.drawing.explorers.replay import kernels_triton as triton
from kernels.lab.drawing.explorers.replay.trace import Recorded, recorded

EPS = 1e-5


@dataclass(frozen=True)
class Replayed:
    """A call that can be replayed: `call` makes its launches; `look` says what to look at."""

    key: str
    label: str
    group: str
    look: str
    call: Callable[[], object]

    def record(self) -> Recorded:
        """Make the call and return its recording."""
        return recorded(self.call, self.key, self.label, self.group, self.look)


CATALOGUE: dict[str, Replayed] = {}


def _replayed(
    group: str, label: str, look: str
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Put a call into the catalogue, by its own name."""

    def keep(call: Callable[[], object]) -> Callable[[], object]:
        CATALOGUE[call.__name__] = Replayed(call.__name__, label, group, look, call)
        return call

    return keep


@functools.cache
def _cuda() -> Module:
    """The kernels in CUDA C++; instances of templates are compiled in one go."""
    names = "row_mean_by_threads row_mean row_variance normalise scale_shift layer_norm_loops "
    instances = [f"{name}<float>" for name in (names + "layer_norm_packs").split()]
    source = Path(__file__).with_name("kernels.cu").read_text(encoding="utf-8")
    return cuda(source, instances=[*instances, "layer_norm_held<float, 1>"])


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _norm(rows: int, cols: int) -> list[torch.Tensor]:
    """The arguments x, weight, bias, and y, which is to be filled."""
    x, weight, bias = _random(rows, cols), _random(cols, seed=1), _random(cols, seed=2)
    return [x, weight, bias, torch.empty(rows, cols)]


# Chapter 03

_03 = "03 First kernels"


@_replayed(_03, "Copy, Triton", "Each program has a stretch of its own; a mask cuts the last one.")
def copy() -> torch.Tensor:
    """y = x, 200 numbers in blocks of 64."""
    x, y = _random(200), torch.empty(200)
    triton.copy[(4,)](x, y, 200, BLOCK=64)
    return y


@_replayed(_03, "Copy, CUDA C++", "A block asks in parts: one request for each warp of 32 threads.")
def copy_cuda() -> torch.Tensor:
    """y = x, 200 numbers in blocks of 64 threads."""
    x, y = _random(200), torch.empty(200)
    _cuda().copy[4, 64](x, y, 200)
    return y


@_replayed(_03, "Row sum, Triton", "A whole row is one request, and its sum another.")
def row_sum() -> torch.Tensor:
    """The sums of 8 rows of 48."""
    x, sums = _random(8, 48), torch.empty(8)
    triton.row_sum[(8,)](x, sums, 48, BLOCK=64)
    return sums


@_replayed(
    _03,
    "Row sum, CUDA C++",
    "Two warps walk along the row in turns. Shared memory, where they meet, is no tensor and is "
    "not shown.",
)
def row_sum_cuda() -> torch.Tensor:
    """The sums of 4 rows of 128, by blocks of 64 threads."""
    x, sums = _random(4, 128), torch.empty(4)
    _cuda().row_sum[4, 64](x, sums, 128)
    return sums


@_replayed(
    _03, "Transpose, Triton", "A tile is read row by row and written as a tile of the other shape."
)
def transpose() -> torch.Tensor:
    """The transpose of 24 rows of 40, in tiles of 16 by 16."""
    x, y = _random(24, 40), torch.empty(40, 24)
    triton.transpose[(2, 3)](x, y, 24, 40, BLOCK=16)
    return y


@_replayed(
    _03,
    "Transpose, CUDA C++",
    "A warp reads a piece of a row and writes a piece of a column, whose elements lie a row apart.",
)
def transpose_cuda() -> torch.Tensor:
    """The transpose of 32 by 32, by blocks of 32 by 8 threads."""
    x, y = _random(32, 32), torch.empty(32, 32)
    _cuda().transpose[(1, 4), (32, 8)](x, y, 32, 32)
    return y


# Chapter 04

_04 = "04 Unfused CUDA kernels"


@_replayed(
    _04,
    "Row mean, a thread a row, CUDA C++",
    "A warp asks for a column, 32 numbers that lie a row apart. Chapter 04 says what that costs.",
)
def row_mean_by_threads() -> torch.Tensor:
    """The means of 64 rows of 24, by blocks of 32 threads."""
    x, mean = _random(64, 24), torch.empty(64)
    _cuda()["row_mean_by_threads<float>"][2, 32](x, mean, 64, 24, 24)
    return mean


@_replayed(
    _04,
    "LayerNorm in four launches, CUDA C++",
    "What one launch hands to the next goes through memory: mean, variance and normalised are "
    "written and read again.",
)
def layer_norm_chain() -> torch.Tensor:
    """LayerNorm of 4 rows of 64, four launches, a block of 32 threads a row."""
    x, weight, bias, y = _norm(4, 64)
    mean, variance, normalised = torch.empty(4), torch.empty(4), torch.empty(4, 64)
    _cuda()["row_mean<float>"][4, 32](x, mean, 64, 64)
    _cuda()["row_variance<float>"][4, 32](x, mean, variance, 64, 64)
    _cuda()["normalise<float>"][4, 32](x, mean, variance, normalised, 64, 64, EPS)
    _cuda()["scale_shift<float>"][4, 32](normalised, weight, bias, y, 64)
    return y


# Chapter 05

_05 = "05 Fusing by hand in CUDA"


def _row_by_row(kernel: str) -> torch.Tensor:
    x, weight, bias, y = _norm(4, 128)
    _cuda()[kernel][4, 32](x, weight, bias, y, 128, EPS)
    return y


@_replayed(
    _05,
    "LayerNorm, three loops, CUDA C++",
    "One launch, and each row is swept three times, 32 numbers a request.",
)
def layer_norm_loops_cuda() -> torch.Tensor:
    """LayerNorm of 4 rows of 128, a block of 32 threads a row."""
    return _row_by_row("layer_norm_loops<float>")


@_replayed(
    _05,
    "LayerNorm, packs, CUDA C++",
    "Still three sweeps, and now a request takes 16 bytes a lane: four times as wide, a quarter "
    "as many.",
)
def layer_norm_packs_cuda() -> torch.Tensor:
    """LayerNorm of 4 rows of 128, a block of 32 threads a row, 16 bytes a load."""
    return _row_by_row("layer_norm_packs<float>")


@_replayed(
    _05, "LayerNorm, held, CUDA C++", "The row stays in registers: each number of x is read once."
)
def layer_norm_held_cuda() -> torch.Tensor:
    """LayerNorm of 4 rows of 128, a block of 32 threads a row, the row in registers."""
    return _row_by_row("layer_norm_held<float, 1>")


# Chapter 06

_06 = "06 Fused norms in Triton"


@_replayed(
    _06, "LayerNorm, three loops, Triton", "Three loops of the kernel are three sweeps over x."
)
def layer_norm_loops() -> torch.Tensor:
    """LayerNorm of 6 rows of 64 in blocks of 32."""
    x, weight, bias, y = _norm(6, 64)
    triton.layer_norm_loops[(6,)](x, weight, bias, y, 64, 64, EPS, BLOCK_COLS=32)
    return y


@_replayed(
    _06,
    "LayerNorm, the row held, Triton",
    "One block holds the row: four requests a program, and only weight and bias come again.",
)
def layer_norm_row() -> torch.Tensor:
    """LayerNorm of 6 rows of 64, a row in a block."""
    x, weight, bias, y = _norm(6, 64)
    triton.layer_norm_row[(6,)](x, weight, bias, y, 64, 64, EPS, BLOCK_COLS=64)
    return y


@_replayed(
    _06,
    "LayerNorm, tile by tile, Triton",
    "A row too wide to be held: mean and variance merge over its tiles in one sweep, a second one "
    "normalises.",
)
def layer_norm_tiles() -> torch.Tensor:
    """LayerNorm of 6 rows of 64 in tiles of 32."""
    x, weight, bias, y = _norm(6, 64)
    triton.layer_norm_tiles[(6,)](x, weight, bias, y, 64, 64, EPS, BLOCK_COLS=32)
    return y


# Chapter 07

_07 = "07 The backward of norms"


def _backward() -> tuple[torch.Tensor, ...]:
    """The arguments dy, x, weight, mean and inv_std, of 8 rows of 48."""
    dy, x, weight = _random(8, 48), _random(8, 48, seed=1), _random(48, seed=2)
    return dy, x, weight, x.mean(-1), torch.rsqrt(x.var(-1, correction=0) + EPS)


@_replayed(
    _07,
    "dweight by atomics, Triton",
    "Every program adds to the whole of dweight: an atomic is a read and a write.",
)
def add_row_atomically() -> torch.Tensor:
    """Weight's gradient of 8 rows of 48, a program a row."""
    dy, x, _, mean, inv_std = _backward()
    dweight = torch.zeros(48)
    triton.add_row_atomically[(8,)](dy, x, mean, inv_std, dweight, 48, BLOCK_COLS=64)
    return dweight


@_replayed(
    _07,
    "Rows shared out, Triton",
    "A program walks over rows of its own, and writes its line of the partial sums once, at its "
    "end.",
)
def share_rows() -> tuple[torch.Tensor, ...]:
    """All gradients of 8 rows of 48 by 3 programs; dweight and dbias in parts, (3, 48)."""
    given = _backward()
    outputs = torch.empty(8, 48), torch.empty(3, 48), torch.empty(3, 48)
    triton.share_rows[(3,)](*given, *outputs, 8, 3, 48, BLOCK_COLS=64, STAGES=1)
    return outputs


# What comes later

_LATER = "Products and attention"


@_replayed(
    _LATER,
    "Matrix product in tiles, Triton",
    "A strip of a is read once for each tile in its line of c, a strip of b once for each tile in "
    "its column.",
)
def product() -> torch.Tensor:
    """c = a·b, 48 by 32 and 32 by 64, a program a tile of 16 by 16."""
    a, b, c = _random(48, 32), _random(32, 64, seed=1), torch.empty(48, 64)
    triton.product[(3, 4)](a, b, c, 32, 64, TILE=16)
    return c


@_replayed(
    _LATER,
    "Causal attention in tiles, Triton",
    "A program keeps its queries and walks over keys and values; the scores are in no tensor.",
)
def attention() -> torch.Tensor:
    """Causal attention of 64 queries and keys, 16 numbers each, in tiles of 16."""
    q, k, v = (_random(64, 16, seed=seed) for seed in range(3))
    out = torch.empty(64, 16)
    triton.attention[(4,)](q, k, v, out, 16**-0.5, DIM=16, TILE=16)
    return out
