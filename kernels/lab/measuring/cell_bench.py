"""One cell of the bench: its variants checked, captured, timed side by side, launches counted."""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kernels import passes
from kernels.lab.measuring import correctness, paired_ratios, timing
from kernels.lab.measuring.copying import COPIES, COPY
from kernels.lab.profiling import profile
from kernels.lab.records.data import Row
from kernels.lab.selection import Cell
from kernels.registry import Variant

COPY_UNIT = 1024  # bytes
HOST_SHARE = 0.3  # of a variant's budget of seconds, what its host row gets


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def first_line(error: BaseException) -> str:
    """Return an error as one line: its type and its first sentence."""
    text = str(error).strip().splitlines()
    if not text:
        return type(error).__name__
    sentence = re.split(r"(?<=[a-z)][.!?])\s(?=[A-Z])", text[0], maxsplit=1)[0]
    return f"{type(error).__name__}: {sentence}"


def unsupported(dtype: torch.dtype) -> str | None:
    """Return why the card has no such dtype, or None."""
    if dtype == torch.bfloat16 and torch.cuda.get_device_capability() < (8, 0):
        return "bf16 needs compute capability 8.0 or later"
    return None


def input_sets(cell: Cell, device: torch.device, seed: int, count: int) -> list[dict[str, Any]]:
    """Return `count` sets of fresh random inputs of the cell."""
    return [cell.op.make(cell.case, device, seed + 97 * i) for i in range(count)]


