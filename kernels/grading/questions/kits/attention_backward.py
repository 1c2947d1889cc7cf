"""What questions about attention's backward share: calls, gradients in float64, wrong ones.

q, k, v, do (heads, N, d) lie row by row, in one dtype; lse and delta (heads, N) are fp32; causal:

    s = q · kᵀ / √d,   p = exp(s − lse) where key ≤ query, else 0,   dp = do · vᵀ
    ds = p ∘ (dp − delta),   dq = ds · k / √d,   dk = dsᵀ · q / √d,   dv = pᵀ · do
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch

from kernels.grading.cases import Case
from kernels.grading.questions.kits.attention import (
    HIGH,
    AttentionCase,
    attended,
    attention_inputs,
    scores,
)
from kernels.grading.questions.kits.wrong_models import Tensor, drawn
from kernels.registry import Tolerance

BLOCKS = (16, 32, 64, 128)
OUTPUTS = ("dq", "dk", "dv")
# Heads, N, d, dtype, what is special: whole tiles, ragged ones, one query, large scores.
PLAN: tuple[tuple[int, int, int, str, str], ...] = (
    (2, 33, 16, "fp16", ""),
    (1, 64, 64, "fp32", ""),
    (1, 70, 64, "fp16", ""),
    (2, 40, 32, "bf16", ""),
    (2, 1, 16, "fp32", ""),
    (1, 40, 16, "fp32", HIGH),
)
TOO_LARGE = (
    "It is right for moderate scores. Where they are near 140, exp(s) is infinite in fp32: take L "
    "away before the exponential, exp(s - L), and never exp(s) / exp(L)."
)


class Parts(NamedTuple):
    """The tiles that a backward goes through, (heads, N, N) in float64, and what they multiply."""

    q: Tensor
    k: Tensor
    do: Tensor
    p: Tensor
    ds: Tensor
    scale: float

    def dq(self) -> Tensor:
        """Return the gradient of q."""
        return self.ds @ self.k * self.scale

    def dk(self) -> Tensor:
        """Return the gradient of k."""
        return self.ds.mT @ self.q * self.scale

    def dv(self) -> Tensor:
        """Return the gradient of v."""
        return self.p.mT @ self.do


def below(n: int, first: int = 0) -> Tensor:
    """Who sees whom, (N, N): query i the keys up to i + first."""
    return torch.arange(n) <= torch.arange(n)[:, None] + first


def parts_of(given: Mapping[str, Tensor], seen: Tensor | None = None) -> Parts:
    """Return the right tiles; with `seen`, those of another mask."""
    q, k, v, do, lse, delta = (
        given[name].double() for name in ("q", "k", "v", "do", "lse", "delta")
    )
    mask = below(q.shape[-2]) if seen is None else seen
    p = torch.exp(scores(q, k) - lse[..., None]).masked_fill(~mask, 0.0)
    ds = p * (do @ v.mT - delta[..., None])
    return Parts(q, k, do, p, ds, q.shape[-1] ** -0.5)


def _near(given: Mapping[str, Tensor], of: str, right: Tensor) -> Tolerance:
    """Tiles rounded to the dtype on their way into a product, scores and sums in fp32."""
    parts, dtype = parts_of(given), given["q"].dtype
    v, delta = given["v"].double(), given["delta"].double()
    if of == "dv":
        rounded = exact = parts.p.mT @ parts.do.abs()
    else:
        # Of ds, what cancels in dp − delta was rounded before.
        whole = parts.p * (parts.do.abs() @ v.abs().mT + delta.abs()[..., None])
        tiles, other = (parts.ds.abs(), parts.k) if of == "dq" else (parts.ds.abs().mT, parts.q)
        rounded = tiles @ other.abs() * parts.scale
        exact = (whole if of == "dq" else whole.mT) @ other.abs() * parts.scale
    top = float(right.abs().max()) or 1.0
    size, sums = (max(1.0, float(one.max()) / top) for one in (rounded, exact))
    largest = float(scores(given["q"], given["k"]).abs().max())
    unit = torch.finfo(dtype).eps / 2
    narrow = unit * (1 + 2 * size) + 2.0**-24 * (16 + 4 * largest) * sums
    return Tolerance(narrow, narrow + unit)


def backward_inputs(
    rng: random.Random, heads: int, n: int, d: int, name: str, trait: str = ""
) -> dict[str, Tensor]:
    """Return q, k, v, do in one dtype, and lse and delta of a causal forward in fp32.

    do has a part along the output, so that delta counts in every row.
    """
    given = attention_inputs(rng, (heads, n, d), n, name, trait)
    s = scores(given["q"], given["k"]).masked_fill(~below(n), -torch.inf)
    o = attended(s, given["v"])
    do = (0.3 + 0.5 * o.float() + drawn(rng, (heads, n, d), torch.float32)).to(given["q"].dtype)
    delta = (o * do.double()).sum(-1)
    return given | {"do": do, "lse": torch.logsumexp(s, -1).float(), "delta": delta.float()}


def backward_cases(seed: int, outputs: tuple[str, ...]) -> list[list[Case]]:
    """The same calls for each of `outputs`, names of gradients, which they are graded by."""
    rng = random.Random(seed)
    plan = [*PLAN, (1, rng.randrange(50, 64), 32, "fp32", "")]
    found: list[list[Case]] = [[] for _ in outputs]
    for heads, n, d, name, trait in plan:
        given = backward_inputs(rng, heads, n, d, name, trait)
        for cases, output in zip(found, outputs, strict=True):
            right = getattr(parts_of(given), output)()
            near = _near(given, output, right)
            cases.append(AttentionCase(given, (), right, near, trait, seen=below(n)))
    return found


UNSCALED = "Scores lack their scale: p is exp(q · k / √d - L)."
ALONE = "p is exp(s) alone: L is taken away first, exp(s - L), and nothing is left to divide."
_SCALE = "The scale is missing from {0}: s is q · k / √d, so what comes back through it is too."
_TWICE = "{0} has the scale twice."
_NO_MASK = "The mask does nothing: p of a key behind the query is exp(s - L) all the same."
_HEAD = (
    "Every head takes lse and delta of the first one: a head's rows begin at head * N in them, "
    "and at head * N * d in the others."
)


def backward_models(of: str) -> Callable[[Case], Iterator[tuple[str, Tensor]]]:
    """Models of one gradient, "dq", "dk" or "dv", with one fault each."""

    def models(case: Case) -> Iterator[tuple[str, Tensor]]:
        given = case.tensors
        right = parts_of(given)
        n, d = right.q.shape[-2:]
        root = d**0.5
        v, lse, delta = (given[name].double() for name in ("v", "lse", "delta"))
        s, dp, column = scores(right.q, right.k), right.do @ v.mT, delta[..., None]

        def made(parts: Parts) -> Tensor:
            value: Tensor = getattr(parts, of)()
            return value

        def of_p(p: Tensor, seen: Tensor | None = None) -> Tensor:
            # What fp32 holds of p, and the dtype of p and ds, may be infinite.
            p = p.float().double().masked_fill(~(below(n) if seen is None else seen), 0.0)
            ds = (p * (dp - column)).float()
            return made(
                right._replace(p=p.to(case.x.dtype).double(), ds=ds.to(case.x.dtype).double())
            )

        def of_ds(ds: Tensor) -> Tensor:
            return made(right._replace(ds=ds))

        if of == "dk":
            yield "dk and dv have changed places: the tuple is (dk, dv).", right.dv()
        if of != "dv":
            yield _SCALE.format(of), made(right) * root
            yield _TWICE.format(of), made(right) / root
            yield (
                "delta is not taken away: ds is p · (dp - delta).",
                of_ds(right.p * dp),
            )
            yield "delta is added: ds is p · (dp - delta).", of_ds(right.p * (dp + column))
            yield (
                "delta is taken from p · dp: ds is p · (dp - delta), the difference first.",
                of_ds((right.p * dp - column).masked_fill(~below(n), 0.0)),
            )
            yield (
                "ds lacks its factor p: it is p · (dp - delta).",
                of_ds((dp - column).masked_fill(~below(n), 0.0)),
            )
            yield (
                "delta is taken away key by key: a row of scores has one delta, its query's.",
                of_ds(right.p * (dp - delta[..., None, :])),
            )
            yield (
                "p stands where ds belongs: the gradient of a score is p · (dp - delta).",
                made(right._replace(ds=right.p)),
            )
            yield "The sign is turned: ds is p · (dp - delta).", -made(right)
        else:
            yield "dv has the scale in it: there is none between p, v and o.", made(right) / root
            yield "dv takes q: it is pᵀ · do.", right.p.mT @ right.q
        yield UNSCALED, of_p(_power(s * root, lse))
        yield "Scores have their scale twice.", of_p(_power(s / root, lse))
        yield ALONE, of_p(torch.exp(s))
        yield (
            "exp is taken to the base 2 of a natural L: exp(s - L), or exp2((s - L) · log2(e)).",
            of_p(torch.exp2(s - lse[..., None])),
        )
        yield (
            "L is taken away key by key: a row of scores has one L, its query's.",
            of_p(_power(s, lse[..., None, :].expand(s.shape))),
        )
        yield "A query doesn't see its own key: keys <= rows.", of_p(_power(s, lse), below(n, -1))
        for walked in _walked(n):
            yield _NO_MASK, of_p(_power(s, lse), walked)
            yield (
                "The mask is the wrong way round: keys <= rows.",
                of_p(_power(s, lse), below(n).T & walked),
            )
            yield (
                "A query sees one key too many: keys <= rows.",
                of_p(_power(s, lse), below(n, 1) & walked),
            )
        first = {name: given[name][:1].expand_as(given[name]) for name in ("lse", "delta")}
        for names in (("lse", "delta"), ("lse",), ("delta",)):
            other = {**given, **{name: first[name] for name in names}}
            yield _HEAD, made(parts_of(other))
            if of != "dv":
                yield f"{_HEAD} And more: {_SCALE.format(of)}", made(parts_of(other)) * root
        yield (
            "Every head takes k and v of the first one: a head's begin at head * N * d.",
            made(parts_of({**given, **{name: given[name][:1].expand_as(given[name])
                                       for name in ("k", "v")}})),
        )  # fmt: skip
        yield from _walks(of, n, right)

    return models


def _walked(n: int) -> Iterator[Tensor]:
    """The pairs that loops go through which stop or begin at the diagonal's tile; then all."""
    rows, keys = torch.arange(n)[:, None], torch.arange(n)[None, :]
    for block in BLOCKS:
        yield keys // block <= rows // block
    yield torch.ones(n, n, dtype=torch.bool)


