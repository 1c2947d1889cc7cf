"""The order of a measurement, tested on a device that only keeps a list of what it was asked."""

import pytest

from kernels.lab.measuring import timing


class Tape:
    """A stand-in stream: a clock that moves when work is queued, and a record of the order."""

    def __init__(self, flush_us: float = 90.0):
        self.now = 0.0
        self.flush_us = flush_us
        self.order: list[str] = []

    def work(self, name: str, us: float):
        def queue():
            self.order.append(name)
            self.now += us

        return queue

    def flush(self):
        self.order.append("flush")
        self.now += self.flush_us

    def mark(self):
        self.order.append("mark")
        return self.now

    def wait(self):
        self.order.append("wait")

    def elapsed_us(self, start, end):
        return end - start

    def clock(self):
        return self.now * 1e-6


def test_the_flush_stands_outside_the_window_and_variants_take_turns():
    tape = Tape()
    windows = {"a": tape.work("a", 10.0), "b": tape.work("b", 40.0)}
    samples = timing.time_windows(windows, tape, seconds=0.0, calls=2, clock=tape.clock)
    sample_a = ["flush", "mark", "a", "mark"]
    sample_b = ["flush", "mark", "b", "mark"]
    assert tape.order[:9] == [*sample_a, *sample_b, "wait"]
    assert tape.order[9:18] == [*sample_b, *sample_a, "wait"]  # another begins each round
    assert samples == {"a": [5.0] * timing.MIN_SAMPLES, "b": [20.0] * timing.MIN_SAMPLES}


def test_samples_follow_the_budget_between_two_bounds():
    tape = Tape(flush_us=0.0)
    samples = timing.time_windows(
        {"a": tape.work("a", 1000.0)}, tape, seconds=0.1, clock=tape.clock
    )
    assert 100 <= len(samples["a"]) <= 102
    samples = timing.time_windows({"a": tape.work("a", 1.0)}, tape, seconds=9, clock=tape.clock)
    assert len(samples["a"]) == timing.MAX_SAMPLES


def test_host_time_is_per_call_with_a_wait_at_the_end():
    tape = Tape()
    calls = {"a": tape.work("a", 50.0), "b": tape.work("b", 4000.0)}
    samples = timing.time_host(calls, tape.wait, seconds=0.0, clock=tape.clock)
    assert samples["a"] == pytest.approx([50.0] * timing.MIN_SAMPLES)
    assert samples["b"] == pytest.approx([4000.0] * timing.MIN_SAMPLES)
    assert "flush" not in tape.order
    text = "".join("," if step == "wait" else step for step in tape.order)
    runs = [run for run in text.split(",") if run][4:]  # after each variant's two first estimates
    assert {len(run) for run in runs if run[0] == "a"} == {40}  # 2 ms of the short
    assert {len(run) for run in runs if run[0] == "b"} == {1}  # a call alone may last longer


def test_quantiles():
    assert timing.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert timing.quantile([1.0, 2.0], 0.25) == 1.25
    assert timing.quantile([7.0], 0.95) == 7.0
    with pytest.raises(ValueError, match="at least one"):
        timing.quantile([], 0.5)
    told = timing.summary([float(i) for i in range(101)])
    assert told == {"time_us_p20": 20, "time_us_p50": 50, "time_us_p95": 95, "samples": 101}


def test_calls_of_a_window():
    gib = 1 << 30
    assert timing.calls_in_window(180.0, 1 << 20, 80 * gib) == 1
    assert timing.calls_in_window(30.0, 1 << 20, 80 * gib) == 4
    assert timing.calls_in_window(0.1, 8, 80 * gib) == timing.MAX_CALLS
    assert timing.calls_in_window(1.0, 4 * gib, 80 * gib) == 2  # a tenth of the memory
    assert timing.calls_in_window(1.0, 40 * gib, 80 * gib) == 1
