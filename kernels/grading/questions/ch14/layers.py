"""The layer of set 14, launch by launch: which tensors each launch reads, and which one it writes.

`OPERATORS` is a pre-LN layer by operators one after the other, `FUSED` the same with everything
fused that the chapter fuses; the two of `POST` are a post-LN layer. Biases, weights and masks are
left out. A tensor's width is told in multiples of E and of I: numbers a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """A launch: what it does, the tensors it reads, the tensor it writes."""

    does: str
    reads: tuple[str, ...]
    writes: str


Steps = tuple[Step, ...]

OPERATORS: Steps = (
    Step("norm", ("x",), "n"),
    Step("product", ("n",), "qkv"),
    Step("copy", ("qkv",), "heads"),
    Step("attention", ("heads",), "o_heads"),
    Step("copy", ("o_heads",), "o"),
    Step("product", ("o",), "a"),
    Step("add", ("x", "a"), "h"),
    Step("norm", ("h",), "m"),
    Step("product", ("m",), "u"),
    Step("GELU", ("u",), "g"),
    Step("product", ("g",), "z"),
    Step("add", ("h", "z"), "y"),
)
FUSED: Steps = (
    Step("norm", ("x",), "n"),
    Step("product", ("n",), "qkv"),
    Step("attention", ("qkv",), "o"),
    Step("product + residual", ("o", "x"), "h"),
    Step("norm", ("h",), "m"),
    Step("product + GELU", ("m",), "g"),
    Step("product + residual", ("g", "h"), "y"),
)
OPERATORS_POST: Steps = (
    Step("product", ("x",), "qkv"),
    Step("copy", ("qkv",), "heads"),
    Step("attention", ("heads",), "o_heads"),
    Step("copy", ("o_heads",), "o"),
    Step("product", ("o",), "a"),
    Step("add", ("x", "a"), "s"),
    Step("norm", ("s",), "h"),
    Step("product", ("h",), "u"),
    Step("GELU", ("u",), "g"),
    Step("product", ("g",), "z"),
    Step("add", ("h", "z"), "t"),
    Step("norm", ("t",), "y"),
)
FUSED_POST: Steps = (
    Step("product", ("x",), "qkv"),
    Step("attention", ("qkv",), "o"),
    Step("product + residual", ("o", "x"), "s"),
    Step("norm", ("s",), "h"),
    Step("product + GELU", ("h",), "g"),
    Step("product + residual", ("g", "h"), "t"),
    Step("norm", ("t",), "y"),
)
# Both norms inside of the products behind them, as on cards where that is one launch.
FOLDED: Steps = (
    Step("norm + product", ("x",), "qkv"),
    Step("attention", ("qkv",), "o"),
    Step("product + residual", ("o", "x"), "h"),
    Step("norm + product + GELU", ("h",), "g"),
    Step("product + residual", ("g", "h"), "y"),
)

_WIDE: Mapping[str, tuple[int, int]] = {
    "qkv": (3, 0),
    "heads": (3, 0),
    "u": (0, 1),
    "g": (0, 1),
}


def width(name: str) -> tuple[int, int]:
    """A tensor's numbers a token, as multiples of E and of I."""
    return _WIDE.get(name, (1, 0))


def numbers(name: str, e: int, i: int) -> int:
    """A tensor's numbers a token."""
    of_e, of_i = width(name)
    return of_e * e + of_i * i


def moved(steps: Sequence[Step]) -> tuple[int, int]:
    """Numbers a token that all launches read and write, as multiples of E and of I."""
    names = [name for step in steps for name in (*step.reads, step.writes)]
    of_e, of_i = zip(*(width(name) for name in names), strict=True)
    return sum(of_e), sum(of_i)


def alive(steps: Sequence[Step], kept: Sequence[str] = ("x",)) -> list[set[str]]:
    """The tensors that live during each launch, without those `kept` elsewhere.

    One lives from the launch that writes it to the last that reads it, the last one written to the
    end.
    """
    written = {step.writes: at for at, step in enumerate(steps)}
    last = dict(written)
    for at, step in enumerate(steps):
        last |= dict.fromkeys(step.reads, at)
    return [
        {name for name, since in written.items() if since <= at <= last[name] and name not in kept}
        for at in range(len(steps))
    ]
