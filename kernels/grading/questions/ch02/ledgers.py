"""02.4: what fusing some steps of a chain would save, read off the chain's ledger."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kernels.grading.checks import call
from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.wrong_models import whole_number
from kernels.lab.counting import aten
from kernels.lab.counting.ledger import Ledger, Step
from kernels.ops.norms.layernorm import eager
from kernels.registry import DTYPES, dtype_name

Tensor = torch.Tensor


@dataclass(frozen=True)
class Group:
    """Steps `first` to `last` of a ledger, and the names of the tensors its caller keeps."""

    ledger: Ledger
    first: int
    last: int
    keeps: tuple[str, ...]
    chain: str

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps to fuse."""
        return self.ledger.steps[self.first : self.last + 1]

    @property
    def before(self) -> int:
        """The bytes that the steps move one by one."""
        return sum(step.bytes_unique for step in self.steps)

    @property
    def written(self) -> dict[str, int]:
        """The bytes of each tensor that the group makes."""
        made = [t for step in self.steps for t in step.tensors if t.write_unique]
        return {t.tensor: t.write_unique for t in made}

    @property
    def inputs(self) -> dict[str, int]:
        """The bytes of each tensor that the group reads and does not make."""
        read = [t for step in self.steps for t in step.tensors if t.read_unique]
        return {t.tensor: t.read_unique for t in read if t.tensor not in self.written}

    @property
    def read_later(self) -> set[str]:
        """The names of what the steps behind the group read."""
        later = self.ledger.steps[self.last + 1 :]
        return {t.tensor for step in later for t in step.tensors if t.read_unique}

    def after(self, needed: set[str]) -> int:
        """The bytes of one launch that reads each input once and writes the tensors `needed`."""
        stored = sum(size for name, size in self.written.items() if name in needed)
        return sum(self.inputs.values()) + stored

    def rereads(self, names: set[str]) -> int:
        """The bytes that the group's steps read of the tensors called so, all reads together."""
        read = [t for step in self.steps for t in step.tensors if t.tensor in names]
        return sum(t.read_unique for t in read)


def saved(group: Group) -> int:
    """Return the bytes that one launch in place of the group's steps saves."""
    return group.before - group.after(group.read_later | set(group.keeps))


def _gone(group: Group) -> set[str]:
    return set(group.written) - group.read_later - set(group.keeps)


def _without_last(group: Group) -> int:
    shorter = Group(group.ledger, group.first, group.last - 1, group.keeps, group.chain)
    return saved(shorter) if group.last > group.first else 0


def _up_to_last(group: Group) -> int:
    """As if the steps ended before `last`, and what is read later began behind it."""
    shorter = Group(group.ledger, group.first, group.last - 1, group.keeps, group.chain)
    return shorter.before - shorter.after(group.read_later | set(group.keeps))


_Faults = tuple[tuple[str, Callable[[Group], int]], ...]
_FAULTS: _Faults = (
    (
        "That is what the one launch moves, not what it saves.",
        lambda g: g.after(g.read_later | set(g.keeps)),
    ),
    (
        "The last step is left out: the group goes from first to last, both included.",
        _without_last,
    ),
    (
        "The last step is left out: the group goes from first to last, both included.",
        _up_to_last,
    ),
    (
        "The reads of the tensors that disappear are counted, their writes are not.",
        lambda g: saved(g) - sum(g.written[name] for name in _gone(g)),
    ),
    (
        "The writes of the tensors that disappear are counted, their reads are not.",
        lambda g: saved(g) - g.rereads(_gone(g)),
    ),
    (
        "A tensor that a step behind the group reads has to be stored all the same. It counts as "
        "gone in your answer.",
        lambda g: g.before - g.after(set(g.keeps)),
    ),
    (
        "A tensor that the caller keeps has to be stored all the same. It counts as gone in your "
        "answer.",
        lambda g: g.before - g.after(g.read_later),
    ),
    (
        "A tensor that is kept, or read behind the group, has to be stored all the same. Every "
        "tensor that the group makes counts as gone in your answer.",
        lambda g: g.before - g.after(set()),
    ),
    (
        "The tensor of the last step alone is written in your count. A tensor made inside the "
        "group is written too, if a later step or the caller needs it.",
        lambda g: g.before - g.after({_made(g.steps[-1])}),
    ),
    (
        "An input that several steps of the group read is read once by one launch: the other reads "
        "are saved too.",
        lambda g: saved(g) - g.rereads(set(g.inputs)) + sum(g.inputs.values()),
    ),
    (
        "A tensor that has to be stored is still in registers for the steps of the group: reading "
        "it there is saved.",
        lambda g: saved(g) - g.rereads(set(g.written) - _gone(g)),
    ),
    (
        "Only the tensors that disappear are counted. Inputs that several steps read, and tensors "
        "that are stored and read again in the group, save reads too.",
        lambda g: sum(g.written[name] for name in _gone(g)) + g.rereads(_gone(g)),
    ),
    (
        "Only the reads of what the group makes are counted. The write of a tensor that nobody "
        "needs afterwards is saved too, and so are the second reads of an input.",
        lambda g: g.rereads(set(g.written)),
    ),
    (
        "All reads and writes of what the group makes are counted. A tensor that a later step "
        "reads, or that the caller keeps, is still written.",
        lambda g: sum(g.written.values()) + g.rereads(set(g.written)),
    ),
)


