"""Answers to the questions of set 13 that launch nothing: right ones and known-wrong ones."""

import math

import numpy as np
import torch

from kernels.grading.questions.ch13 import adders as designs
from kernels.grading.questions.ch13 import bounds, kept, products


def parts_replaced(right, *parts):
    """The tuple of `right` with some numbers by other functions of the same arguments."""

    def answer(*args):
        told = right(*args)
        return tuple(f(*args) if f else r for f, r in zip(parts, told, strict=True))

    return answer


# 13.1
def score_gradient(p, dp):
    return p * (dp - torch.sum(p * dp, dim=-1, keepdim=True))


def score_gradient_by_product(p, dp):
    """The whole Jacobian of each row."""
    jacobian = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
    return (jacobian @ dp[..., None])[..., 0]


def score_gradient_by_pytorch(p, dp):
    return torch._softmax_backward_data(dp, p, -1, torch.float32)


def gradient_with(fault):
    """A gradient by a function of p, dp and their row's sum of products."""
    return lambda p, dp: fault(p, dp, (p * dp).sum(-1, keepdim=True))


# 13.3
def product_flops(heads, m, n, d, causal):
    pairs = n * (n + 1) // 2 if causal else m * n
    return tuple(2 * d * heads * pairs * count for count in (2, 4, 5, 7))


def product_flops_row_by_row(heads, m, n, d, causal):
    pairs = sum(i + 1 if causal else n for i in range(m))
    one = np.int64(2 * heads * d * pairs)
    return [one + one, 4 * one, one + 4 * one, 3 * one + 4 * one]


def flops_with(forward=None, kept_p=None, one=None, two=None):
    return parts_replaced(product_flops, forward, kept_p, one, two)


def counted(number, pairs=None, factor=2):
    """FLOPs of so many products with other pairs, by a function of (m, n, causal)."""
    pairs = pairs or products.pairs
    return lambda h, m, n, d, c: number * factor * d * h * pairs(m, n, c)


# 13.4
def kept_bytes(*args):
    return kept.three_steps(*args), kept.flash(*args)


def kept_bytes_tensor_by_tensor(batch, heads, kv_heads, n, d, itemsize, dropout):
    def size(of_heads, *shape, item=itemsize):
        return math.prod((batch, of_heads, n, *shape)) * item

    q, k = size(heads, d), size(kv_heads, d)
    in_three_steps = [q, k, k, size(heads, n)]
    in_flash = [q, k, k, q, size(heads, item=4)]
    if dropout:
        in_three_steps += [size(heads, n), size(heads, n, item=1)]
        in_flash += [8, 8]
    return sum(in_three_steps), np.int64(sum(in_flash))


def kept_with(three=None, flash=None):
    return parts_replaced(kept_bytes, three, flash)


# 13.5
def adders(programs, group):
    return designs.adders(programs, group)


