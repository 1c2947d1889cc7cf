"""Answers to the questions of set 14 that launch nothing: right ones and known-wrong ones."""

import random

import numpy as np
import torch

from kernels.grading.questions.ch14 import bound, heads, ledgers, masks, moved, strides, workspace
from kernels.ops.layers import steps
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.layers.masks import Seen
from kernels.ops.layers.workspace import workspace_bytes as of_the_package


def replaced(right, **parts):
    """The tuple of `right`, by name (a dict of formulas), with some by other functions."""

    def answer(*args):
        return tuple((parts.get(name) or formula)(*args) for name, formula in right.items())

    return answer


def by_name(module):
    """The right formulas of a question that asks for several numbers."""
    formulas = getattr(module, "RIGHT", None) or (module.BEFORE, module.AFTER)
    return dict(zip(module.NAMES, formulas, strict=True))


def moved_with(**parts):
    return replaced(by_name(moved), **parts)


def strides_with(**parts):
    return replaced(by_name(strides), **parts)


def masks_with(**parts):
    return replaced(by_name(masks), **parts)


def workspace_with(**parts):
    return replaced(by_name(workspace), **parts)


def bound_with(**parts):
    return replaced(by_name(bound), **parts)


# 14.1: each launch's tensors, in E and I
_ROWS_BEFORE = "EE E3 33 3E EE EE EEE EE EI II IE EEE"
_ROWS_AFTER = "EE E3 3E EEE EE EI IEE"


def layer_bytes(b, s, e, i, itemsize):
    return b * s * itemsize * (30 * e + 4 * i), b * s * itemsize * (18 * e + 2 * i)


def layer_bytes_row_by_row(b, s, e, i, itemsize):
    wide = {"E": e, "3": 3 * e, "I": i}

    def total(rows):
        return sum(np.int64(b * s * wide[one] * itemsize) for row in rows.split() for one in row)

    return [total(_ROWS_BEFORE), total(_ROWS_AFTER)]


# 14.2
def norm_place(ledger):
    return ledgers.where(ledger)


def norm_place_by_counting(ledger):
    """By how many launches read one tensor and write one as large, and what they read."""
    read = [name for launch in ledger for name in launch.reads]
    alone = [
        next(iter(launch.reads))
        for launch in ledger
        if list(launch.reads.values()) == list(launch.writes.values())
    ]
    if not alone:
        return "pre, norms in products"
    return "pre" if any(read.count(name) == 2 for name in alone) else "post"


def norm_place_by_the_last_sum(ledger):
    """Wrong: the cut may have taken a reader of what the last sum wrote."""
    read = [name for launch in ledger for name in launch.reads]
    if not any(list(one.reads.values()) == list(one.writes.values()) for one in ledger):
        return "pre, norms in products"
    (sum_,) = [launch for launch in ledger if len(launch.reads) == 2][-1].writes
    return "pre" if read.count(sum_) > 1 else "post"


# 14.3
def head_strides(length, heads_, d, by_head):
    row = 3 * heads_ * d
    k = d if by_head else heads_ * d
    return length * row, 3 * d if by_head else d, row, k, 2 * k


def head_strides_by_a_view(length, heads_, d, by_head):
    shape = (2, length, heads_, 3, d) if by_head else (2, length, 3, heads_, d)
    parts = torch.empty(shape, device="meta").unbind(3 if by_head else 2)
    q, k, v = (one.transpose(1, 2) for one in parts)
    return (*q.stride()[:3], k.storage_offset(), v.storage_offset())


# 14.4
def attend(qkv, padding, heads_):
    q, k, v = qkv.unflatten(-1, (3, heads_, -1)).permute(2, 0, 3, 1, 4)
    s = (q @ k.mT) / q.shape[-1] ** 0.5
    s = s.masked_fill(padding[:, None, None, :], -float("inf"))
    return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)