def copy_sets(cell: Cell, device: torch.device, seed: int, count: int) -> list[dict[str, Any]]:
    """Return buffers of half the cell's ideal bytes: a copy reads and writes that many each.

    Up to the next kibibyte: where 64 bytes do not divide them (the two numbers of a seed are
    enough), the copy's kernel moves 4 bytes at a time, and on an H200 takes 1.19 times as long.
    """
    size = (max(1, -(-cell.cost.bytes_ideal // 2 // COPY_UNIT)) * COPY_UNIT,)
    generator = torch.Generator(device=device).manual_seed(seed)

    def random_bytes() -> torch.Tensor:
        return torch.randint(0, 256, size, dtype=torch.uint8, device=device, generator=generator)

    return [{"x": random_bytes()} for _ in range(count)]


def make_sets(
    cell: Cell, variant: Variant, device: torch.device, seed: int, count: int
) -> list[dict[str, Any]]:
    """Return the inputs of a variant of the cell, the copy's or the operation's."""
    make = copy_sets if variant in COPIES else input_sets
    return make(cell, device, seed, count)


def bind(
    cell: Cell, variant: Variant, inputs: Mapping[str, Any], seed: int = 0
) -> Callable[[], Any]:
    """Return the cell's pass of a variant as a call without arguments; a copy is a copy."""
    if variant in COPIES:
        return partial(variant.fn, **inputs)
    return passes.bind(cell.op, variant, inputs, cell.pass_, seed)


def in_cell(row: Row, cell: Cell) -> bool:
    """Whether a row belongs to a cell."""
    names = {COPY, *(variant.name for variant in cell.variants)}
    return row.cell == cell.key and row.variant in names


def without_fallback() -> Any:
    """A context in which code that Dynamo would leave to Python for a limit of its own raises.

    Else it runs eagerly from there on, with a line in a log, and is timed under another's name.
    """
    return torch._dynamo.config.patch(fail_on_recompile_limit_hit=True)


def this_device() -> torch.device:
    """Return the GPU that is measured: the current one."""
    return torch.device("cuda", torch.cuda.current_device())


class Bench:
    """The state of one run: its device, what it measured, what went wrong."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.device = this_device()
        self.stream = timing.CudaStream(self.device)
        self.memory = torch.cuda.get_device_properties(self.device).total_memory
        self.seed = int(time.time())
        self.rows: list[Row] = []
        self.calls_in_graph: dict[str, int] = {}  # of each cell
        self.copies: dict[str, dict[str, float]] = {}  # of each cell: both copies' medians, µs
        self.speed_ups: dict[str, dict[str, Any]] = {}  # of each cell, in a graph
        self.speed_ups_host: dict[str, dict[str, Any]] = {}  # and from Python
        self.timelines: dict[str, list[profile.Event]] = {}  # of each variant of a cell
        self.known: correctness.Known = {}  # the references of the cell at hand
        self.problems: list[str] = []  # what failed or came out wrong: exit code 1
        self.dead = False  # after an error that ends the device's service to this process

    def problem(self, text: str) -> None:
        """Say what went wrong, and remember it for the exit code."""
        self.problems.append(text)
        print(f"PROBLEM  {text}", file=sys.stderr, flush=True)

    def attempt(self, what: str, work: Callable[[], Any]) -> Any:
        """Return what `work` returns, or None after telling its error in one sentence."""
        try:
            return work()
        except Exception as error:
            self.problem(f"{what}: {first_line(error)}")
            error.__traceback__ = None  # its frames hold tensors
        gc.collect()
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # what a capture that failed had taken for its pool
        except Exception as error:
            self.problem(f"the device stopped answering ({first_line(error)}); the run ends here")
            self.dead = True
        return None

    def usable(self, cell: Cell) -> list[Variant]:
        """Return the cell's variants that run here, the copies first; say which don't, and why."""
        reason = unsupported(cell.case.dtype)
        need = 3 * cell.cost.bytes_ideal
        if reason is None and need > self.memory:
            reason = f"it needs about {need >> 20} MiB of memory"
        if reason:
            say(f"skipped  {cell.name}: {reason}")
            return []
        found = [*COPIES] if cell.has_copy else []
        for variant in cell.variants:
            reason = variant.unavailable(self.device)
            if reason:
                say(f"skipped  {cell.name} {variant.name}: {reason}")
            else:
                found.append(variant)
        return found

    def check(
        self, cell: Cell, variant: Variant, call: Callable[[], Any], inputs: dict[str, Any]
    ) -> float | None:
        """Return the error of one call; a copy or a part has none. NaN raises, a large one is told.

        A backward's error is the largest of its gradients', each held against its own tolerance. If
        the variant draws its own numbers, what is judged is another call, at probability 0.
        """
        if isinstance(call, passes.Backward):
            names = passes.differentiated(cell.op, inputs)
            sizes = [inputs[name].nbytes for name in names]
        else:
            sizes = [cell.cost.write_bytes]
        out = correctness.poisoned(call, sizes, self.device)
        torch.cuda.synchronize()
        if variant in COPIES or variant.part:
            return None
        random = cell.op.random
        judged_at_0 = isinstance(call, passes.Backward) or (random and random.outcomes is None)
        if variant.own_random and random is not None and judged_at_0:
            correctness.finite(passes.as_tuple(out))
            inputs = random.without(inputs)
            call = bind(cell, variant, inputs, self.seed)
            out = correctness.poisoned(call, sizes, self.device)
            torch.cuda.synchronize()
        if isinstance(call, passes.Backward):
            above = passes.upstream(call.outputs, self.seed)  # anew: a variant may write into them
            found = correctness.gradient_errors(cell.op, cell.case.shape, inputs, above, out)
            judge = cell.op.pass_("bwd").tolerance
            judged = {
                f" gradient of {name}": (error, judge(cell.case, name))
                for name, error in found.items()
            }
        else:
            error = correctness.relative_error(
                cell.op, cell.case.shape, inputs, out, variant.own_random, self.known
            )
            bound = cell.op.forward.tolerance(cell.case, next(iter(cell.op.outputs)))
            judged = {"": (error, bound)}
        for what, (error, tolerance) in judged.items():
            if error > tolerance.relative_norm:
                off = f"{error:.2e} > {tolerance.relative_norm:.2e}"
                self.problem(f"WRONG RESULT  {cell.name} {variant.name}{what}: {off}")
        return max(error for error, _ in judged.values())

    def estimate_us(self, call: Callable[[], Any]) -> float:
        """Return a first estimate of a call's device time in µs: the least of three."""
        call()
        samples = []
        for _ in range(3):
            self.stream.flush()
            start = self.stream.mark()
            call()
            end = self.stream.mark()
            self.stream.wait()
            samples.append(self.stream.elapsed_us(start, end))
        return min(samples)

    def measure(self, cell: Cell) -> list[Row]:
        """Return the graph and host rows of a cell: times, error, flops, ideal bytes."""
        errors: dict[str, float | None] = {}
        estimates: dict[str, float] = {}
        held: dict[str, int] = {}  # bytes that a call keeps: what a forward saves for its backward
        peaks: dict[str, int] = {}  # bytes at most that one takes beside
        sets: dict[str, list[dict[str, Any]]] = {}
        shared: list[dict[str, Any]] = []  # the operation's inputs, the same for all variants
        copied: list[dict[str, Any]] = []  # what the copies copy

        def prepare(variant: Variant) -> None:
            mine = copied if variant in COPIES else shared
            if not mine:
                mine.extend(make_sets(cell, variant, self.device, self.seed, 1))
            sets[variant.name] = mine
            before = torch.cuda.memory_allocated()
            call = bind(cell, variant, mine[0], self.seed)
            held[variant.name] = torch.cuda.memory_allocated() - before
            errors[variant.name] = self.check(cell, variant, call, mine[0])
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            estimates[variant.name] = self.estimate_us(call)
            peaks[variant.name] = torch.cuda.max_memory_allocated() - before

        variants = self.usable(cell)
        for variant in variants:
            self.attempt(f"{cell.name} {variant.name}", partial(prepare, variant))
            if self.dead:
                return []
        self.known.clear()
        working = [variant for variant in variants if variant.name in estimates]
        working = self.fitting(cell, working, held, peaks)
        if not working:
            return []

        cost = cell.cost
        of_a_call = cost.bytes_ideal + sum(held[variant.name] for variant in working)
        calls = timing.calls_in_window(min(estimates.values()), of_a_call, self.memory)
        self.calls_in_graph[cell.name] = calls
        lists = {id(sets[variant.name]): (variant, sets[variant.name]) for variant in working}
        for variant, inputs in lists.values():
            inputs += make_sets(cell, variant, self.device, self.seed + 1, calls - 1)
        torch.cuda.empty_cache()  # within a capture nothing is given back to make room
        pool = torch.cuda.graph_pool_handle()
        graphs: dict[str, timing.Captured] = {}
        for variant in working:
            if variant.waits:
                say(f"no graph {cell.name} {variant.name}: a call of it waits for the GPU")
                continue
            makers = [
                partial(bind, cell, variant, one, self.seed + number)
                for number, one in enumerate(sets[variant.name])
            ]
            what = f"{cell.name} {variant.name} in a CUDA graph"
            graph = self.attempt(what, partial(timing.make_and_capture, makers, pool))
            if self.dead:
                return []
            if graph is not None:
                graphs[variant.name] = graph

        samples: dict[str, dict[str, list[float]]] = {}
        if graphs:
            replays = {name: graph.replay for name, graph in graphs.items()}
            timing.time_windows(replays, self.stream, seconds=0.0)  # warms up; thrown away
            samples["graph"] = timing.time_windows(
                replays, self.stream, seconds=self.seconds * (1 - HOST_SHARE), calls=calls
            )
            replays.clear()
            graphs.clear()  # with all that their backwards had saved
        host = {
            variant.name: bind(cell, variant, sets[variant.name][0], self.seed)
            for variant in working
        }
        samples["host"] = timing.time_host(
            host, self.stream.wait, seconds=self.seconds * HOST_SHARE
        )
        self._keep_one_copy(cell, samples, errors)
        if "graph" in samples:
            self.speed_ups[cell.name] = paired_ratios.speed_ups(samples["graph"])
        self.speed_ups_host[cell.name] = paired_ratios.speed_ups(samples["host"])
        return [
            Row(
                *(cell.key[0], name, *cell.key[1:4]),
                timing=how,
                options=cell.key[4],
                **timing.summary(times),  # type: ignore[arg-type]
                bytes_ideal=cost.bytes_ideal,
                flops=0 if name == COPY else cost.flops,
                error=errors[name],
            )
            for how, taken in samples.items()
            for name, times in taken.items()
        ]

    def fitting(
        self,
        cell: Cell,
        variants: Sequence[Variant],
        held: Mapping[str, int],
        peaks: Mapping[str, int],
    ) -> list[Variant]:
        """Leave out those that hold most, until what all of them hold is a quarter of the memory.

        What a backward keeps of its forward is held by every variant at once, and each needs room
        for its call beside it: one without would end the cell for all. So those go too whose call
        takes the whole past a half: what graphs have freed can be in pieces.
        """

        def left_out(variant: Variant, size: int, what: str) -> None:
            found.remove(variant)
            size_gib = size / (1 << 30)
            say(f"left out {cell.name} {variant.name}: it {what} {size_gib:.1f} GiB, too much")

        found = list(variants)
        while found and sum(held[variant.name] for variant in found) > self.memory // 4:
            most = max(found, key=lambda variant: held[variant.name])
            left_out(most, held[most.name], "holds")
        of_all = sum(held[variant.name] for variant in found)
        for variant in list(found):
            if of_all + peaks[variant.name] > self.memory // 2:
                left_out(variant, peaks[variant.name], "takes")
        return found

    def _keep_one_copy(
        self,
        cell: Cell,
        samples: dict[str, dict[str, list[float]]],
        errors: dict[str, float | None],
    ) -> None:
        """Leave the faster copy's samples under the name of the baseline, and say which it was."""
        judged = samples.get("graph", samples["host"])
        names = [copy.name for copy in COPIES if copy.name in judged]
        if not names:
            return
        medians = {name: timing.quantile(judged[name], 0.5) for name in names}
        fastest = min(names, key=medians.__getitem__)
        self.copies[cell.name] = {name: round(median, 2) for name, median in medians.items()}
        errors[COPY] = None
        for how, taken in samples.items():
            kept = {COPY: taken[fastest]} if fastest in taken else {}
            rest = {name: times for name, times in taken.items() if name not in names}
            samples[how] = {**kept, **rest}

    def count_launches(self, cell: Cell) -> None:
        """Fill the column `launches` of the cell's rows, and keep the timelines.

        What a run that was cut has counted is not counted again.
        """
        measured = {row.variant for row in self.rows if in_cell(row, cell) and row.launches is None}
        medians = self.copies.get(cell.name, {})
        copies = [
            copy
            for copy in COPIES
            if medians and copy.name == min(medians, key=medians.__getitem__)
        ]
        for variant in (*copies, *cell.variants):
            name = COPY if variant in COPIES else variant.name
            if name not in measured or self.dead:
                continue

            def look(variant: Variant = variant) -> list[profile.Event]:
                inputs = make_sets(cell, variant, self.device, self.seed, 1)[0]
                return profile.timeline(bind(cell, variant, inputs, self.seed))

            found = self.attempt(f"launches of {cell.name} {name}", look)
            if found is None:
                continue
            mine = [row for row in self.rows if in_cell(row, cell) and row.variant == name]
            self.timelines[mine[0].place] = [
                (kernel, round(start, 2), round(took, 2)) for kernel, start, took in found
            ]
            self.rows = [
                replace(row, launches=len(found)) if row in mine else row for row in self.rows
            ]
