"""Answers to the questions of set 01: right ones written differently, and known-wrong ones."""

import itertools
import math
from fractions import Fraction

import numpy as np


def add_by_tensor(rows, cols, itemsize):
    return itemsize * sum((rows * cols, cols, rows * cols))


def add_in_one_formula(rows, cols, itemsize):
    return (2 * rows + 1) * cols * itemsize


def add_by_numpy(rows, cols, itemsize):
    return np.prod([2 * rows + 1, cols, itemsize])


def bound_by_ridge(m, k, n, itemsize, bandwidth_gbs, peak_tflops):
    intensity = 2 * m * k * n / ((m * k + k * n + m * n) * itemsize)
    return intensity, "memory" if intensity < peak_tflops * 1000 / bandwidth_gbs else "arithmetic"


def bound_by_time(m, k, n, itemsize, bandwidth_gbs, peak_tflops):
    moved, flops = itemsize * (m * k + k * n + m * n), 2.0 * m * n * k
    slower = moved / (bandwidth_gbs * 1e9) > flops / (peak_tflops * 1e12)
    return [flops / moved, ("arithmetic", "memory")[slower]]


def bound_by_harmonic_sum(m, k, n, itemsize, bandwidth_gbs, peak_tflops):
    intensity = 2 / itemsize / (1 / m + 1 / k + 1 / n)
    bound = "arithmetic" if intensity * bandwidth_gbs > 1e3 * peak_tflops else "memory"
    return np.float64(intensity), bound


def passes_by_sum(lines, sizes, name):
    return sum(line[2] for line in lines if line[1] == name) / sizes[name]


def passes_by_loop(lines, sizes, name):
    times = 0
    for _, tensor, read, _ in lines:
        if tensor == name:
            times += read / sizes[tensor]
    return times


def passes_by_fraction(lines, sizes, name):
    return sum((Fraction(read, sizes[t]) for _, t, read, _ in lines if t == name), Fraction(0))


def passes_by_lines(lines, sizes, name):
    """Count each line that reads as one pass, a read of a part too."""
    return sum(1 for _, tensor, read, _ in lines if tensor == name and read)


def passes_with_writes(lines, sizes, name):
    """Count what was written as well."""
    return sum(read + wrote for _, t, read, wrote in lines if t == name) / sizes[name]


def share_by_bandwidth(rows, cols, itemsize, time_us, bandwidth_gbs):
    return 3 * rows * cols * itemsize / (time_us / 1e6) / 1e9 / bandwidth_gbs


def share_by_time(rows, cols, itemsize, time_us, bandwidth_gbs):
    least_us = 3 * rows * cols * itemsize / (bandwidth_gbs * 1e9) * 1e6
    return least_us / time_us


def share_in_one_formula(rows, cols, itemsize, time_us, bandwidth_gbs):
    return rows * cols * itemsize * 3e-3 / (time_us * bandwidth_gbs)


def roof_by_time(kernels, bandwidth, peak):
    seconds = sum(max(moved / bandwidth, flops / peak) for flops, moved in kernels)
    return seconds, sum(flops for flops, _ in kernels) / seconds


def roof_by_intensity(kernels, bandwidth, peak):
    """Find each kernel's rate under the roof first, and its time from that."""
    seconds, work = [], []
    for flops, moved in kernels:
        rate = min(peak, flops / moved * bandwidth)
        seconds.append(flops / rate if flops else moved / bandwidth)
        work.append(rate * seconds[-1])
    return [math.fsum(seconds), math.fsum(work) / math.fsum(seconds)]


def roof_by_cases(kernels, bandwidth, peak):
    total, work = Fraction(0), 0
    for flops, moved in kernels:
        memory_binds = flops * bandwidth < moved * peak
        total += Fraction(moved / bandwidth if memory_binds else flops / peak)
        work += flops
    return total, np.float64(work / total)


