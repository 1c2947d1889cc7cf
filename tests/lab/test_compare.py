"""Paired ratios and verdicts, and the report made of them."""

import math
import random

import pytest

from kernels.lab.__main__ import main
from kernels.lab.measuring.paired_ratios import (
    NOT_SUPPORTED,
    RERUN,
    SUPPORTED,
    SpeedUp,
    rank_of_interval,
    speed_up,
    speed_ups,
)
from kernels.lab.records import lab_report
from kernels.lab.records.data import Recording
from tests.lab.test_data import a_row


@pytest.mark.parametrize("pairs", [6, 30, 101, 200])
def test_the_interval_holds_the_median_as_often_as_it_says(pairs):
    k = rank_of_interval(pairs)

    def coverage(k):
        return 1 - 2 * sum(math.comb(pairs, i) for i in range(k)) / 2**pairs

    assert coverage(k) >= 0.95
    assert coverage(k + 1) < 0.95


def test_few_pairs_give_their_extremes():
    assert rank_of_interval(3) == 1


def test_a_slow_moment_that_hits_both_leaves_the_ratio_alone():
    slow = [1.0, 1.0, 3.0, 1.0, 2.0] * 8
    up = speed_up([10 * s for s in slow], [15 * s for s in slow])
    assert (up.ratio, up.low, up.high) == (1.5, 1.5, 1.5)


def test_pairs_are_needed():
    with pytest.raises(ValueError, match="3 and 2 samples are no pairs"):
        speed_up([1.0, 1.0, 1.0], [1.0, 1.0])


@pytest.mark.parametrize(
    ("up", "verdict"),
    [
        (SpeedUp(1.50, 1.48, 1.52, 0.03, 30), SUPPORTED),
        (SpeedUp(0.80, 0.79, 0.81, 0.03, 30), NOT_SUPPORTED),
        (SpeedUp(1.002, 1.001, 1.003, 0.001, 30), SUPPORTED),
        (SpeedUp(1.002, 0.999, 1.004, 0.001, 30), NOT_SUPPORTED),
        (SpeedUp(1.02, 0.97, 1.08, 0.20, 30), RERUN),
        (SpeedUp(1.05, 1.01, 1.09, 0.30, 30), RERUN),
    ],
)
def test_verdicts(up, verdict):
    assert up.verdict == verdict


def test_speed_ups_over_each_baseline_that_was_timed():
    random.seed(0)
    noise = [1 + 0.01 * random.random() for _ in range(40)]
    samples = {
        "copy": [9 * n for n in noise],
        "torch": [20 * n for n in noise],
        "fused": [10 * n for n in noise],
    }
    told = speed_ups(samples)
    assert set(told) == {"torch", "fused"}
    assert set(told["fused"]) == {"copy", "torch"}
    assert told["fused"]["torch"]["ratio"] == 2.0
    assert told["fused"]["torch"]["verdict"] == SUPPORTED
    assert told["fused"]["copy"]["verdict"] == NOT_SUPPORTED


def a_recording():
    up = {"ratio": 1.5, "low": 1.4, "high": 1.6, "noise": 0.02, "pairs": 30, "verdict": SUPPORTED}
    noisy = {**up, "ratio": 1.01, "low": 0.9, "high": 1.1, "noise": 0.3, "verdict": RERUN}
    kernel = {"dram_pct": 90.9, "occupancy_pct": 93.1, "issue_pct": 20.0}
    cell = {"op": "layernorm", "shape": "64x1000", "dtype": "fp32", "variant": "fused"}
    cells = [
        {**cell, "pass_": "fwd", "kernels": [kernel]},
        {**cell, "pass_": "bwd", "kernels": [{**kernel, "dram_pct": 80.1}]},
    ]
    told = {
        "card": {"name": "A card"},
        "date": "2026-11-28T00:00:00Z",
        "command": "python -m kernels.lab bench norms",
        "speed_ups": {
            "layernorm 64x1000 fp32": {"fused": {"torch": up, "eager": noisy}},
            "layernorm 64x1000 fp32 bwd": {"fused": {"torch": {**up, "ratio": 2.5}}},
        },
        "profile": {"cells": cells},
    }
    return Recording("a-card", "norms", (a_row(), a_row(pass_="bwd", time_us_p50=7.25)), told)


def test_the_report_tells_decisions_evidence_counters_and_boundary():
    text = lab_report.page(a_recording())
    assert "| layernorm: fused is faster than torch | 1 | 0 | 0 | 1.50 to 1.50 |" in text
    assert "| layernorm: fused is faster than eager | 0 | 1 | 0 | 1.01 to 1.01 |" in text
    assert "1.50 (1.40 to 1.60)" in text
    assert "| 90.9 % | 93.1 % | 20.0 % |" in text
    assert "| layernorm bwd: fused is faster than torch | 1 | 0 | 0 | 2.50 to 2.50 |" in text
    assert "layernorm bwd: fused is faster than eager" not in text
    assert "| layernorm 64x1000 fp32 bwd | 2.50, 7.25, 3.12 |" in text
    assert "| layernorm 64x1000 fp32 bwd | fused | 80.1 % |" in text
    assert "Noise asks for a rerun: layernorm 64x1000 fp32 over eager." in text


def test_the_report_decides_on_calls_from_python_too():
    recording = a_recording()
    up = {"ratio": 0.5, "low": 0.4, "high": 0.6, "noise": 0.02, "pairs": 30}
    up["verdict"] = NOT_SUPPORTED
    recording.provenance["speed_ups_host"] = {"layernorm 64x1000 fp32": {"fused": {"torch": up}}}
    assert (
        "| layernorm: fused is faster than torch | 0 | 0 | 1 | 0.50 to 0.50 |"
        in lab_report.decisions(recording, "host")
    )


def test_without_ratios_within_rounds_calls_from_python_are_judged_by_quantiles():
    def timed(variant, p20, p50, p95):
        times = {"time_us_p20": p20, "time_us_p50": p50, "time_us_p95": p95}
        return a_row(variant=variant, timing="host", **times)

    rows = [timed("fused", 9.0, 10.0, 11.0), timed("torch", 12.0, 20.0, 30.0)]
    rows += [timed("eager", 10.0, 15.0, 20.0), timed("liger", 5.0, 6.0, 7.0)]
    told = lab_report.decisions(Recording("a-card", "norms", tuple(rows), {}), "host")
    assert "| layernorm: fused is faster than torch | 1 | 0 | 0 | 2.00 to 2.00 |" in told
    assert "| layernorm: fused is faster than eager | 0 | 1 | 0 | 1.50 to 1.50 |" in told
    assert "| layernorm: fused is faster than liger | 0 | 0 | 1 | 0.60 to 0.60 |" in told


def test_the_report_tells_of_dram_bytes_that_are_another_commits():
    recording = a_recording()
    assert "profiled apart" not in lab_report.page(recording)
    recording.provenance["commit"] = "abc"
    recording.provenance["profile"] |= {"commit": "abc", "date": "2026-11-27T10:00:00Z"}
    assert "profiled apart" not in lab_report.page(recording)
    recording.provenance["profile"]["commit"] = None  # outside a clone nothing tells
    assert "profiled apart" not in lab_report.page(recording)
    recording.provenance["profile"]["commit"] = 4 * "0123456789"
    told = "DRAM bytes were profiled apart, on 2026-11-27 at commit `0123456789`, of the kernels"
    assert told in lab_report.page(recording)


def test_a_suite_that_was_recorded_nowhere_is_one_sentence(capsys):
    assert main(["report", "inference"]) == 2
    assert "suite 'inference' was recorded on no card; recorded: " in capsys.readouterr().err
