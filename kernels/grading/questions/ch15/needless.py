"""15.2: which tensors a backward was kept for nothing, found out by changing what was kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kernels.grading.checks import call
from kernels.grading.question import Attempt, NotAnswered, Wrong
from kernels.grading.questions.kits.numbers import kind
from kernels.grading.questions.kits.wrong_models import Tensor, drawn

Saved = dict[str, Tensor]
Back = Callable[[Saved, Tensor], tuple[Tensor, ...]]
_MOST = 8
_EPS = 1e-5


class Kept:
    """A layer whose forward is over: what it kept, and its backward.

    `saved` maps names to tensors in float64, masks to bool. `backward(saved)` takes such a dict and
    returns a tuple of gradients; ValueError if a name, a shape or a dtype is another.
    """

    def __init__(self, saved: Saved, dy: Tensor, back: Back) -> None:
        self.saved = saved
        self.calls: list[str] = []
        shapes = {name: (t.shape, t.dtype) for name, t in saved.items()}

        def backward(saved: Saved) -> tuple[Tensor, ...]:
            if type(saved) is not dict or set(saved) != set(shapes):
                raise ValueError(f"saved takes a dict of {', '.join(shapes)}")
            for name, one in saved.items():
                if type(one) is not torch.Tensor or (one.shape, one.dtype) != shapes[name]:
                    raise ValueError(f"{name} takes a tensor of the shape and dtype it was kept in")
            self.calls.append("backward")
            return back({name: t.detach().clone() for name, t in saved.items()}, dy)

        self.backward = backward


class Kind(NamedTuple):
    """How to make a layer, what it keeps for nothing, and what reads the rest."""

    made: Callable[[random.Random], tuple[Saved, Tensor, Back]]
    needless: frozenset[str]
    means: str


def _shape(rng: random.Random) -> tuple[int, int]:
    return rng.randrange(3, 7), rng.randrange(4, 9)


def _some(rng: random.Random, *shape: int) -> Tensor:
    return drawn(rng, shape, torch.float64)


def _layer_norm(rng: random.Random) -> tuple[Saved, Tensor, Back]:
    rows, cols = _shape(rng)
    x = _some(rng, rows, cols)
    x = x - x.mean(-1, keepdim=True)  # a mean of 0 and a fresh weight hide what reads them
    mean, weight = torch.zeros(rows, 1).double(), torch.ones(cols).double()
    inv_std = torch.rsqrt((x**2).mean(-1, keepdim=True) + _EPS)
    saved = {"x": x, "y": x * inv_std, "weight": weight, "mean": mean, "inv_std": inv_std}

    def back(s: Saved, dy: Tensor) -> tuple[Tensor, ...]:
        x_hat, g = (s["x"] - s["mean"]) * s["inv_std"], dy * s["weight"]
        along = (g * x_hat).mean(-1, keepdim=True)
        dx = (g - g.mean(-1, keepdim=True) - x_hat * along) * s["inv_std"]
        return dx, (dy * x_hat).sum(0), dy.sum(0)

    return saved, _some(rng, rows, cols), back


def _gelu(rng: random.Random) -> tuple[Saved, Tensor, Back]:
    u = _some(rng, *_shape(rng))
    saved = {"u": u, "a": torch.nn.functional.gelu(u)}

    def back(s: Saved, dy: Tensor) -> tuple[Tensor, ...]:
        return (torch.ops.aten.gelu_backward(dy, s["u"]),)

    return saved, _some(rng, *u.shape), back


def _product(frozen: str) -> Callable[[random.Random], tuple[Saved, Tensor, Back]]:
    def made(rng: random.Random) -> tuple[Saved, Tensor, Back]:
        (rows, cols), width = _shape(rng), rng.randrange(3, 7)
        x, weight = _some(rng, rows, cols), _some(rng, width, cols)

        def back(s: Saved, dy: Tensor) -> tuple[Tensor, ...]:
            dx, dweight = dy @ s["weight"], dy.T @ s["x"]
            return {"": (dx, dweight), "weight": (dx,), "x": (dweight,)}[frozen]

        return {"x": x, "weight": weight}, _some(rng, rows, width), back

    return made


def _dropout_add(rng: random.Random) -> tuple[Saved, Tensor, Back]:
    rows, cols = _shape(rng)
    keep = torch.ones(rows, cols, dtype=torch.bool)  # nothing was dropped, as it may happen
    saved = {"x": _some(rng, rows, cols), "residual": _some(rng, rows, cols), "keep": keep}

    def back(s: Saved, dy: Tensor) -> tuple[Tensor, ...]:
        return dy, torch.where(s["keep"], dy / 0.75, 0.0)

    return saved, _some(rng, rows, cols), back


def _relu_dropout(rng: random.Random) -> tuple[Saved, Tensor, Back]:
    rows, cols = _shape(rng)
    u, keep = _some(rng, rows, cols), _some(rng, rows, cols) > -0.5
    u[0, 0], keep[0, 0] = 1.0, True
    a = torch.where(keep, u.relu() / 0.75, 0.0)

    def back(s: Saved, dy: Tensor) -> tuple[Tensor, ...]:
        return (torch.where(s["a"] > 0, dy / 0.75, 0.0),)

    return {"u": u, "keep": keep, "a": a}, _some(rng, rows, cols), back


def _softmax(rng: random.Random) -> tuple[Saved, Tensor, Back]:
    s = _some(rng, *_shape(rng))

    def back(saved: Saved, dy: Tensor) -> tuple[Tensor, ...]:
        p = saved["p"]
        return (p * (dy - (p * dy).sum(-1, keepdim=True)),)

    return {"s": s, "p": torch.softmax(s, -1)}, _some(rng, *s.shape), back


def _gate(rng: random.Random) -> tuple[Saved, Tensor, Back]:
    shape = _shape(rng)
    saved = {"a": _some(rng, *shape), "b": torch.ones(shape).double()}

    def back(s: Saved, dy: Tensor) -> tuple[Tensor, ...]:
        return dy * s["b"], dy * s["a"]

    return saved, _some(rng, *shape), back


_EACH = "Change one tensor at a time, all of its numbers, and compare every gradient of the tuple."
KINDS: dict[str, Kind] = {
    "LayerNorm": Kind(
        _layer_norm,
        frozenset("y"),
        "It is a LayerNorm, whose mean is 0 and whose weight is 1 here. 0 and 1 in their places "
        "change nothing; nan does, in whatever reads them.",
    ),
    "GELU": Kind(_gelu, frozenset("a"), "GELU's slope is a function of u alone."),
    "product": Kind(
        _product(""),
        frozenset(),
        "It is a product: dx is made of weight, and dweight of x. Each gradient of the tuple "
        "counts.",
    ),
    "frozen product": Kind(
        _product("weight"),
        frozenset("x"),
        "It is a product whose weight is frozen: x is read for dweight alone, which nobody wants.",
    ),
    "first product": Kind(
        _product("x"),
        frozenset(("weight",)),
        "It is a product whose x takes no gradient, as a model's input: weight is read for dx "
        "alone.",
    ),
    "dropout and residual": Kind(
        _dropout_add,
        frozenset(("x", "residual")),
        "It is a dropout and a residual: a sum's backward reads no number of the sum. The mask is "
        "read, though it is True everywhere here, and nan is True as well: turn it with ~.",
    ),
    "ReLU and dropout": Kind(
        _relu_dropout,
        frozenset(("u", "keep")),
        "It is ReLU and dropout: a is above 0 just where u was and the mask kept it, so the "
        "backward asks a alone.",
    ),
    "softmax": Kind(_softmax, frozenset("s"), "A softmax goes back from p: it reads no score."),
    "gate": Kind(
        _gate,
        frozenset(),
        "It is a product of two, element by element: each factor is the other's slope. One of "
        "them is 1 everywhere here, so put nan in its place, and no 1.",
    ),
}


def _made(name: str, rng: random.Random) -> Kept:
    saved, dy, back = KINDS[name].made(rng)
    names = rng.sample(list(saved), len(saved))
    return Kept({one: saved[one] for one in names}, dy, back)


def kept_ward(seed: int) -> list[Kept]:
    """Return a layer of each kind, in random order."""
    rng = random.Random(seed)
    return [_made(name, rng) for name in rng.sample(list(KINDS), len(KINDS))]


def _names(value: Any, attempt: Attempt, saved: Saved) -> frozenset[str]:
    if value is None or value is ...:
        raise NotAnswered
    if type(value) not in (set, frozenset, list, tuple):
        raise Wrong(f"{attempt.name} returned {kind(value)}; it takes the set of names.")
    if any(type(one) is not str or one not in saved for one in value):
        raise Wrong(
            f"{attempt.name} returned something that is no name of layer.saved, which has "
            f"{', '.join(saved)}."
        )
    return frozenset(value)


def grade_needless(attempt: Attempt) -> None:
    """Grade `kept_for_nothing(layer)` on a layer of each kind, and on some of them once more."""
    rng = random.Random(attempt.seed)
    beds = [*KINDS, *rng.sample(list(KINDS), 3)]
    rng.shuffle(beds)
    for name in beds:
        layer = _made(name, rng)
        before = {one: t.clone() for one, t in layer.saved.items()}
        told = _names(call(attempt, layer), attempt, before)
        right = KINDS[name].needless
        if len(layer.calls) > _MOST:
            raise Wrong(
                f"{attempt.name} made {len(layer.calls)} calls on one layer; {_MOST} will do.",
                "One call as it is, and one for each tensor.",
            )
        if told != right:
            listed = " and ".join(sorted(told)) or "nothing"
            wanted = " and ".join(sorted(right)) or "nothing"
            raise Wrong(
                f"{attempt.name} says that {listed} {'were' if len(told) > 1 else 'was'} kept for "
                "nothing, of a layer that kept "
                f"{', '.join(before)}; it is {wanted}.",
                f"{KINDS[name].means} {_EACH}",
            )
    attempt.held.append(f"what {len(beds)} layers kept for nothing, by experiments alone")
