"""Is a variant right? The distance of its outputs or its gradients from a float64 reference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.passes import as_tuple, back, differentiated
from kernels.registry import Op, Shape

CHUNK_ELEMENTS = 1 << 25  # float64 elements of one chunk of a reference: 256 MiB a tensor
MOST_KEPT = 1 << 26  # elements of a whole reference that is kept: 512 MiB


class NotFiniteError(ValueError):
    """An output holds NaN or infinity, or an element that was never written."""


@dataclass(frozen=True)
class _Part:
    """What stands between two places along each of some dimensions; all of it without any."""

    along: tuple[tuple[str, int, int], ...] = ()  # letter, start, stop

    def of(self, tensor: Any, dims: str) -> Any:
        """Return the part of a tensor of dimensions `dims`; all of it along those it lacks."""
        for letter, start, stop in self.along:
            if letter in dims:
                tensor = tensor.narrow(dims.index(letter), start, stop - start)
        return tensor


def _parts(op: Op, shape: Shape) -> Iterator[_Part]:
    """Cut independent dimensions, the first ones first, so that a part of the reference fits."""
    sizes = dict(zip(op.dims, shape, strict=True))
    # What it holds at once: a tensor, or what grows faster, as attention's scores do.
    held = max(math.prod(shape), math.prod(n ** op.degrees.get(d, 0) for d, n in sizes.items()))
    cuts: list[list[tuple[str, int, int]]] = []
    for letter in op.independent:
        size = sizes[letter]
        step = max(1, min(size, CHUNK_ELEMENTS * size // max(1, held)))
        cuts.append([(letter, at, min(at + step, size)) for at in range(0, size, step)])
        held = held * step // max(1, size)
        if held <= CHUNK_ELEMENTS:
            break
    yield from map(_Part, itertools.product(*cuts))


def _inputs_of(op: Op, part: _Part, inputs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the reference for a part; where it draws numbers, the part's place too."""
    start = part.along[0][1] if part.along else 0
    place = {"first_row": start} if op.random else {}
    dims = op.tensors
    return {name: part.of(value, dims.get(name, "")) for name, value in inputs.items()} | place


class _Kept:
    """How many elements of an output that draws its own random numbers were kept."""

    def __init__(self) -> None:
        self.kept = self.of = 0

    def nearest(self, out: torch.Tensor, kept: torch.Tensor, dropped: torch.Tensor) -> torch.Tensor:
        """Whichever of the two values each element of `out` lies nearer to."""
        out = out.double()
        is_kept = (out - kept).abs() < (out - dropped).abs()
        apart = (kept - dropped).abs() > 0.05 * (1 + dropped.abs())  # else a rounding decides
        self.kept += int((is_kept & apart).sum())
        self.of += int(apart.sum())
        return torch.where(is_kept, kept, dropped)

    def check(self, p: float) -> None:
        """ValueError if the share that was kept isn't 1 − p, by six standard deviations."""
        allowed = 6 * math.sqrt(p * (1 - p) * self.of) + 1e-4 * self.of
        if abs(self.kept - (1 - p) * self.of) > allowed:
            raise ValueError(
                f"{self.kept / self.of:.2%} of the elements are kept where {1 - p:.2%} should be"
            )


