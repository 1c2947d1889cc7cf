"""Answers to 03.1 and 03.2: right ones written differently, and known-wrong ones."""

import triton


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