def warps_in_ints(bandwidth_gbs, latency_ns, sms, loads, width):
    return -(-bandwidth_gbs * latency_ns // (sms * 32 * loads * width))


def warps_by_ceil(bandwidth_gbs, latency_ns, sms, loads, width):
    return math.ceil(bandwidth_gbs * latency_ns / sms / 32 / loads / width)


def warps_in_base_units(bandwidth_gbs, latency_ns, sms, loads, width):
    on_their_way = bandwidth_gbs * 1e9 * (latency_ns * 1e-9)
    return math.ceil(on_their_way / (32 * loads * width) / sms)


def warps_step_by_step(bandwidth_gbs, latency_ns, sms, loads, width):
    """Round up at every step, which comes to the same."""
    each = math.ceil(bandwidth_gbs * latency_ns / sms)
    threads = math.ceil(each / (loads * width))
    return math.ceil(threads / 32)


def _plans(count, most):
    """Every plan of `count` steps, the longest first kernels first."""
    if count == 0:
        yield []
    for length in range(min(most, count), 0, -1):
        for rest in _plans(count - length, most):
            yield [length, *rest]


def _moved(plan, steps, sizes, results, fault=""):
    """The bytes of a plan, with one fault in the count."""
    if fault == "elements":
        sizes = dict.fromkeys(sizes, 1)
    if fault == "no results":
        results = (steps[-1][1],)
    total, start = 0, 0
    for length in plan:
        made, loaded = set(), set()
        for reads, written in steps[start : start + length]:
            loaded |= set(reads) - made
            made.add(written)
        start += length
        kept = set(results).union(*(reads for reads, _ in steps[start:]))
        stored = made if fault == "all written" else made & kept
        total += sum(sizes[name] for name in loaded) + sum(sizes[name] for name in stored)
    return total


def plan_with(fault):
    """The best plan, by a count of bytes with one fault ("" for none)."""

    def best_plan(steps, sizes, results, most):
        plans = _plans(len(steps), most)
        return min(plans, key=lambda plan: _moved(plan, steps, sizes, results, fault))

    return best_plan


plan_by_trying = plan_with("")


def plan_least_by(moved):
    """The best plan by a count that takes the grader's chain."""
    from kernels.grading.questions.ch01.fusion import Chain, least

    def best_plan(steps, sizes, results, most):
        return list(least(Chain(tuple(steps), sizes, results, most), moved)[-1])

    return best_plan


def plan_as_cuts(steps, sizes, results, most):
    """Where the best plan is cut, in place of how long its kernels are."""
    plan = plan_by_steps(steps, sizes, results, most)
    return [sum(plan[:n]) for n in range(1, len(plan) + 1)]


def plan_by_steps(steps, sizes, results, most):
    """The best plan of the first n steps, from those of fewer."""
    best = [(0, ())]
    for end in range(1, len(steps) + 1):
        found = []
        for start in range(max(0, end - most), end):
            made = {written for _, written in steps[start:end]}
            read = {name for reads, _ in steps[start:end] for name in reads} - made
            later = {name for reads, _ in steps[end:] for name in reads} | set(results)
            moved = sum(map(sizes.get, read)) + sum(map(sizes.get, made & later))
            found.append((best[start][0] + moved, (*best[start][1], end - start)))
        best.append(min(found))
    return best[-1][1]


def plan_by_bytes_saved(steps, sizes, results, most):
    """Ask for the bytes that a plan saves against one kernel a step."""

    def saved(plan):
        ends = list(itertools.accumulate(plan))
        total = 0
        for start, end in itertools.pairwise([0, *ends]):
            last = {name: n for n, (reads, _) in enumerate(steps) for name in reads}
            seen = set()
            for reads, written in steps[start:end]:
                total += sum(sizes[name] for name in set(reads) & seen)
                seen |= {*reads, written}
                used_up = last.get(written, len(steps)) < end and written not in results
                total += sizes[written] if used_up else 0
        return total

    return max(_plans(len(steps), most), key=saved)


def plan_of_fewest_kernels(steps, sizes, results, most):
    """The fewest kernels, and of such plans the one with the fewest bytes."""
    fewest = -(-len(steps) // most)
    plans = [plan for plan in _plans(len(steps), most) if len(plan) == fewest]
    return min(plans, key=lambda plan: _moved(plan, steps, sizes, results, ""))


def plan_filled(steps, sizes, results, most):
    """Fill each kernel before the next starts."""
    full, rest = divmod(len(steps), most)
    return [most] * full + [rest] * (rest > 0)


def _floors(row):
    return {
        "launches": row["launches"] * row["launch_us"],
        "arithmetic": row["flops"] / row["peak"] * 1e6,
        "DRAM": row["bytes_dram"] / row["bandwidth"] * 1e6,
    }


def _of_bytes(row):
    if row["bytes_dram"] > 1.5 * row["bytes_unique"]:
        return "misses"
    return "passes" if row["bytes_unique"] > 1.5 * row["bytes_ideal"] else "roof"


def cause_by_floors(row):
    floors = _floors(row)
    longest = max(floors, key=floors.get)
    if row["time_us"] > 1.5 * floors[longest]:
        return "latency"
    return _of_bytes(row) if longest == "DRAM" else longest


def cause_with_floors(seconds=False, dram="bytes_dram"):
    """By the floors, in the wrong unit or of the wrong bytes."""

    def cause(row):
        unit = 1 if seconds else 1e6
        floors = {
            "launches": row["launches"] * row["launch_us"],
            "arithmetic": unit * row["flops"] / row["peak"],
            "DRAM": unit * row[dram] / row["bandwidth"],
        }
        longest = max(floors, key=floors.get)
        if row["time_us"] >= 2 * floors[longest] * (1 - 1e-3):
            return "latency"
        return _of_bytes(row) if longest == "DRAM" else longest

    return cause


def cause_backwards(row):
    """Find the floor that is near the time; where none is, it is latency."""
    for name, floor in _floors(row).items():
        if row["time_us"] <= 1.3 * floor:
            return _of_bytes(row) if name == "DRAM" else name
    return "latency"


def cause_by_ratios(row):
    seconds = row["time_us"] / 1e6
    if row["launches"] * row["launch_us"] / row["time_us"] > 0.7:
        return "launches"
    if row["flops"] / seconds > 0.7 * row["peak"]:
        return "arithmetic"
    if row["bytes_dram"] / seconds < 0.7 * row["bandwidth"]:
        return "latency"
    if row["bytes_dram"] < 1.6 * row["bytes_ideal"]:
        return "roof"
    return "misses" if row["bytes_dram"] / row["bytes_unique"] >= 1.9 else "passes"


def cause_without_time(row):
    """Never compare the longest floor with the time."""
    return cause_by_floors(row | {"time_us": 0.0})


def cause_with_time_in_seconds(row):
    """Compare a time in seconds with floors in µs."""
    return cause_by_floors(row | {"time_us": row["time_us"] / 1e6})


def cause_with_passes_first(row):
    """Compare the unique bytes with the ideal before DRAM's with the unique."""
    told = cause_by_floors(row)
    passes = row["bytes_unique"] >= 2 * row["bytes_ideal"] * (1 - 1e-3)
    return "passes" if told == "misses" and passes else told


def cause_of_one_launch(row):
    """Take one launch's time for that of all."""
    return cause_by_floors(row | {"launches": 1})


def cause_by_bytes_first(row):
    """Ask for extra bytes before asking what binds."""
    told = _of_bytes(row)
    return told if told != "roof" else cause_by_floors(row)


def cause_without_dram(row):
    """Never look at what DRAM moved beyond the launches' bytes."""
    told = cause_by_floors(row)
    return "roof" if told == "misses" else told


def cause_without_ideal(row):
    """Never look at what the launches touch beyond the ideal."""
    told = cause_by_floors(row)
    return "roof" if told == "passes" else told
