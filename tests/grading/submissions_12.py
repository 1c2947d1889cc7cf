"""Answers to the questions of set 12 that launch nothing: right ones and known-wrong ones."""

import math
from fractions import Fraction

import numpy as np
import torch

from kernels.grading.questions.ch12 import doubled, flops, predict


def up(size, block):
    return math.ceil(Fraction(size, block))


# 12.1
def merge(a, b):
    m = max(a[0], b[0])
    if m == -math.inf:
        return (m, 0.0, 0.0)
    fa, fb = math.exp(a[0] - m), math.exp(b[0] - m)
    return (m, a[1] * fa + b[1] * fb, a[2] * fa + b[2] * fb)


def merge_by_numpy(a, b):
    """A finite number in place of −inf, and arrays."""
    pair = np.array([a, b])
    m = pair[:, 0].max()
    factors = np.exp(pair[:, 0] - max(m, -1e300))
    sums = factors @ pair[:, 1:]
    return [m, *sums]


def merge_one_way(a, b):
    """The half with the larger maximum first; an empty one changes nothing."""
    if a[0] < b[0]:
        a, b = b, a
    if b[1] == 0:
        return a
    factor = math.exp(b[0] - a[0])
    return a[0], a[1] + factor * b[1], a[2] + factor * b[2]


def merge_with(m=None, l=None, acc=None):  # noqa: E741
    """The right merge with a part of it replaced; each part by a function of (a, b)."""

    def answer(a, b):
        right = merge(a, b)
        return tuple(f(a, b) if f else r for f, r in zip((m, l, acc), right, strict=True))

    return answer


def about(place, factor_a, factor_b):
    """A sum with other factors, each a function of (own m, other m)."""
    return lambda a, b: a[place] * factor_a(a[0], b[0]) + b[place] * factor_b(b[0], a[0])


def merge_unguarded(a, b):
    """nan where both are empty."""
    m = max(a[0], b[0])
    fa, fb = math.exp(a[0] - m), math.exp(b[0] - m)
    return (m, a[1] * fa + b[1] * fb, a[2] * fa + b[2] * fb)


def merge_by_exponentials(a, b):
    """exp(m) itself: right for small scores."""
    m = max(a[0], b[0])
    total = a[1] * math.exp(a[0]) + b[1] * math.exp(b[0])
    acc = a[2] * math.exp(a[0]) + b[2] * math.exp(b[0])
    return (m, total / math.exp(m), acc / math.exp(m))


def merge_by_exponentials_in_numpy(a, b):
    with np.errstate(all="ignore"):
        (ma, la, ca), (mb, lb, cb) = np.array(a), np.array(b)
        m = max(ma, mb)
        total, acc = la * np.exp(ma) + lb * np.exp(mb), ca * np.exp(ma) + cb * np.exp(mb)
        return (m, total / np.exp(m), acc / np.exp(m))


# 12.2
def merge_outputs(a, b):
    larger = max(a[0], b[0])
    if larger == -math.inf:
        return (larger, 0.0)
    wa, wb = math.exp(a[0] - larger), math.exp(b[0] - larger)
    return (larger + math.log(wa + wb), (wa * a[1] + wb * b[1]) / (wa + wb))


def merge_outputs_by_shares(a, b):
    log = float(np.logaddexp(a[0], b[0]))
    if math.isinf(log):
        return [log, 0]
    return [log, math.exp(a[0] - log) * a[1] + math.exp(b[0] - log) * b[1]]


def merge_outputs_by_torch(a, b):
    logs = torch.tensor([a[0], b[0]], dtype=torch.float64)
    outputs = torch.tensor([a[1], b[1]], dtype=torch.float64)
    share = torch.softmax(logs, 0).nan_to_num(0.0)
    return torch.logsumexp(logs, 0).item(), (share * outputs).sum().item()


def outputs_with(log=None, o=None):
    def answer(a, b):
        right = merge_outputs(a, b)
        return tuple(f(a, b) if f else r for f, r in zip((log, o), right, strict=True))

    return answer