def adders_by_pairs(programs, group):
    """Each (tile, program) once, and the tile that is met most often."""
    of_dq = {(h, i, n) for n, tiles in enumerate(programs) for h, i, _ in tiles}
    of_dk = {(h // group, j, n) for n, tiles in enumerate(programs) for h, _, j in tiles}

    def most(pairs):
        places = [place for *place, _ in pairs]
        return max(places.count(place) for place in places)

    return [most(of_dq), most(of_dk)]


def adders_with(of_dq=None, of_dk=None):
    return parts_replaced(adders, of_dq, of_dk)


def visits(of):
    def count(programs, group):
        places = [of(*tile, group) for tiles in programs for tile in tiles]
        return max(places.count(place) for place in places)

    return count


def programs_at(of, choose=max):
    """How many programs add to a tile, the tile by a function of (head, i, j, group)."""

    def count(programs, group):
        found = {}
        for number, tiles in enumerate(programs):
            for tile in tiles:
                found.setdefault(of(*tile, group), set()).add(number)
        return choose([len(numbers) for numbers in found.values()])

    return count


# 13.6
def causal_bounds(*args):
    return tuple(one(*args) for one in bounds.RIGHT)


def causal_bounds_by_search(tile, block_m, block_n, n):
    keys = range(tile * block_n, min((tile + 1) * block_n, n))
    starts = range(0, 2 * n + 2 * block_m, block_m)
    begin = next(s for s in starts if s + block_m > keys[0])
    unmasked = next(s for s in starts if s >= keys[-1])
    rows = range(tile * block_m, min((tile + 1) * block_m, n))
    return begin, unmasked, max(rows) + 1


def bounds_with(begin=None, unmasked=None, end=None):
    return parts_replaced(causal_bounds, begin, unmasked, end)


# 13.9
def dropout_fault_with(mistaken=None):
    """The verdict by experiments of one fault each; `mistaken` maps it to another."""

    def dropout_fault(layer):
        told = _found(layer)
        return (mistaken or {}).get(told, told)

    return dropout_fault


def _ones(*shape):
    return torch.ones(*shape, dtype=torch.float64)


def _found(layer):
    factors = layer.forward(_ones(8, 8), torch.eye(8))
    dp, dv = layer.backward(3 * _ones(8, 8), _ones(8, 1), _ones(8, 1))
    kept_there = factors > 0
    if bool((dp == 1).all()):
        return "dp undropped"
    if torch.equal(dp, kept_there.double()):
        return "dp unscaled"
    if torch.allclose(dp, 3 * factors):
        return "dp of p"
    if torch.equal(dp > 0, kept_there.T):
        return "turned index"
    if not torch.allclose(dp, factors):
        return "another offset"
    if bool((dv == 24).all()):
        return "dv undropped"
    factors = layer.forward(_ones(8, 7), torch.eye(7))
    dp, _ = layer.backward(_ones(8, 7), _ones(7, 1), _ones(8, 1))
    return "nothing" if torch.allclose(dp, factors) else "unpadded rows"


def dropout_fault_by_formula(layer):
    """From three queries and 11 keys: dp and dv by a plain formula from forward's own factors."""
    generator = torch.Generator().manual_seed(5)
    p, v, do = (torch.rand(size, generator=generator) + 0.5 for size in ((9, 11), (11, 2), (9, 2)))
    factors = layer.forward(_ones(9, 11), torch.eye(11))
    dp, dv = layer.backward(p, v, do)
    p, v, do = p.double(), v.double(), do.double()
    whole, right_dv = do @ v.T, (p * factors).T @ do
    for verdict, model in (
        ("dp undropped", whole),
        ("dp unscaled", whole * (factors > 0)),
        ("dp of p", whole * factors * p),
    ):
        if torch.allclose(dp, model):
            return verdict
    if torch.allclose(dp, whole * factors):
        return "nothing" if torch.allclose(dv, right_dv) else "dv undropped"
    square = layer.forward(_ones(8, 8), torch.eye(8))
    dp, _ = layer.backward(_ones(8, 8), _ones(8, 1), _ones(8, 1))
    if torch.equal(dp > 0, square > 0):
        return "unpadded rows"
    return "turned index" if torch.equal(dp > 0, square.T > 0) else "another offset"


def fault_by_trying(layer):
    for _ in range(9):
        layer.forward(_ones(2, 2), torch.eye(2))
    return "nothing"


# 13.10
def loss_gradients(x, weight, targets, budget, fault=""):
    tokens, words = len(x), len(weight)
    chunk = max(1, budget // (12 * words))
    if fault == "half the chunk":
        chunk = max(1, chunk // 2)
    if fault == "all at once":
        chunk = tokens
    dx, dweight = torch.empty_like(x), torch.zeros_like(weight)
    stop = tokens // chunk * chunk if fault == "whole chunks" else tokens
    if fault == "whole chunks":
        dx.zero_()
    kept_alive = []
    for first in range(0, stop, chunk):
        rows = slice(first, first + chunk)
        dl = x[rows] @ weight.T
        if fault == "logits":
            pass
        elif fault == "no maximum":
            dl.exp_()
            dl /= dl.sum(-1, keepdim=True)
        else:
            dl = torch.softmax(dl, 0 if fault == "down" else -1)
        of = targets[: len(dl)] if fault == "first targets" else targets[rows]
        if fault != "no target":
            dl[torch.arange(len(dl)), of] += 1 if fault == "added" else -1
        if fault != "not divided":
            dl /= len(dl) if fault == "own mean" else words if fault == "by words" else tokens
        if fault == "turned":
            dl.neg_()
        dx[rows] = dl @ weight
        if fault == "last chunk":
            torch.mm(dl.T, x[rows], out=dweight)
        elif fault == "temporary":
            dweight += dl.T @ x[rows]
        else:
            torch.addmm(dweight, dl.T, x[rows], out=dweight)
        if fault == "kept logits":
            kept_alive.append(dl)
    return dx, dweight


def loss_gradients_with(fault):
    return lambda x, weight, targets, budget: loss_gradients(x, weight, targets, budget, fault)


def loss_gradients_in_place(x, weight, targets, budget):
    """One buffer of logits, written in place; even chunks; onehot by scatter."""
    (tokens, _), words = x.shape, weight.shape[0]
    pieces = -(-tokens // max(1, budget // (words * 12)))
    dx, dweight = torch.zeros_like(x), torch.zeros_like(weight)
    buffer = torch.empty(-(-tokens // pieces), words)
    place = 0
    for part, wanted in zip(x.chunk(pieces), targets.chunk(pieces), strict=True):
        logits = torch.mm(part, weight.t(), out=buffer[: len(part)])
        logits.sub_(logits.amax(1, keepdim=True)).exp_()
        logits.div_(logits.sum(1, keepdim=True))
        logits.scatter_add_(1, wanted[:, None], torch.full((len(part), 1), -1.0))
        logits.mul_(1 / tokens)
        torch.mm(logits, weight, out=dx[place : place + len(part)])
        dweight.addmm_(logits.t(), part)
        place += len(part)
    return [dx, dweight]


def loss_gradients_whole(x, weight, targets, budget):
    """As the exercise gives it out."""
    logits = x @ weight.T
    dl = torch.softmax(logits, -1)
    dl[torch.arange(len(x)), targets] -= 1
    dl = dl / len(x)
    return dl @ weight, dl.T @ x


def loss_gradients_parts_joined(x, weight, targets, budget):
    """dx of all chunks, and then all of it once more."""
    chunk = max(1, budget // (12 * len(weight)))
    parts, dweight = [], torch.zeros_like(weight)
    for rows, wanted in zip(x.split(chunk), targets.split(chunk), strict=True):
        dl = torch.softmax(rows @ weight.T, -1)
        dl[torch.arange(len(dl)), wanted] -= 1
        dl /= len(x)
        parts.append(dl @ weight)
        dweight.addmm_(dl.T, rows)
    return torch.cat(parts), dweight
