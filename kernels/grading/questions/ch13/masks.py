"""13.9: eight layers with dropout on their weights, and what is wrong with the backward of each."""

from __future__ import annotations

import random
from typing import Any

import torch

from kernels.grading.question import Attempt
from kernels.grading.questions.kits.experiments import grade_verdicts
from kernels.grading.questions.kits.wrong_models import Tensor
from kernels.philox import keeps, scale

VERDICTS = (
    "another offset",
    "turned index",
    "unpadded rows",
    "dv undropped",
    "dp undropped",
    "dp unscaled",
    "dp of p",
    "nothing",
)
P = 0.25
_MOST = 8
_EDGE = 32


class Dropped:
    """o = dropout(p) · v in float64, forward and back; its backward may have a fault.

    p: (M, N), the weights. v: (N, d). do: (M, d). Each size is from 1 to 32, and each a tensor of
    floating numbers; ValueError names what it got instead. A quarter of the weights are dropped,
    the same ones at each call: element (i, j) has the index i · N8 + j, N8 being N rounded up to 8.
    """

    def __init__(self, fault: str, seed: int) -> None:
        self._fault = fault
        self._seed = seed
        self.calls: list[str] = []

    def forward(self, p: Tensor, v: Tensor) -> Tensor:
        """Return o (M, d)."""
        p, v = _matrix(p, "p"), _matrix(v, "v")
        _agree("v", v, (p.shape[1], v.shape[1]))
        self.calls.append(f"forward with p {tuple(p.shape)}")
        return p * self._factor(p.shape[0], p.shape[1]) @ v

    def backward(self, p: Tensor, v: Tensor, do: Tensor) -> tuple[Tensor, Tensor]:
        """Return (dp, dv), of the shapes of p and v."""
        p, v, do = _matrix(p, "p"), _matrix(v, "v"), _matrix(do, "do")
        _agree("v", v, (p.shape[1], v.shape[1]))
        _agree("do", do, (p.shape[0], v.shape[1]))
        self.calls.append(f"backward with p {tuple(p.shape)}")
        m, n = p.shape
        factor = self._factor(m, n)
        if self._fault == "another offset":
            factor = self._factor(m, n, offset=1)
        if self._fault == "turned index":
            factor = self._factor(n, m).T
        if self._fault == "unpadded rows":
            factor = self._drawn((m, n), 0)
        dp, dv = do @ v.T * factor, (p * factor).T @ do
        if self._fault == "dv undropped":
            dv = p.T @ do
        if self._fault == "dp undropped":
            dp = do @ v.T
        if self._fault == "dp unscaled":
            dp = dp / scale(P)
        if self._fault == "dp of p":
            dp = dp * p
        return dp, dv

    def _factor(self, m: int, n: int, offset: int = 0) -> Tensor:
        """What each weight is multiplied by, (m, n): 0, or the scale of what is kept."""
        return self._drawn((m, -(-n // 8) * 8), offset)[:, :n]

    def _drawn(self, shape: tuple[int, int], offset: int) -> Tensor:
        return torch.from_numpy(keeps(shape, P, self._seed, offset)).double() * scale(P)


def _matrix(value: Any, name: str) -> Tensor:
    if type(value) is not torch.Tensor or not value.is_floating_point() or value.dim() != 2:
        raise ValueError(f"{name} takes a tensor of floating numbers with two axes")
    if not all(1 <= size <= _EDGE for size in value.shape):
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; each size is 1 to {_EDGE}")
    return value.detach().double()


def _agree(name: str, value: Tensor, shape: tuple[int, int]) -> None:
    if tuple(value.shape) != shape:
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; it takes {shape} here")


def dropped_ward(seed: int) -> list[Dropped]:
    """Return a layer with each fault and one with none, in random order."""
    rng = random.Random(seed)
    return [Dropped(fault, rng.getrandbits(40)) for fault in rng.sample(VERDICTS, len(VERDICTS))]


_MASK = (
    "With p, v and do all 1 and d = 1, dp is the backward's own mask, times the scale; forward "
    "with v = torch.eye(N) gives forward's."
)
_TELLS = {
    "another offset": f"{_MASK} The two are different, however you turn them.",
    "turned index": f"{_MASK} Of 8 × 8 weights, one is the other's transpose.",
    "unpadded rows": "It is right wherever N is a multiple of 8: rows of the mask begin at "
    "multiples of 8 in forward. Try 7 keys and more than one query.",
    "dv undropped": "dp is right, and dv is pᵀ · do with all of p: with p of ones and do of ones, "
    "all of dv are alike.",
    "dp undropped": "dv is right, and dp is do · vᵀ: it has no zeros where forward dropped.",
    "dp unscaled": "dv is right, and dp has its zeros where they belong; what is kept lacks the "
    "scale, 1 / (1 - 0.25).",
    "dp of p": "dv is right, and dp is right where p is 1: it has p as a factor. Take a p that is "
    "not 1.",
    "nothing": "It is right whatever it is given: its masks are those of its forward, in both "
    "gradients.",
}
_OTHER_MASK = "Both draw another mask than forward. Of 8 × 8 weights, is it forward's transpose?"
_RAGGED = (
    "Both may look right. Where N is no multiple of 8 rows of the mask begin elsewhere: try 7 keys "
    "and more than one query."
)
_PAIRS = {
    frozenset(("another offset", "turned index")): _OTHER_MASK,
    frozenset(("another offset", "unpadded rows")): "Both draw another mask than forward. With N a "
    "multiple of 8, one of them doesn't.",
    frozenset(("turned index", "unpadded rows")): "Both draw another mask than forward. With N a "
    "multiple of 8, one of them doesn't.",
    frozenset(("unpadded rows", "nothing")): _RAGGED,
    frozenset(("dp undropped", "dp unscaled")): "Both lack the scale in dp. Does dp have zeros?",
    frozenset(("dp of p", "nothing")): "With p of ones a factor p does nothing. Take another p.",
}


def grade_masks(attempt: Attempt) -> None:
    """Grade `dropout_fault(layer)` on each layer, and on some of them once more."""

    def made(fault: str, rng: random.Random) -> Dropped:
        return Dropped(fault, rng.getrandbits(40))

    grade_verdicts(attempt, VERDICTS, made, _MOST, _TELLS, _PAIRS)
