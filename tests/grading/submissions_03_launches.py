"""Answers to 03.1, 03.2 and 03.9: right ones written differently, and known-wrong ones."""

import torch
import triton
import triton.language as tl

from kernels.lab import traffic


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


def launch_rounded_up(n, BLOCK):
    programs = -(-n // BLOCK)
    return [programs, 3 * programs * BLOCK, 3 * (programs * BLOCK - n)]


def launch_by_remainder(n, BLOCK):
    programs = n // BLOCK + (n % BLOCK > 0)
    return programs, 3 * programs * BLOCK, 3 * (-n % BLOCK)


def launch_by_cdiv(n, BLOCK):
    lanes = triton.cdiv(n, BLOCK) * BLOCK
    return lanes // BLOCK, 3 * lanes, 3 * (lanes - n)


def cause_by_bytes(right, other):
    ours, theirs = right.tensor("y"), other.tensor("y")
    if theirs.write_unique != ours.write_unique:
        return "grid too small" if theirs.write_unique < ours.write_unique else "stores wider"
    if other.tensor("x").read_requested > right.tensor("x").read_requested:
        return "loads twice"
    return "lanes idle" if other.masked_lanes > right.masked_lanes else "nothing"


def cause_by_ratios(right, other):
    stored = other.tensor("y").write_unique / right.tensor("y").write_unique
    if stored == 2:
        return "stores wider"
    if stored < 1:
        return "grid too small"
    if other.tensor("x").times_read == 2:
        return "loads twice"
    return ("nothing", "lanes idle")[other.lanes > right.lanes]


def cause_by_reads(right, other):
    if other.tensor("x").read_unique < right.tensor("x").read_unique:
        return "grid too small"
    if other.bytes_requested > other.bytes_unique:
        return "loads twice"
    if other.bytes_unique > right.bytes_unique:
        return "stores wider"
    return "lanes idle" if other.masked_lanes > right.masked_lanes else "nothing"


def cause_by_programs(right, other):
    """Take every smaller grid for one that is too small."""
    return "grid too small" if other.programs < right.programs else cause_by_bytes(right, other)


def cause_by_lanes_first(right, other):
    """Ask for masked lanes before bytes: a second load has some too."""
    return "lanes idle" if other.masked_lanes > right.masked_lanes else cause_by_bytes(right, other)


def cause_by_distinct_bytes(right, other):
    """Look for a second load in distinct bytes, where it leaves no trace."""
    told = cause_by_bytes(right, other)
    return "nothing" if told == "loads twice" else told


def cause_by_fewer_masked(right, other):
    """Take fewer masked lanes for a grid that is too small."""
    told = cause_by_bytes(right, other)
    small = told in ("nothing", "grid too small") and other.masked_lanes < right.masked_lanes
    return "grid too small" if small else "nothing" if told == "grid too small" else told


def cause_by_lanes_of_a_program(right, other):
    """Take more lanes in as many programs for a second load."""
    told = cause_by_bytes(right, other)
    twice = other.lanes > right.lanes and other.programs == right.programs
    return "loads twice" if twice and told in ("loads twice", "lanes idle") else told


def launch_by_launching(n, BLOCK):
    """Count a launch in a prediction's place."""
    x, y, out = torch.zeros(3, n)
    (step,) = traffic.count(lambda: add_kernel[(triton.cdiv(n, BLOCK),)](x, y, out, n, BLOCK=BLOCK))
    return step.programs, step.lanes, step.masked_lanes


def _shapes(n):
    return [(rows, n // rows) for rows in range(1, n + 1) if n % rows == 0]


def _tiles(shape, block):
    return triton.cdiv(shape[0], block) * triton.cdiv(shape[1], block)


def extremes_by_tiles(n, BLOCK):
    return min(_shapes(n), key=lambda shape: _tiles(shape, BLOCK)), (1, n)


def extremes_by_share(n, BLOCK):
    def idle(shape):
        lanes = _tiles(shape, BLOCK) * BLOCK * BLOCK
        return 1 - n / lanes

    shapes = _shapes(n)[::-1]
    return [min(shapes, key=idle), max(shapes, key=idle)]


def extremes_by_sorting(n, BLOCK):
    shapes = sorted(_shapes(n), key=lambda shape: -(-shape[0] // BLOCK) * -(-shape[1] // BLOCK))
    return shapes[0], shapes[-1]


def extremes_near_a_square(n, BLOCK):
    """Take the shape nearest to a square for the best: its edges may be just over a tile."""
    return min(_shapes(n), key=lambda shape: abs(shape[0] - shape[1])), (1, n)


def extremes_the_wrong_way_round(n, BLOCK):
    return extremes_by_tiles(n, BLOCK)[::-1]


def extremes_in_whole_blocks(n, BLOCK):
    """Lose the elements that don't fill a row of tiles."""
    return (BLOCK, n // BLOCK) if n > BLOCK else (1, n), (1, n)


def extremes_with_two_rows(n, BLOCK):
    """Take two rows for the thinnest matrix."""
    shapes = _shapes(n)
    return extremes_by_tiles(n, BLOCK)[0], shapes[min(1, len(shapes) - 1)]