class _Distance:
    """‖out − ref‖ / ‖ref‖ of something that comes part by part, in float64."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._distance = self._norm = 0.0

    def add(self, part: torch.Tensor, reference: torch.Tensor) -> None:
        """Take a part and its reference; ValueError if their shapes differ."""
        if part.shape != reference.shape:
            raise ValueError(
                f"{self._what} has shape {tuple(part.shape)}, "
                f"the reference {tuple(reference.shape)}"
            )
        self._distance += float((part.double() - reference).square().sum())
        self._norm += float(reference.square().sum())

    def relative(self) -> float:
        """The error of all parts; NotFiniteError if one was not finite."""
        if not math.isfinite(self._distance):
            raise NotFiniteError(
                f"{self._what} holds NaN or infinity, or was not written everywhere"
            )
        return math.sqrt(self._distance / self._norm) if self._norm else math.sqrt(self._distance)


Known = dict[_Part, tuple[torch.Tensor, ...]]  # the references of the same inputs, by part


def relative_error(
    op: Op,
    shape: Shape,
    inputs: dict[str, Any],
    out: Any,
    own_random: bool = False,
    known: Known | None = None,
) -> float:
    """Return ‖out − ref‖ / ‖ref‖ against the float64 reference of `op`.

    Of several outputs it is the largest. Along independent dimensions the reference is computed
    part by part, so that it fits; `known` keeps it for the next call. An output that draws its own
    random numbers (`own_random`) is held against the nearer of the two outcomes of each element,
    and the share that is kept against the probability; where no outcomes are known the caller gives
    inputs and outputs at the probability 0. NotFiniteError if an output is not finite everywhere.
    """
    outs = as_tuple(out)
    if len(outs) != len(op.outputs):
        raise ValueError(f"there are {len(outs)} outputs, the reference has {len(op.outputs)}")
    if sum(one.numel() for one in outs) > MOST_KEPT:
        known = None
    told = [
        _Distance("the output" if len(outs) == 1 else f"output {number}")
        for number in range(1, len(outs) + 1)
    ]
    drawn, outcomes = _Kept(), op.random.outcomes if own_random and op.random else None
    for part in _parts(op, shape):
        got = [part.of(one, dims) for one, dims in zip(outs, op.outputs.values(), strict=True)]
        given = _inputs_of(op, part, inputs)
        references: tuple[torch.Tensor, ...]
        if outcomes is not None and op.random is not None:
            given.pop("first_row")
            kept, dropped = outcomes(**given)
            decided = got[op.random.place]
            near = drawn.nearest(decided, kept, dropped) if decided.shape == kept.shape else kept
            more = op.random.outputs
            references = (near,) if more is None else more(near, **given)
        elif known is not None and part in known:
            references = known[part]
        else:
            references = as_tuple(op.reference(**given))
            if known is not None:
                known[part] = references
        for distance, one, reference in zip(told, got, references, strict=True):
            distance.add(one, reference)
    error = max(distance.relative() for distance in told)
    if outcomes is not None and op.random is not None:
        drawn.check(inputs[op.random.probability])
    return error


def gradient_errors(
    op: Op,
    shape: Shape,
    inputs: dict[str, Any],
    upstream: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
) -> dict[str, float]:
    """Return the relative error of each gradient, against autograd through the reference.

    `upstream` are the gradients of the outputs, `gradients` those of the inputs that get one. A
    gradient along an independent dimension, like x's along its rows, is compared part by part; one
    that every part adds to, like a weight's, is added up over them in float64. NotFiniteError if
    one is not finite.
    """
    names = differentiated(op, inputs)
    got = dict(zip(names, gradients, strict=True))
    told = {name: _Distance(f"the gradient of {name!r}") for name in names}
    sums: dict[str, torch.Tensor] = {}
    for part in _parts(op, shape):
        wide = {name: _widened(value) for name, value in _inputs_of(op, part, inputs).items()}
        above = [
            part.of(one, dims).double()
            for one, dims in zip(upstream, op.outputs.values(), strict=True)
        ]
        call = back(op, op.reference, wide, lambda _, above=above: above)  # type: ignore[misc]
        for name, reference in zip(names, call(), strict=True):
            dims = op.tensors[name]
            if part.along and all(letter in dims for letter, _, _ in part.along):
                told[name].add(part.of(got[name], dims), reference)
                continue
            if name not in sums:
                sums[name] = torch.zeros_like(inputs[name], dtype=torch.float64)
            part.of(sums[name], dims).add_(reference)
    for name, total in sums.items():
        told[name].add(got[name], total)
    return {name: distance.relative() for name, distance in told.items()}


def finite(outputs: Iterable[torch.Tensor]) -> None:
    """NotFiniteError if one of the outputs holds NaN or infinity."""
    for number, one in enumerate(outputs, 1):
        if not bool(one.isfinite().all()):
            raise NotFiniteError(
                f"output {number} holds NaN or infinity, or was not written everywhere"
            )


def _widened(value: Any) -> Any:
    real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if real else value


def poisoned(call: Callable[[], Any], sizes: Iterable[int], device: torch.device) -> Any:
    """Return `call()` after filling free memory with NaN, so that an unwritten element shows.

    The allocator hands a block that was just freed to the next request of its size: `sizes` are
    the bytes of the outputs.
    """
    blocks = [
        torch.full((max(1, nbytes // 4),), math.nan, device=device)
        for nbytes in sizes
        for _ in range(2)
    ]
    del blocks
    return call()