def outputs_plainly(a, b):
    """The formula as it stands on paper."""
    total = math.exp(a[0]) + math.exp(b[0])
    log = math.log(total)
    return log, math.exp(a[0] - log) * a[1] + math.exp(b[0] - log) * b[1]


def outputs_unguarded(a, b):
    larger = max(a[0], b[0])
    wa, wb = math.exp(a[0] - larger), math.exp(b[0] - larger)
    return (larger + math.log(wa + wb), (wa * a[1] + wb * b[1]) / (wa + wb))


# 12.3
def row_flops(n, d, block_n):
    whole, blocks = flops.in_three_steps(n, d, block_n), flops.in_blocks(n, d, block_n)
    return whole, blocks, blocks < whole


def row_flops_line_by_line(n, d, block_n):
    whole = sum((2 * d * n, n, n, n, n, n, n, 2 * n * d))
    blocks = 0
    for _ in range(0, n, block_n):
        blocks += 2 * block_n * d + block_n  # s, scaled
        blocks += block_n + 1  # the maxima
        blocks += 2 * block_n + 2  # p, correction
        blocks += 1 + block_n + 1  # l
        blocks += d + 2 * block_n * d  # acc
    return [whole, blocks + d, np.bool_(blocks + d < whole)]


def flops_with(whole=None, blocks=None, fewer=None):
    def answer(*args):
        right = row_flops(*args)
        return tuple(
            f(*args) if f else r for f, r in zip((whole, blocks, fewer), right, strict=True)
        )

    return answer


# 12.4
def requested(n, d, block_m, block_n, itemsize, causal):
    keys = sum(
        min(up(min(first + block_m, n) if causal else n, block_n) * block_n, n)
        for first in range(0, n, block_m)
    )
    return n * d * itemsize, keys * d * itemsize


def requested_by_lanes(n, d, block_m, block_n, itemsize, causal):
    """Walk as the programs do, and count the lanes that ask."""
    row, asked = d * itemsize, 0
    for tile in range(up(n, block_m)):
        end = min((tile + 1) * block_m, n) if causal else n
        for start in range(0, end, block_n):
            asked += min(start + block_n, n) - start
    return np.int64(n * row), np.int64(asked * row)


def requested_with(q=None, k=None):
    def answer(*args):
        right = requested(*args)
        return tuple(f(*args) if f else r for f, r in zip((q, k), right, strict=True))

    return answer


def of_k_but(causal=None, plain=None):
    """Bytes of k with another number of keys, by a function of (n, block_m, block_n)."""

    def of_k(n, d, bm, bn, s, c):
        other = causal if c else plain
        keys = other(n, bm, bn) if other else predict.keys_asked_for(n, bm, bn, c)
        return keys * d * s

    return requested_with(None, of_k)


def ends(n, bm):
    return [min(first + bm, n) for first in range(0, n, bm)]


# 12.5
def when_doubled(n, d, block_m):
    asked, touched = ((f(2 * n, d, block_m), f(n, d, block_m)) for f in
                      (doubled.requested, doubled.three_launches))  # fmt: skip
    return 2, asked[0] / asked[1], touched[0] / touched[1]


def when_doubled_in_closed_form(n, d, block_m):
    tiles = Fraction(n, block_m)
    return [2.0, 2 * (1 + 2 * tiles) / (1 + tiles), Fraction(2 * (d + 2 * n), d + n)]


def doubled_with(ideal=None, asked=None, three=None):
    def answer(*args):
        right = when_doubled(*args)
        return tuple(
            f(*args) if f else r for f, r in zip((ideal, asked, three), right, strict=True)
        )

    return answer


def ratio(count):
    return lambda n, d, bm: count(2 * n, d, bm) / count(n, d, bm)


