"""Answers to 08.1, 08.2 and 08.10: right ones written differently, and known-wrong ones."""

import math
from fractions import Fraction
from itertools import pairwise

from kernels.philox import scale, threshold


# 08.1
def draw_by_element(row, col, n_cols, p):
    e = row * n_cols + col
    kept = 65536 - round(p * 65536)
    return e // 8, e % 8, 65536 - kept, 65536 / kept if kept > 0 else 0.0


def draw_by_divmod(row, col, n_cols, p):
    return (*divmod(row * n_cols + col, 8), threshold(p), scale(p))


def draw_by_shifts(row, col, n_cols, p):
    e = col + row * n_cols
    t = round(p * 2**16)
    return [e >> 3, e & 7, t, 0.0 if t == 2**16 else float(Fraction(2**16, 2**16 - t))]


def draw_with(block=None, number=None, t=None, factor=None):
    """The right numbers, one or more of them replaced."""

    def draw(row, col, n_cols, p):
        right = draw_by_element(row, col, n_cols, p)
        return tuple(
            one(row, col, n_cols, p) if one else value
            for one, value in zip((block, number, t, factor), right, strict=True)
        )

    return draw


def draw_in_halves(row, col, n_cols, p):
    """Divide by 1 - p, and so by 0."""
    e = row * n_cols + col
    return e // 8, e % 8, round(65536 * p), 1 / (1 - p)


# 08.2
def bytes_by_launch(rows, cols, itemsize, cuts, stored_mask):
    """Each launch by itself."""
    bounds = [0, *cuts, 4]
    matrix = rows * cols * itemsize
    total = 0
    for first, last in pairwise(bounds):
        total += 2 * matrix  # what comes in, and what goes out
        if first == 0:
            total += 2 * cols * itemsize + 8 * rows
        if first <= 2 < last:
            total += 16 + (rows * cols if stored_mask else 0)
        if last == 4:
            total += matrix
    return total, 8 * rows + stored_mask * rows * cols


def bytes_by_tensor(rows, cols, itemsize, cuts, stored_mask):
    elements = rows * cols
    read = [elements * itemsize] * (2 + len(cuts)) + [cols * itemsize] * 2 + [8, 8]
    held = [4 * rows] * 2 + [elements] * bool(stored_mask)
    written = [elements * itemsize] * (1 + len(cuts)) + held
    return [sum(read) + sum(written), sum(held)]


def bytes_by_columns(rows, cols, itemsize, cuts, stored_mask):
    column = rows * (itemsize * (3 + 2 * len(cuts)) + int(stored_mask)) + 2 * itemsize
    kept = rows * (8 + cols * int(stored_mask))
    return cols * column + 8 * rows + 16, kept


def bytes_with(moved=None, kept=None):
    """The right numbers, each with something added that a reader may count or forget."""

    def training_bytes(*args):
        right = bytes_by_launch(*args)
        return tuple(
            number + (off(*args) if off else 0)
            for number, off in zip(right, (moved, kept), strict=True)
        )

    return training_bytes


# 08.10
def costs_by_max(elements, bytes_each, without, drawn, bandwidth_gbs, slots_per_us):
    def took(each, instructions):
        return max(
            elements * each / bandwidth_gbs / 1e3, elements / 32 * instructions / slots_per_us
        )

    base = took(bytes_each, without)
    return took(bytes_each, without + drawn) - base, took(bytes_each + 1, without) - base


def costs_by_room(elements, bytes_each, without, drawn, bandwidth_gbs, slots_per_us):
    """What goes beyond the room that the other of the two leaves."""
    byte = elements / (bandwidth_gbs * 1000)
    instruction = elements / (32 * slots_per_us)
    memory, issue = bytes_each * byte, without * instruction
    made = max(0.0, drawn * instruction - max(0.0, memory - issue))
    stored = max(0.0, byte - max(0.0, issue - memory))
    return made, stored


def costs_by_cases(elements, bytes_each, without, drawn, bandwidth_gbs, slots_per_us):
    """The balance of the card in instructions, and who binds."""
    each_us = elements / 32 / slots_per_us
    balance = 32 * slots_per_us / (1000 * bandwidth_gbs)  # instructions a byte
    memory, more = bytes_each * balance, (bytes_each + 1) * balance
    made = drawn if without >= memory else max(without + drawn - memory, 0)
    stored = 0 if without >= more else more - max(without, memory)
    return [made * each_us, stored * each_us]


def costs_with(made=None, stored=None):
    """The right times, one of them replaced: a function of (memory, issue, drawn, byte) in µs."""

    def mask_costs(elements, bytes_each, without, drawn, bandwidth_gbs, slots_per_us):
        right = costs_by_max(elements, bytes_each, without, drawn, bandwidth_gbs, slots_per_us)
        byte = elements / (bandwidth_gbs * 1000)
        one = elements / 32 / slots_per_us
        times = (bytes_each * byte, without * one, drawn * one, byte)
        return tuple(
            f(*times) if f else value for f, value in zip((made, stored), right, strict=True)
        )

    return mask_costs


def costs_rounded(*args):
    return tuple(round(time, 2) for time in costs_by_max(*args))


def costs_of_threads(elements, bytes_each, without, drawn, bandwidth_gbs, slots_per_us):
    return costs_by_max(elements, bytes_each, 32 * without, 32 * drawn, bandwidth_gbs, slots_per_us)


def threshold_down(row, col, n_cols, p):
    return math.floor(65536 * p)