def attend_by_pytorch(qkv, padding, heads_):
    q, k, v = (one.unflatten(-1, (heads_, -1)).transpose(1, 2) for one in qkv.chunk(3, dim=-1))
    hidden = torch.zeros(padding.shape, dtype=qkv.dtype, device=qkv.device)
    hidden = hidden.masked_fill(padding, -float("inf"))[:, None, None, :]
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=hidden)
    return torch.cat(o.unbind(1), -1)


def attend_head_by_head(qkv, padding, heads_):
    batch, length, width = qkv.shape
    d = width // 3 // heads_
    y = torch.zeros(batch, length, width // 3, dtype=qkv.dtype, device=qkv.device)
    for one in range(batch):
        rows = qkv[one]
        there = (~padding[one]).nonzero().flatten()
        for head in range(heads_):
            q, k, v = (rows[:, part * heads_ * d + head * d :][:, :d] for part in range(3))
            p = torch.softmax(q @ k[there].T * d**-0.5, -1)
            y[one, :, head * d : (head + 1) * d] = p @ v[there]
    return y


def attend_with(**faults):
    """The attention with faults by name, as `heads.attended` knows them, in the dtype of qkv."""
    return lambda qkv, padding, heads_: heads.attended(qkv, heads_, padding, **faults).to(qkv.dtype)


def attend_by_the_package(qkv, padding, heads_):
    return steps.attended(qkv, heads_, Seen(key_padding_mask=padding), steps.Dropped())


# 14.5
def mask_bytes(b, h, s, e, i, itemsize, block_m):
    programs = sum(1 for _ in range(0, s, block_m)) * b * h
    moves = 18 * e + 2 * i
    least = next(n for n in range(moves // h, 10**9) if h * n * n >= moves * n)
    return b * s, b * h * s * s * itemsize, programs * s, least


# 14.8
_LIVES_BEFORE = "n qkv|qkv heads|heads oh|oh o|o a|a h|h m|h m u|h u g|h g z|h z y"
_LIVES_AFTER = "n qkv|qkv o|o h|h m|h m g|h g y"


def workspace_bytes(b, s, e, i, itemsize):
    wide = {"qkv": 3 * e, "heads": 3 * e, "u": i, "g": i}

    def taken(name):
        return -(-b * s * wide.get(name, e) * itemsize // 512) * 512

    def most(lives):
        return max(sum(map(taken, one.split())) for one in lives.split("|"))

    return most(_LIVES_BEFORE), np.int64(most(_LIVES_AFTER))


def workspace_by_the_package(b, s, e, i, itemsize):
    layer = FusedEncoderLayer(e, 1, i, norm_first=True)
    return workspace_bytes(b, s, e, i, itemsize)[0], of_the_package(layer, b, s, itemsize)


# 14.9
def spans(launches):
    """By name: the launch that writes it, and the last that needs it."""
    first = {writes: at for at, (_, writes) in enumerate(launches)}
    last = dict(first)
    for at, (reads, _) in enumerate(launches):
        last.update({name: at for name in reads if name in first})
    return first, last


def placed_in(order, launches, sizes, meet=None):
    first, last = spans(launches)
    meet = meet or (lambda a, b: first[a] <= last[b] and first[b] <= last[a])
    found = {}
    for name in order:
        beside = sorted((found[one], sizes[one]) for one in found if meet(name, one))
        at = 0
        for begin, size in beside:
            if at + sizes[name] > begin:
                at = max(at, begin + size)
        found[name] = at
    return found


def _end(found, sizes):
    return max(at + sizes[name] for name, at in found.items())


def places(launches, sizes):
    return placed_in(sorted(sizes, key=lambda name: -sizes[name]), launches, sizes)


def places_by_trying(launches, sizes):
    """Orders at random until one comes down to what lives at once."""
    first, last = spans(launches)
    least = max(
        sum(size for name, size in sizes.items() if first[name] <= at <= last[name])
        for at in range(len(launches))
    )
    rng, order = random.Random(3), list(sizes)
    found = placed_in(order, launches, sizes)
    while _end(found, sizes) > least:
        rng.shuffle(order)
        order.sort(key=lambda name: -sizes[name] * rng.choice((1, 1, 2)))
        found = placed_in(order, launches, sizes)
    return {name: np.int64(at) for name, at in found.items()}


def places_from_the_top(launches, sizes):
    """The same upside down: the largest first, and each as near to the end as it can be."""
    found = places(launches, sizes)
    end = _end(found, sizes)
    return {name: end - at - sizes[name] for name, at in found.items()}


def places_with(fault):
    def answer(launches, sizes):
        first, last = spans(launches)
        largest = sorted(sizes, key=lambda name: -sizes[name])
        if fault == "nothing again":
            return placed_in(largest, launches, sizes, lambda a, b: True)
        if fault == "launch by launch":
            return placed_in(list(sizes), launches, sizes)
        if fault == "ties turned":
            late = list(sizes)[::-1]
            return placed_in(sorted(late, key=lambda name: -sizes[name]), launches, sizes)
        if fault == "rounded up":
            wide = {name: -(-size // 512) * 512 for name, size in sizes.items()}
            return placed_in(largest, launches, wide)
        if fault == "longest first":
            return placed_in(
                sorted(sizes, key=lambda name: first[name] - last[name]), launches, sizes
            )
        if fault == "smallest first":
            return placed_in(largest[::-1], launches, sizes)
        if fault == "over what is read":
            return placed_in(
                largest, launches, sizes, lambda a, b: first[a] < last[b] and first[b] < last[a]
            )
        if fault == "first reader":
            early = {}
            for at, (reads, writes) in enumerate(launches):
                early.setdefault(writes, at)
                for name in reads:
                    if early.get(name) == first.get(name):
                        early[name] = at
            return placed_in(
                largest,
                launches,
                sizes,
                lambda a, b: first[a] <= early[b] and first[b] <= early[a],
            )
        if fault == "all at 0":
            return dict.fromkeys(sizes, 0)
        found = places(launches, sizes)
        if fault == "no result":
            found.pop(launches[-1][1])
        if fault == "x too":
            found["x"] = 0
        if fault == "floats":
            found = {name: at / 1 for name, at in found.items()}
        if fault == "below 0":
            found = {name: at - 256 for name, at in found.items()}
        if fault == "a list":
            return list(found.values())
        if fault == "a hole":
            found = {name: at + 256 for name, at in found.items()}
        return found

    return answer


# 14.10
def launch_bound(gbs, launch_ns, e, i, itemsize):
    """By bisection, on the two times themselves."""

    def most(launches, of_a_token):
        def holds(tokens):
            moved_ = (4 * e * e + 2 * e * i + tokens * of_a_token) * itemsize
            return launches * launch_ns * gbs >= moved_

        low, high = 0, 2**40
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if holds(middle) else (low, middle - 1)
        return low

    return [most(12, 30 * e + 4 * i), np.int64(most(7, 18 * e + 2 * i))]


def bound_by_floats(gbs, launch_ns, e, i, itemsize):
    """By bytes, each a float: a quotient that comes out even may lie just below."""

    def most(launches, of_a_token):
        moved_ = launches * launch_ns * 1e-9 * gbs * 1e9
        weights = (4 * e * e + 2 * e * i) * itemsize
        return max(0, int((moved_ - weights) / (of_a_token * itemsize)))

    return most(12, 30 * e + 4 * i), most(7, 18 * e + 2 * i)


def bound_by_seconds(gbs, launch_ns, e, i, itemsize):
    """The same by seconds."""

    def most(launches, of_a_token):
        weights = (4 * e * e + 2 * e * i) * itemsize / (gbs * 1e9)
        a_token = of_a_token * itemsize / (gbs * 1e9)
        return max(0, int((launches * launch_ns * 1e-9 - weights) / a_token))

    return most(12, 30 * e + 4 * i), most(7, 18 * e + 2 * i)
