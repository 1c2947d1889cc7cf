"""How a time is taken: windows on the device's own timeline, interleaved, each from a cold cache.

**graph** rows. `calls` calls of a variant are captured into one CUDA graph, each on inputs of its
own and keeping its output. One sample is: flush the L2, mark, replay, mark. The marks are CUDA
events, so neither the flush nor Python stands inside the window; the flush keeps the device busy
long enough for Python to queue what follows. A window costs about 1 to 3 µs of its own (a graph's
start, the events); `calls` is chosen so that the window lasts 100 µs or more, which makes that a
few per cent at most, and is the same for all variants of a row. The calls of a window find a cold
cache too: their inputs differ, and nothing has read them since the flush.

The flush *writes* a buffer larger than the L2. It leaves the cache full of lines that must be
written back, so each line a kernel writes pays for one such line, as in a steady stream; after a
flush that only reads, up to one L2 of output would never be paid for.

**host** rows. `n` calls back to back from Python, a wait at the end, wall time over `n`: the
larger of what Python needs for a launch and what the device needs. No flush: the caches are warm.

Samples of one turn stand at the same index in each variant's list, so that paired ratios can be
taken from them.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

MIN_SAMPLES = 30
MAX_SAMPLES = 200
WINDOW_US = 100.0  # a graph's window lasts this long or longer
MAX_CALLS = 32  # calls captured into one graph, at most
HOST_WINDOW_S = 2e-3
FLUSH_BYTES = 256 << 20

Clock = Callable[[], float]


class Stream(Protocol):
    """What the timing asks of a device."""

    def flush(self) -> object:
        """Fill the L2 with lines that belong to no variant."""

    def mark(self) -> Any:
        """Put a mark on the device's timeline and return it."""

    def wait(self) -> object:
        """Wait until the device has done all that was queued."""

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Return the time between two marks in µs; call it after `wait`."""


class CudaStream:
    """The current CUDA stream, with a flush buffer of four times the L2 or 256 MiB."""

    def __init__(self, device: torch.device) -> None:
        self.l2_bytes = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
        size = max(FLUSH_BYTES, 4 * self.l2_bytes)
        self._buffer = torch.empty(size, dtype=torch.uint8, device=device)

    def flush(self) -> None:
        """Write the flush buffer."""
        self._buffer.zero_()

    def mark(self) -> torch.cuda.Event:
        """Record a CUDA event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        """Synchronise the device."""
        torch.cuda.synchronize()

    def elapsed_us(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return the time between two events in µs."""
        return float(start.elapsed_time(end)) * 1e3


def quantile(samples: Sequence[float], fraction: float) -> float:
    """Return the quantile of `samples` at `fraction` of the way, linear between two samples."""
    if not samples:
        raise ValueError("a quantile needs at least one sample")
    ordered = sorted(samples)
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def summary(samples: Sequence[float]) -> dict[str, float | int]:
    """Return p20, p50, p95 (µs) and the number of samples, under the names of a row's columns."""
    return {
        "time_us_p20": quantile(samples, 0.20),
        "time_us_p50": quantile(samples, 0.50),
        "time_us_p95": quantile(samples, 0.95),
        "samples": len(samples),
    }


def _turn(names: Sequence[str], turn: int) -> list[str]:
    """Return the names beginning one further each turn, so that none always follows the same."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def time_windows(
    windows: Mapping[str, Callable[[], object]],
    stream: Stream,
    *,
    seconds: float,
    calls: int = 1,
    clock: Clock = time.perf_counter,
) -> dict[str, list[float]]:
    """Return samples in µs per call, one list a window, the windows interleaved sample by sample.

    A window is whatever a function queues on the device; it holds `calls` calls. `seconds` is
    the budget of one window; at least MIN_SAMPLES samples are taken, at most MAX_SAMPLES.
    """
    names = list(windows)
    samples: dict[str, list[float]] = {name: [] for name in names}
    started = clock()
    for turn in range(MAX_SAMPLES):
        if turn >= MIN_SAMPLES and clock() - started > seconds * len(names):
            break
        marks = []
        for name in _turn(names, turn):
            stream.flush()
            start = stream.mark()
            windows[name]()
            marks.append((name, start, stream.mark()))
        stream.wait()
        for name, start, end in marks:
            samples[name].append(stream.elapsed_us(start, end) / calls)
    return samples


def time_host(
    calls: Mapping[str, Callable[[], object]],
    wait: Callable[[], object],
    *,
    seconds: float,
    clock: Clock = time.perf_counter,
) -> dict[str, list[float]]:
    """Return samples in µs per call from Python, back to back, the variants interleaved."""

    def window(name: str, count: int) -> float:
        call = calls[name]
        wait()
        started = clock()
        for _ in range(count):
            call()
        wait()
        return (clock() - started) / count

    counts = {}
    for name in calls:
        window(name, 3)
        once = max(window(name, 5), 1e-7)
        counts[name] = min(max(round(HOST_WINDOW_S / once), 1), 500)
    names = list(calls)
    samples: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()  # a collection inside a window would be told as launch cost
    try:
        started = clock()
        for turn in range(MAX_SAMPLES):
            if turn >= MIN_SAMPLES and clock() - started > seconds * len(names):
                break
            for name in _turn(names, turn):
                samples[name].append(window(name, counts[name]) * 1e6)
    finally:
        if collecting:
            gc.enable()
    return samples


def calls_in_window(fastest_us: float, set_bytes: int, memory_bytes: int) -> int:
    """Return how many calls one graph holds: enough for WINDOW_US of the fastest variant.

    `set_bytes` are the bytes of one call's inputs and output: all of them together stay under a
    tenth of the memory.
    """
    wanted = math.ceil(WINDOW_US / max(fastest_us, 0.5))
    fitting = (memory_bytes // 10) // max(set_bytes, 1)
    return max(1, min(wanted, fitting, MAX_CALLS))


def capture(
    calls: Sequence[Callable[[], object]], pool: Any, stream: torch.cuda.Stream | None = None
) -> torch.cuda.CUDAGraph:
    """Capture the calls in order into one CUDA graph, all outputs kept until its end.

    The calls must have run before: compilation and library handles may not be captured. Graphs of
    one `pool` share their memory, which is safe since no output is read after a replay. Without a
    `stream` PyTorch's own for captures is taken.
    """
    graph = torch.cuda.CUDAGraph()
    outputs = []
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        for call in calls:
            outputs.append(call())  # kept: a freed output would lend its cached lines to the next
    return graph


@dataclass(frozen=True)
class Captured:
    """A CUDA graph and the calls in it, which hold what a replay reads."""

    graph: torch.cuda.CUDAGraph
    calls: tuple[Callable[[], object], ...]

    def replay(self) -> None:
        """Queue all the calls."""
        self.graph.replay()


def make_and_capture(makers: Sequence[Callable[[], Callable[[], object]]], pool: Any) -> Captured:
    """Make a call with each maker and capture the calls in order into one CUDA graph.

    Calls are made on the stream that captures them, since a backward runs on the stream of its
    forward. Each runs once there before the capture: what it makes once and keeps, as weights that
    are folded or quantised for all calls, is no part of the graph.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls = tuple(make() for make in makers)
        for call in calls:
            call()
    return Captured(capture(calls, pool, stream), calls)
