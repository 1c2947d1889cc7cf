"""What the loss over a vocabulary launches and moves, by hand: the ledgers must count the same.

With C tokens in a chunk there are ⌈T / C⌉ chunks, and each asks for the whole weight twice, for the
logits and for dX; dW is written by the first and read and written by each of the others. So bytes
grow with the number of chunks and memory with their size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels.launch import capability
from kernels.ops.losses.configurations import (
    OUTER,
    SCALED,
    at_once,
    chunk_tokens,
    simple_tile,
)
from kernels.ops.products.moves import forward_moves, grad_x_steps, tiling_of
from kernels.registry import Case, Moved, MovedStep, Moves

_FP32, _INT64 = 4, 8


def _read(tensor: str, size: int, times: int = 1) -> Moved:
    return Moved(tensor, size, size * times)


def _written(tensor: str, size: int) -> Moved:
    return Moved(tensor, write_unique=size, write_requested=size)


def chunk_sizes(case: Case) -> list[int]:
    """The tokens of each chunk of a case."""
    tokens, _, n_words = case.shape
    chunk = chunk_tokens(tokens, n_words, case.dtype.itemsize)
    return [min(chunk, tokens - first) for first in range(0, tokens, chunk)]


def rows_step(
    case: Case, tokens: int, *, loss: int, n_valid: bool, gradient: bool, upstream: str = ""
) -> MovedStep:
    """The launch on a chunk's logits: read for the loss, and again where they become a gradient.

    `loss` is the bytes of a token's loss, 0 where none is written; `upstream` is "one" or "each"
    where that is read. The target's logit is asked for by itself, once a token.
    """
    n_words, size = case.shape[2], case.dtype.itemsize
    logits = tokens * n_words * size
    times = 2 if gradient else 1
    written = logits if gradient else 0
    moved = [
        Moved("logits", logits, times * logits + tokens * size, written, written),
        _read("targets", tokens * _INT64),
    ]
    moved += [_written("losses", tokens * loss)] if loss else []
    if upstream:
        moved += [Moved("upstream", size * (tokens if upstream == "each" else 1), tokens * size)]
    moved += [Moved("n_valid", _FP32, tokens * _FP32)] if n_valid and gradient else []
    return MovedStep("cross_entropy_rows", (tokens, 1, 1), tuple(moved))


def outer_step(case: Case, tokens: int, adds: bool) -> MovedStep:
    """The launch of dW for a chunk: each tile asks for its words' gradients and its columns."""
    _, width, n_words = case.shape
    size = case.dtype.itemsize
    down, across = -(-n_words // OUTER[0]), -(-width // OUTER[1])
    kept = n_words * width * size
    before = kept if adds else 0
    moved = (
        _read("d_logits", tokens * n_words * size, across),
        _read("x", tokens * width * size, down),
        Moved("d_weight", before, before, kept, kept),
    )
    return MovedStep("add_outer_product", (down, across, 1), moved)


def _count_step(tokens: int) -> MovedStep:
    moved = _read("targets", tokens * _INT64), _written("n_valid", _FP32)
    return MovedStep("count_targets", (1, 1, 1), moved)


def _sum_step(case: Case, mean: bool = True) -> MovedStep:
    moved = [_read("losses", case.shape[0] * _FP32)]
    moved += [_read("n_valid", _FP32)] if mean else []
    moved += [_written("loss", case.dtype.itemsize)]
    return MovedStep("add_losses", (1, 1, 1), tuple(moved))


def _scaled_step(elements: int, itemsize: int) -> MovedStep:
    programs, size = -(-elements // SCALED), elements * itemsize
    moved = (
        Moved("upstream", itemsize, programs * itemsize),
        _read("gradient", size),
        _written("out", size),
    )
    return MovedStep("scale_gradient", (programs, 1, 1), moved)


def walk_steps(
    case: Case,
    reduction: str = "mean",
    *,
    wants_loss: bool = True,
    wants_x: bool = False,
    wants_weight: bool = False,
    upstream: bool = False,
) -> Iterator[MovedStep]:
    """The launches of `chunks.walk`, called with the same."""
    tokens, width, n_words = case.shape
    each, gradient = reduction == "none", wants_x or wants_weight
    loss = case.dtype.itemsize if each else _FP32
    given = ("each" if each else "one") if upstream else ""
    if reduction == "mean":
        yield _count_step(tokens)
    for number, chunk in enumerate(chunk_sizes(case)):
        part = Case((chunk, width, n_words), case.dtype)
        yield from forward_moves(part, tiling_of(part), biased=False).steps
        yield rows_step(
            case,
            chunk,
            loss=loss if wants_loss else 0,
            n_valid=reduction == "mean",
            gradient=gradient,
            upstream=given,
        )
        if wants_x:
            yield from grad_x_steps(part)
        if wants_weight:
            yield outer_step(case, chunk, adds=number > 0)
    if wants_loss and not each:
        yield _sum_step(case, mean=reduction == "mean")


def moves(case: Case, pass_: str) -> Moves:
    """What `fused` moves: of a training step with a mean that something was made of, in bf16, fp32.

    fp16, where the backward computes logits anew, has no formula for it.
    """
    tokens, width, n_words = case.shape
    if pass_ == "fwd":
        return Moves.of(*walk_steps(case))
    if not at_once("mean", case.dtype):
        raise NotImplementedError(f"no formula tells what {case.name} moves in training")
    size = case.dtype.itemsize
    back = _scaled_step(tokens * width, size), _scaled_step(n_words * width, size)
    return Moves.of(*walk_steps(case, wants_x=True, wants_weight=True), *back)


def simple_moves(case: Case, _pass: str) -> Moves:
    """What the kernel of the page moves: x is asked for by each tile of words, as weight by tokens.

    Of the logits nothing.
    """
    tokens, width, n_words = case.shape
    size = case.dtype.itemsize
    tile = simple_tile(size, capability(torch.device("cpu")))
    down, across = -(-tokens // tile.tokens), -(-n_words // tile.words)
    moved = (
        _read("x", tokens * width * size, across),
        _read("weight", n_words * width * size, down),
        _read("targets", tokens * _INT64),
        _written("losses", tokens * _FP32),
    )
    first = MovedStep("loss_simple", (down, 1, 1), moved)
    return Moves.of(first, _count_step(tokens), _sum_step(case))


# ------------------------------------------------------------------------ operators in a model


def _case(x: torch.Tensor, weight: torch.Tensor) -> Case:
    return Case((*x.shape, len(weight)), x.dtype)


def forward_operator_moves(
    x: torch.Tensor, weight: torch.Tensor, reduction: str, **_: object
) -> Moves | None:
    """What the operator of a call without gradients moves, all tensors contiguous."""
    return Moves.of(*walk_steps(_case(x, weight), reduction)) if len(x) else None


def train_operator_moves(
    x: torch.Tensor,
    weight: torch.Tensor,
    reduction: str,
    wants_x: bool,
    wants_weight: bool,
    **_: object,
) -> Moves | None:
    """What the operator of a training step's forward moves, all tensors contiguous."""
    if len(x) == 0:
        return None
    now = at_once(reduction, x.dtype)
    both = {"wants_x": now and wants_x, "wants_weight": now and wants_weight}
    return Moves.of(*walk_steps(_case(x, weight), reduction, **both))


def backward_operator_moves(
    x: torch.Tensor,
    weight: torch.Tensor,
    reduction: str,
    wants_x: bool,
    wants_weight: bool,
    **_: object,
) -> Moves | None:
    """What the operator moves that computes the logits anew, all tensors contiguous."""
    if len(x) == 0:
        return None
    both = {"wants_x": wants_x, "wants_weight": wants_weight}
    steps = walk_steps(_case(x, weight), reduction, wants_loss=False, upstream=True, **both)
    return Moves.of(*steps)
