"""14.4: attention of the heads in rows of 3 · E numbers, with padding, by PyTorch's operators."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import torch

from kernels.grading.cases import Case, Run
from kernels.grading.checks import right_everywhere
from kernels.grading.question import Attempt
from kernels.grading.questions.kits.products import ProductCase
from kernels.grading.questions.kits.wrong_models import Tensor, drawn, recognised
from kernels.registry import Tolerance

# Sequences, length, heads, d, how many tokens of each are padding at most.
_PLAN: tuple[tuple[int, int, int, int, int], ...] = (
    (1, 6, 1, 8, 0),
    (2, 5, 3, 4, 0),
    (2, 7, 1, 8, 3),
    (3, 8, 2, 8, 5),
    (2, 9, 4, 4, 4),
)


def _parts(qkv: Tensor, heads: int, layout: str) -> tuple[Tensor, ...]:
    """q, k and v (B, H, S, D), cut out of rows of qkv."""
    if layout == "by head":
        return qkv.unflatten(-1, (heads, 3, -1)).permute(3, 0, 2, 1, 4).unbind(0)
    if layout == "d first":
        return qkv.unflatten(-1, (3, -1, heads)).permute(2, 0, 4, 1, 3).unbind(0)
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    if layout == "tokens as heads":  # (B, S, H, D) read as (B, H, S, D)
        return tuple(one.transpose(1, 2).reshape(one.shape) for one in (q, k, v))
    if layout == "k and v changed":
        return q, v, k
    return q, k, v


def attended(
    qkv: Tensor,
    heads: int,
    padding: Tensor,
    layout: str = "",
    mask: str = "",
    rows: str = "",
    scale: str = "",
) -> Tensor:
    """Attention (B, S, E) in float64 of rows qkv (B, S, 3·E); each name after them is a fault."""
    q, k, v = _parts(qkv.double(), heads, layout)
    by = {"": q.shape[-1] ** -0.5, "missing": 1.0, "of E": (heads * q.shape[-1]) ** -0.5}[scale]
    s = q @ k.transpose(-1, -2) * by
    if mask == "queries":
        hidden = padding[:, None, :, None].expand_as(s)
    else:
        hidden = padding[:, None, None, :].expand_as(s)
    if mask == "turned":
        hidden = ~hidden
    if mask == "queries turned":
        hidden = ~padding[:, None, :, None].expand_as(s)
    if mask == "both":
        hidden = hidden | padding[:, None, :, None]
    if mask == "causal":
        hidden = hidden | torch.ones_like(hidden[0, 0]).triu(1)
    if mask == "none":
        hidden = torch.zeros_like(hidden)
    if mask == "added":  # True is added as 1
        p = torch.softmax(s + hidden, -1)
    elif mask == "zero":
        p = torch.softmax(s.masked_fill(hidden, 0.0), -1)
    else:
        # A query that sees nothing has an output of 0, as PyTorch's attention gives it.
        p = torch.softmax(s.masked_fill(hidden, -torch.inf), -1).nan_to_num(0.0)
    o = p @ v
    shape = (*qkv.shape[:2], -1)
    return o.reshape(shape) if rows == "not turned" else o.transpose(1, 2).reshape(shape)


def _cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    more = (2, rng.randrange(5, 12), rng.randrange(2, 5), 8, 3)
    cases: list[Case] = []
    for n_batch, length, heads, d, most in (*_PLAN, more):
        qkv = drawn(rng, (n_batch, length, 3 * heads * d), torch.float32)
        # The first sequence is whole; each has a token at least. Padding stands behind its tokens.
        spare = [0, *(rng.randrange(1, most + 1) if most else 0 for _ in range(n_batch - 1))]
        padding = torch.arange(length) >= length - torch.tensor(spare)[:, None]
        right = attended(qkv, heads, padding)
        given = {"qkv": qkv, "padding": padding}
        cases.append(ProductCase(given, (heads,), right, Tolerance(4e-6, 8e-6)))
    return cases


_LAYOUTS = {
    "by head": "A row is read as if each head had its queries, keys and values side by side: here "
    "the queries of all heads come first, then all keys, then all values, (3, heads, d).",
    "d first": "A head's d numbers stand side by side: E is (heads, d), and not (d, heads).",
    "tokens as heads": "Rows are (B, S, heads, d): to have heads in front of tokens the axes are "
    "turned, .transpose(1, 2). A view to (B, heads, S, d) takes pieces of other tokens.",
    "k and v changed": "Keys and values have changed places.",
}
_MASKS = {
    "turned": "What is padding is seen, and what is a token isn't: padding is True for what is "
    "hidden, and PyTorch's attn_mask, of bool, is True for what is seen.",
    "queries": "The mask lies along the queries: it is keys that are hidden, from all queries, "
    "padding[:, None, None, :].",
    "queries turned": "The mask lies along the queries and is turned: keys are hidden, from all "
    "queries, and PyTorch's attn_mask is True for what is seen.",
    "none": "Padding is seen: what is True in padding gets no weight.",
    "both": "Padded queries have an output of 0: it is keys that are hidden, and every query is "
    "answered, a padded one too.",
    "causal": "Later keys are hidden as well: only padding is, from every query.",
    "added": "True is added to the scores as 1: what is added is -inf where a key is hidden, or "
    "attn_mask is a bool, True for what is seen.",
    "zero": "A hidden key has the score 0, and exp(0) is no small weight: its score is -inf.",
}
_ROWS = {
    "not turned": "The output is (B, heads, S, d) read as (B, S, E): a token's heads stand side by "
    "side in its row, so the axes are turned back first, .transpose(1, 2).",
}
_SCALES = {
    "missing": "Scores lack their scale, 1 / √d.",
    "of E": "The scale is 1 / √d, of a head's d numbers, and not of all E.",
}


def _told(names: tuple[str, ...]) -> str:
    known = (_LAYOUTS, _MASKS, _ROWS, _SCALES)
    said = [one[name] for one, name in zip(known, names, strict=True) if name]
    return " And more: ".join(said)


def _faults() -> list[tuple[str, ...]]:
    """One fault, or two; and the three of what the page gives out."""
    every = itertools.product(("", *_LAYOUTS), ("", *_MASKS), ("", *_ROWS), ("", *_SCALES))
    few = [names for names in every if 1 <= len(names) - names.count("") <= 2]
    few.sort(key=lambda names: -names.count(""))
    return [*few, ("by head", "turned", "not turned", "")]


def _models(case: Case) -> Iterator[tuple[str, Tensor]]:
    qkv, padding = case.tensors["qkv"], case.tensors["padding"]
    (heads,) = case.options
    for names in _faults():
        y = attended(qkv, heads, padding, *names)
        yield _told(names), y
        if "turned" in names and not bool(padding.all(1).any()):
            # A softmax of nothing but -inf, where nobody made it 0.
            empty = (~padding).all(1)[:, None, None]
            yield _told(names), torch.where(empty, torch.nan, y)


def _explain(runs: list[Run]) -> str:
    return recognised(runs, _models)


def grade_heads(attempt: Attempt) -> None:
    """Grade `attend(qkv, padding, heads)`: attention of heads in rows, padding hidden."""
    right_everywhere(attempt, _cases(attempt.seed), _explain)
