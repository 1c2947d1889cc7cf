"""Answers to 11.1, 11.2, 11.7, 11.8 and 11.10: right ones, and formulas with one part replaced."""

import math
from fractions import Fraction

import torch

from kernels.grading.questions.ch11 import bounds, ledgers

KINDS = {"fp16": torch.float16, "bf16": torch.bfloat16}


def up(size, block):
    return -(-size // block)


def replaced(right, **parts):
    """The tuple that `right` returns, some of its parts by another formula."""
    names = parts.pop("names").split()

    def answer(*args):
        told = dict(zip(names, right(*args), strict=True))
        return tuple({**told, **{name: f(*args) for name, f in parts.items()}}.values())

    return answer


# 11.1
def asks(m, n, k, block_m, block_n, itemsize):
    x = m * k * itemsize
    return up(n, block_n), 2 * up(n, block_n) * x, (2 + up(n, block_n)) * x


def asks_by_tiles(m, n, k, block_m, block_n, itemsize):
    """Tile by tile, each with the rows that it has."""
    one = two = 0
    for _ in range(0, n, block_n):
        for top in range(0, m, block_m):
            rows = min(block_m, m - top)
            one += 2 * rows * k * itemsize
            two += rows * k * itemsize
    return [len(range(0, n, block_n)), one, two + 2 * m * k * itemsize]


def asks_with(**parts):
    return replaced(asks, names="times one two", **parts)


# 11.2
def saved(m, n, itemsize, l2_bytes, in_place):
    h = m * n * itemsize
    return 2 * h, 2 * h if h > l2_bytes else h * (not in_place)


def saved_by_difference(m, n, itemsize, l2_bytes, in_place):
    """What both ways move, and the difference."""
    size = m * n * itemsize
    dram_two = size  # y
    if size > l2_bytes:
        dram_two += 2 * size
    elif not in_place:
        dram_two += size
    return 3 * size - size, dram_two - size


def saved_with(**parts):
    return replaced(saved, names="requested dram", **parts)


# 11.7
def way_by_ratios(record):
    """By the nearest of what each way would have counted."""
    sizes = record.m, record.n, record.k, record.itemsize, record.block_m, record.block_n
    known = {way: ledgers._recorded(way, sizes, 1.0) for way in ledgers.WAYS}

    def off(way):
        one = known[way]
        if one.launches != record.launches:
            return math.inf
        pairs = ((one.unique, record.unique), (one.requested, record.requested))
        return sum(abs(a - b) / b for a, b in pairs) + 0.1 * abs(one.dram - record.dram) / one.of_x

    return min(ledgers.WAYS, key=off)


def way_but(said):
    """The right word, or the one that is said in its place."""

    def which_way(record):
        return said.get(ledgers.which(record), ledgers.which(record))

    return which_way


# 11.8
def fold(norm_weight, norm_bias, weight, bias):
    folded = (weight.float() * norm_weight.float()).to(weight.dtype)
    return folded, folded.float().sum(1), bias.float() + weight.float() @ norm_bias.float()


def fold_in_float64(norm_weight, norm_bias, weight, bias):
    wide = weight.double() * norm_weight.double()[None, :]
    folded = wide.to(weight.dtype)
    ones = torch.ones(weight.shape[1], dtype=torch.float64)
    added = torch.einsum("nk,k->n", weight.double(), norm_bias.double()) + bias
    return [folded, (folded.double() @ ones).float(), added.float()]


def fold_in_16_bits(norm_weight, norm_bias, weight, bias):
    """PyTorch multiplies 16 bits in fp32 and rounds once: that is right for folded."""
    folded = weight * norm_weight
    return folded, folded.sum(1, dtype=torch.float32), fold(norm_weight, norm_bias, weight, bias)[2]


def fold_with(**parts):
    return replaced(fold, names="folded sums bias", **parts)


# 11.10
def means(row, std, dtype):
    return tuple(f(row, std, dtype) for f in (bounds.of_unrounded, bounds.of_rounded, centred))


def centred(row, std, dtype):
    return bounds.of_centred(row, std, dtype)


def means_by_numbers(row, std, dtype):
    """Number by number, in plain Python."""

    def kept(values):
        return [torch.tensor(v, dtype=torch.float64).to(KINDS[dtype]).item() for v in values]

    def largest(values, error):
        norm = math.sqrt(sum(v * v for v in values))
        return norm * torch.finfo(KINDS[dtype]).eps / 2 * std / abs(error)

    middle = kept([v - sum(row) / len(row) for v in row])
    rounded = kept(row)
    exact = sum(Fraction(v) for v in rounded) - sum(Fraction(v) for v in row)
    return [
        largest(rounded, float(exact)),
        largest(rounded, sum(rounded) * 2**-24),
        largest(middle, float(sum(Fraction(v) for v in middle)) * 2**-24),
    ]


def means_with(**parts):
    return replaced(means, names="unrounded rounded centred", **parts)