def _power(s: Tensor, lse: Tensor) -> Tensor:
    return torch.exp(s - (lse if lse.dim() == s.dim() else lse[..., None]))


def _walks(of: str, n: int, right: Parts) -> Iterator[tuple[str, Tensor]]:
    """Loops that leave out tiles: over queries for dk and dv, over keys for dq."""
    rows, keys = torch.arange(n)[:, None], torch.arange(n)[None, :]

    def over(seen: Tensor) -> Tensor:
        return _over(of, right, seen.expand(n, n))

    for block in BLOCKS:
        along, own = (keys, rows) if of == "dq" else (rows, keys)
        what, who = ("keys", "queries") if of == "dq" else ("queries", "keys")
        yield (
            f"The {what} behind the last whole block are missing: the loop goes on to the last "
            "one, and its last block is masked.",
            over(along < n // block * block),
        )
        yield (
            f"The sum is that of one block of {what}: each step adds to what was there.",
            over(
                keys // block == rows // block if of == "dq" else rows >= (n - 1) // block * block
            ),
        )
        yield f"Only the first block of {what} is in the sum.", over(along < block)
        starts = own // block * block
        yield (
            f"The loop over {what} leaves out the tile that holds the diagonal: a tile of {who} "
            + (
                "goes on to min((tile + 1) * BLOCK_M, N)."
                if of == "dq"
                else "begins with the tile that holds its first key's own query."
            ),
            over(keys < starts) if of == "dq" else over(rows >= starts + block),
        )
        # Tiles that no program has: their elements were never stored.
        model = _over(of, right, torch.ones(n, n, dtype=torch.bool))
        model[..., max(block, n // block * block) :, :] = torch.nan
        yield f"The last {who} were never stored: the grid takes triton.cdiv of N.", model


def _over(of: str, right: Parts, seen: Tensor) -> Tensor:
    value: Tensor = getattr(
        right._replace(p=right.p.masked_fill(~seen, 0.0), ds=right.ds.masked_fill(~seen, 0.0)),
        of,
    )()
    return value