# 12.6
def fault_with(mistaken=None):
    """The verdict by experiments of one fault each; `mistaken` maps it to another."""

    def fault(attend):
        told = _found(attend)
        return (mistaken or {}).get(told, told)

    return fault


def _right(attend, scores, v):
    weights = [math.exp(s - max(scores)) for s in scores]
    o = sum(w * x for w, x in zip(weights, v, strict=True)) / sum(weights)
    got = attend([2.0, 0, 0, 0], [[s, 0, 0, 0] for s in scores], v)
    return math.isclose(got, o, rel_tol=1e-6)


def _found(attend):
    if not _right(attend, [0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]):
        return "scale twice"
    if not _right(attend, [2000.0] * 4, [1.0] * 4):
        return "no maximum"
    if not _right(attend, [1.0, 2.0, 3.0], [1.0] * 3):
        return "masked with 0"
    if not _right(attend, [-2000.0] * 3, [1.0] * 3):
        return "masked behind the maximum"
    rising = [[s, 0, 0, 0] for s in (0.0, 0, 0, 0, 3, 3, 3, 3)]
    ones = attend([2.0, 0, 0, 0], rising, [1.0] * 8)
    if not math.isclose(ones, 1.0):
        return "l alone" if ones > 1 else "acc alone"
    kept = _right(attend, [0.0] * 4 + [3.0] * 4, [1.0] * 4 + [2.0] * 4)
    return "nothing" if kept else "no correction"


def fault_by_models(attend):
    """Four experiments, held against plain models of every fault."""
    twice = attend([1.0, 1.0], [[1.0, 0.0]] * 2 + [[2.0, 1.0]] * 2, [1.0, 1.0, 5.0, 5.0])
    plain = math.exp(3 / 2**0.5 - 1 / 2**0.5)
    if not math.isclose(twice, (2 + 10 * plain) / (2 + 2 * plain), rel_tol=1e-9):
        return "scale twice"
    # Five keys: three lanes are left over; the fifth has the larger score.
    rises = attend([1.0], [[0.0]] * 4 + [[2.0]], [1.0] * 4 + [3.0])
    e = math.exp(-2)
    known = {
        "no correction": (4 + 3) / (4 + 1),
        "l alone": (4 + 3) / (4 * e + 1),
        "acc alone": (4 * e + 3) / (4 + 1),
        "masked with 0": (4 * e + 3) / (4 * e + 1 + 3 * e),
    }
    for name, value in known.items():
        if math.isclose(rises, value, rel_tol=1e-9):
            return name
    if math.isnan(attend([1.0], [[1000.0]] * 4, [1.0] * 4)):
        return "no maximum"
    far = attend([1.0], [[-1000.0]], [1.0])
    return "nothing" if far == 1 else "masked behind the maximum"


def fault_by_trying(attend):
    for _ in range(9):
        attend([1.0], [[1.0]], [1.0])
    return "nothing"


def fault_without_experiment(attend):
    return "nothing"


# 12.10
def leaves_roofs(tflops, dram_gbs, l2_gbs, d, itemsize):
    balance = Fraction(tflops * 1000, dram_gbs)
    return (
        math.ceil(balance * itemsize),
        math.ceil(Fraction(tflops * 1000, l2_gbs) * itemsize / 2),
        bool(balance * itemsize < d),
    )


def leaves_roofs_by_search(tflops, dram_gbs, l2_gbs, d, itemsize):
    n = tile = 1
    while n * dram_gbs < itemsize * tflops * 1000:
        n += 1
    while 2 * tile * l2_gbs < itemsize * tflops * 1000:
        tile += 1
    long = 10**12
    takes = 4 * long**2 * d * dram_gbs
    return [n, tile, takes >= (4 * long * d + 4 * long**2) * itemsize * tflops * 1000]


def roofs_with(length=None, tile=None, unfused=None):
    def answer(*args):
        right = leaves_roofs(*args)
        return tuple(
            f(*args) if f else r for f, r in zip((length, tile, unfused), right, strict=True)
        )

    return answer