def _add_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return eager(x + residual, weight, bias)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    x32 = x.float()
    inv_rms = torch.rsqrt((x32 * x32).mean(-1, keepdim=True) + 1e-6)
    return (x32 * inv_rms * weight).to(x.dtype)


def _softmax(x: Tensor) -> Tensor:
    x32 = x.float()
    e = torch.exp(x32 - x32.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def _norm_silu(x: Tensor, weight: Tensor, bias: Tensor, gate: Tensor) -> Tensor:
    y = eager(x, weight, bias)
    return torch.sigmoid(y) * y * gate


def _ledgers(rng: random.Random) -> Iterator[tuple[str, Ledger, tuple[str, ...]]]:
    """Ledgers of chains at random sizes, each with what its caller keeps."""
    names = list(DTYPES)
    rng.shuffle(names)
    chains: tuple[tuple[str, Callable[..., Tensor], int, int, bool], ...] = (
        ("softmax", _softmax, 1, 0, False),
        ("RMSNorm", _rms_norm, 1, 1, False),
        ("LayerNorm", eager, 1, 2, False),
        ("residual + LayerNorm", _add_norm, 2, 2, False),
        ("residual + LayerNorm, the sum kept", _add_norm, 2, 2, True),
        ("LayerNorm, SiLU, gate", _norm_silu, 1, 3, False),
    )
    for number, (what, chain, large, small, first_kept) in enumerate(chains):
        dtype = DTYPES[names[number % len(names)]]
        rows, cols = rng.randrange(50, 900), rng.randrange(20, 2000)
        tensors = [torch.empty(rows, cols, dtype=dtype, device="meta") for _ in range(large)]
        tensors += [torch.empty(cols, dtype=dtype, device="meta") for _ in range(small)]
        ledger = aten.count(chain, *tensors)
        keeps = (_made(ledger.steps[-1]), *([_made(ledger.steps[0])] if first_kept else []))
        yield f"{what}, {rows}×{cols} in {dtype_name(dtype)}", ledger, keeps


def _made(step: Step) -> str:
    return next(t.tensor for t in step.tensors if t.write_unique)


def _groups(rng: random.Random) -> list[Group]:
    """Every group of neighbouring steps of some chains, short ones first."""
    groups = [
        Group(ledger, first, last, keeps, chain)
        for chain, ledger, keeps in _ledgers(rng)
        for last in range(len(ledger.steps))
        for first in range(last + 1)
    ]
    return sorted(groups, key=lambda group: group.last - group.first)


def _diagnosis(groups: Sequence[Group], told: Sequence[int]) -> str:
    """The fault that gives all the numbers that were told, or "" if none does."""
    for what, fault in _FAULTS:
        if all(fault(group) == number for group, number in zip(groups, told, strict=True)):
            return what
    return ""


def grade_saved(attempt: Attempt) -> None:
    """Grade `saved(ledger, first, last, keeps)` on every group of steps of six chains."""
    groups = _groups(random.Random(attempt.seed))
    told = []
    for group in groups:
        args = (group.ledger, group.first, group.last, group.keeps)
        number = call(attempt, *args)
        asked = f"{attempt.name}(ledger, {group.first}, {group.last}, {group.keeps})"
        told.append(whole_number(number, f"{asked} on {group.chain},", "the bytes saved"))
    wrong = [place for place, group in enumerate(groups) if told[place] != saved(group)]
    if wrong:
        group, number = groups[wrong[0]], told[wrong[0]]
        names = ", ".join(step.name for step in group.steps)
        right = saved(group)
        why = (
            f"fusing {names} takes {group.before:,} bytes down to {group.before - right:,} and "
            f"saves {right:,}"
            if len(group.steps) > 1
            else f"{names} alone saves 0"
        )
        raise Wrong(
            f"{attempt.name}(ledger, {group.first}, {group.last}, {group.keeps}) is {number:,} for "
            f"{group.chain}; {why}. {len(wrong)} of {len(groups)} groups are wrong.",
            _diagnosis(groups, told),
        )
    attempt.held.append(f"right on {len(groups)} groups of steps of six chains")
