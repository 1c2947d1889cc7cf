"""Answers to 10.1, 10.2, 10.3, 10.6, 10.7 and 10.10: right ones and known-wrong ones."""

import math
from fractions import Fraction

import numpy as np
import torch

from kernels.grading.questions.ch10 import order, suspects


def up(size, block):
    return -(-size // block)


# 10.1
def requests_by_tiles(m, n, k, block_m, block_n, itemsize):
    """Tile by tile, each with the rows that it has."""
    x = weight = 0
    for top in range(0, m, block_m):
        x += min(block_m, m - top) * k * up(n, block_n)
        weight += n * k
    return [x * itemsize, weight * itemsize]


def requests_by_formula(m, n, k, block_m, block_n, itemsize):
    return m * k * up(n, block_n) * itemsize, n * k * up(m, block_m) * itemsize


def requests_by_numpy(m, n, k, block_m, block_n, itemsize):
    wide = np.int64(k * itemsize)
    return m * wide * len(range(0, n, block_n)), n * wide * math.ceil(m / block_m)


def requests_with(x=None, weight=None):
    def requested_bytes(*args):
        right = requests_by_formula(*args)
        return tuple(f(*args) if f else r for f, r in zip((x, weight), right, strict=True))

    return requested_bytes


# 10.2
def shares(m, n, block_m, block_n):
    x = m * up(n, block_n)
    before, after = n * up(m, block_m), n * up(m, 2 * block_m)
    return 1.0, after / before, (x + after) / (x + before)


def shares_as_fractions(m, n, block_m, block_n):
    one = requests_by_formula(m, n, 7, block_m, block_n, 4)
    two = requests_by_formula(m, n, 7, 2 * block_m, block_n, 4)
    return [Fraction(b, a) for a, b in zip(one, two, strict=True)] + [Fraction(sum(two), sum(one))]


def shares_by_weight(m, n, block_m, block_n):
    _, weight, _ = shares(m, n, block_m, block_n)
    part = n * up(m, block_m) / (m * up(n, block_n) + n * up(m, block_m))
    return 1, weight, 1 - part * (1 - weight)


def shares_with(x=None, weight=None, both=None):
    def twice_as_tall(*args):
        right = shares(*args)
        return tuple(f(*args) if f else r for f, r in zip((x, weight, both), right, strict=True))

    return twice_as_tall


# 10.3
KINDS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def ones_by_loop(k, block_k, dtype):
    total = torch.zeros((), dtype=KINDS[dtype])
    for start in range(0, k, block_k):
        total = (total.float() + min(block_k, k - start)).to(total.dtype)
    return float(total)


def ones_by_numpy(k, block_k, dtype):
    """By hand: a number of so many digits, rounded to even, infinite beyond its largest."""
    digits, largest = {"fp16": (11, 65504), "bf16": (8, 3e38), "fp32": (24, 3e38)}[dtype]

    def rounded(value):
        spacing = max(1, 2 ** (int(value).bit_length() - digits))
        value = round(value / spacing) * spacing
        return math.inf if value > largest else value

    total = 0
    for start in range(0, k, block_k):
        if math.isinf(total):
            break
        total = rounded(total + min(block_k, k - start))
    return total


def ones_by_formula(k, block_k, dtype):
    """Whole steps add up exactly until they stick, and then the rest is rounded."""
    digits = {"fp16": 11, "bf16": 8, "fp32": 24}[dtype]
    whole = min(k // block_k, 2**digits) * block_k
    if dtype == "fp16" and whole > 65504:
        return float("inf")
    return torch.tensor(float(whole + k % block_k)).to(KINDS[dtype])


def ones_exactly(k, block_k, dtype):
    return float(k)


def ones_one_by_one(k, block_k, dtype):
    return min(k, {"fp16": 2**11, "bf16": 2**8, "fp32": 2**24}[dtype])


def ones_that_stick(k, block_k, dtype):
    return min(k, block_k * {"fp16": 2**11, "bf16": 2**8, "fp32": 2**24}[dtype])


def ones_up_to_the_largest(k, block_k, dtype):
    return min(ones_that_stick(k, block_k, dtype), 65504 if dtype == "fp16" else 1e30)


def ones_in_fp16(k, block_k, dtype):
    return ones_by_loop(k, block_k, "fp16" if dtype == "bf16" else dtype)


def ones_in_whole_steps(k, block_k, dtype):
    return ones_by_loop(up(k, block_k) * block_k, block_k, dtype)


def ones_without_a_rest(k, block_k, dtype):
    return ones_by_loop(k // block_k * block_k, block_k, dtype)


# 10.6
def in_groups(group):
    def tile_of(number, tiles_m, tiles_n, wave):
        return order.grouped(number, tiles_m, tiles_n, wave, group)

    return tile_of


def in_even_groups(number, tiles_m, tiles_n, wave):
    """Groups of about the root of a wave, of columns or rows, whichever are fewer."""
    group = max(1, round(math.sqrt(wave)))
    if tiles_m < tiles_n:
        return order.grouped(number, tiles_m, tiles_n, wave, group)
    n, m = order.grouped(number, tiles_n, tiles_m, wave, group)
    return m, n


def along_n_in_groups(number, tiles_m, tiles_n, wave):
    """Groups of eight blocks of columns, row by row."""
    n, m = order.grouped(number, tiles_n, tiles_m, wave)
    return [m, n]


def row_major(number, tiles_m, tiles_n, wave):
    return divmod(number, tiles_n)


def column_major(number, tiles_m, tiles_n, wave):
    return number % tiles_m, number // tiles_m


def turned(number, tiles_m, tiles_n, wave):
    m, n = order.grouped(number, tiles_m, tiles_n, wave)
    return n, m


def groups_all_as_high(number, tiles_m, tiles_n, wave):
    first = number // (8 * tiles_n) * 8
    inside = number % (8 * tiles_n)
    return first + inside % 8, inside // 8


def last_group_wraps(number, tiles_m, tiles_n, wave):
    first = number // (8 * tiles_n) * 8
    inside = number % (8 * tiles_n)
    return (first + inside % 8) % tiles_m, inside // 8 % tiles_n


def along_the_group(number, tiles_m, tiles_n, wave):
    """Grouped, and row by row within a group: nothing won."""
    first = number // (8 * tiles_n) * 8
    inside = number - first * tiles_n
    return first + inside // tiles_n, inside % tiles_n


# 10.7
def suspect_by_rule(tile):
    threads = 32 * tile.warps
    room = 0
    while (room + 1) * threads * tile.registers <= tile.sm_registers and (
        (room + 1) * (tile.shared_bytes + 1024) <= tile.sm_shared_bytes
    ):
        room += 1
    turns = math.ceil(tile.programs / tile.sms)
    for word, holds in (
        ("spills", tile.stack_bytes > 0),
        ("no room", room < 1),
        ("idle", turns == 1 and tile.programs != tile.sms),
        ("alone", room == tile.stages == 1),
        ("tail", 4 * tile.programs < 3 * turns * tile.sms),
    ):
        if holds:
            return word
    return "nothing"


def suspect_by_numbers(tile):
    programs, warps, stages, registers, stack, shared, sms, sm_registers, sm_shared = tile
    if stack:
        return "spills"
    if registers * 32 * warps > sm_registers or shared + 1024 > sm_shared:
        return "no room"
    if programs < sms:
        return "idle"
    two = 2 * registers * 32 * warps <= sm_registers and 2 * (shared + 1024) <= sm_shared
    if not two and stages < 2:
        return "alone"
    over = programs % sms
    return "tail" if over and programs / (programs - over + sms) < 0.75 else "nothing"


def suspect_of(change):
    """The right rule on a changed tile."""
    return lambda tile: suspects.suspect(tile._replace(**change(tile)))


def suspect_but(word, other):
    def suspect(tile):
        told = suspects.suspect(tile)
        return other if told == word else told

    return suspect


# 10.10
def roofs(tflops, dram_gbs, l2_gbs, itemsize):
    return up(3 * itemsize * 1000 * tflops, 2 * dram_gbs), up(itemsize * 1000 * tflops, l2_gbs)


def roofs_by_fractions(tflops, dram_gbs, l2_gbs, itemsize):
    balance = Fraction(tflops * 10**12, dram_gbs * 10**9)
    return [
        math.ceil(balance * itemsize * 3 / 2),
        math.ceil(Fraction(1000 * tflops, l2_gbs) * itemsize),
    ]


def roofs_by_search(tflops, dram_gbs, l2_gbs, itemsize):
    n = edge = 1
    while 2 * n**3 * dram_gbs < 3 * n**2 * itemsize * tflops * 1000:
        n += 1
    while edge * l2_gbs < itemsize * tflops * 1000:
        edge += 1
    return n, edge


def roofs_with(size=None, edge=None):
    def leaves_roofs(*args):
        right = roofs(*args)
        return tuple(f(*args) if f else r for f, r in zip((size, edge), right, strict=True))

    return leaves_roofs
