"""Checks that questions share: calling the reader's code, right everywhere, launches, bytes.

A reader's function runs on CPU tensors, so that every launch is interpreted or emulated, and
counted, on a GPU machine too. What it allocates with `torch.empty` is filled with NaN, and a
PyTorch operator in a kernel's place is seen.
"""

from __future__ import annotations

import contextlib
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.cuda import CudaError, initcheck
from kernels.grading.cases import KEPT, Case, Run, memory_of
from kernels.grading.closeness import (
    changed,
    index_of,
    kind_fault,
    value_fault,
    wrong_elements,
)
from kernels.grading.diagnosis import symptom
from kernels.grading.evidence import evidence
from kernels.grading.faults import NO_KERNEL, meaning, unwritten
from kernels.grading.from_cuda import from_cuda
from kernels.grading.misplaced import misplaced
from kernels.grading.origin import own_kernels
from kernels.grading.question import PLACEHOLDER, Attempt, NotAnswered, Wrong
from kernels.lab.counting.operands import moves_bytes, tensors_in
from kernels.launch import KernelError, LaunchError, Launches, interpreting
from kernels.paths import ROOT
from kernels.registry import dtype_name

Tensor = torch.Tensor


def call(attempt: Attempt, *args: Any, **kwargs: Any) -> Any:
    """Call the reader's function; whatever it raises becomes `Wrong` or `NotAnswered`.

    `Wrong` too if it launched a kernel of the package.
    """
    with own_kernels(attempt):
        return _call(attempt, args, kwargs)


def _call(attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return attempt.answer(*args, **kwargs)
    except KernelError as error:
        if _is_placeholder(error.__cause__):
            raise NotAnswered from None
        means = meaning(error.kind, _sentence(error)) or from_cuda(error, _sentence(error))
        wrong = Wrong(f"{_sentence(error)}.", means)
        wrong.beyond = error.argument if error.kind == "bounds" else None
        raise wrong from None
    except CudaError as error:
        if unwritten(_sentence(error)):
            raise NotAnswered(NO_KERNEL) from None
        what = "The launch could not be made" if error.line is None else "The C++ doesn't compile"
        raise Wrong(f"{what}: {_sentence(error)}.") from None
    except LaunchError as error:
        raise Wrong(f"The launch could not be made: {_sentence(error)}.") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if _is_placeholder(error):
            raise NotAnswered from None
        at = _line(error)
        what = f"{type(error).__name__}: {_sentence(error)}"
        means = from_cuda(error, _sentence(error))
        raise Wrong(f"{attempt.name} raised {what}{at}.", means) from None


def _is_placeholder(error: BaseException | None) -> bool:
    return type(error) is NotImplementedError and error.args == (PLACEHOLDER,)


def _sentence(error: BaseException) -> str:
    try:
        return str(error).rstrip(".") or "no message"
    except BaseException:  # an exception of the reader's whose text raises
        return "no message"


# Where code lies that no reader of the book wrote.
_NOT_THEIRS = tuple(
    os.path.join(os.path.realpath(folder), "")
    for folder in (
        str(ROOT / "kernels"),
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    )
)


def _line(error: BaseException) -> str:
    """Where in the reader's own source it was raised, whatever is wrapped around it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f.lineno for f in frames if not _is_foreign(f.filename)]
    return f", in line {own[-1]} of its cell" if own else ""


def _is_foreign(file: str) -> bool:
    return file.startswith("<frozen ") or os.path.realpath(file).startswith(_NOT_THEIRS)


class _Watcher(TorchDispatchMode):
    """Write down the PyTorch operators that move bytes: on a GPU each is a launch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # To keep the compiler out of this mode PyTorch would import it, seconds in every check.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        space, name = func._schema.name.split("::")
        if moves_bytes(func, tensors_in((args, kwargs)), tensors_in(result)):
            self.seen.append(name if space == "aten" else f"{space}::{name}")
        return result


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@contextlib.contextmanager
def _poisoned() -> Iterator[None]:
    """Fill what `torch.empty` gives with NaN, so that an old result in that memory is no answer."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    # The public function also imports the compiler, which takes seconds in every check.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before, warn_only=warn_only)


def _called(
    attempt: Attempt, case: Case, trace: bool = False
) -> tuple[Any, Case, Launches, tuple[str, ...]]:
    """The reader's output on copies of a case's tensors, the copies, launches and operators."""
    given = {name: tensor.clone() for name, tensor in case.tensors.items()}
    # The watcher comes last: it must not see what initcheck itself does.
    with _poisoned(), initcheck(), interpreting(trace) as launches, _Watcher() as watcher:
        output = call(attempt, *given.values(), *case.options)
    return output, replace(case, tensors=given), launches, tuple(watcher.seen)


def run(attempt: Attempt, case: Case, earlier: Sequence[Run] = ()) -> Run:
    """Call the reader's function on copies of a case's tensors and judge what it returned.

    An output in the memory of an `earlier` run's is an old answer, and wrong.
    """
    output, copies, launches, operators = _called(attempt, case)
    given = copies.tensors
    ran = Run(copies, output, launches, operators)
    fault = kind_fault(output, case.like)
    if fault is None and output.numel():
        places = {memory_of(r.output) for r in earlier if r.fault is None and r.output.numel()}
        if memory_of(output) in places:
            fault = f"{KEPT}, which it overwrote or kept"
    for name, tensor in given.items():
        first = changed(case.tensors[name], tensor)
        if fault is None and first is not None:
            place = index_of(first, tuple(tensor.shape))
            fault = f"it changed its input {name}, first at {name}{place}"
    if fault is not None:
        return replace(ran, fault=fault)
    wrong = wrong_elements(output, case.reference, case.tolerance)
    if bool(wrong.any()):
        fault = value_fault(output, case.reference, wrong)
        size = _size(output)
        stored = ran.traffic(output).write_unique
        if launches.seen and stored < size:
            fault += f"; the kernel stored {stored:,} of the output's {size:,} bytes"
    return replace(ran, fault=fault, wrong=wrong)


@contextlib.contextmanager
def index_told(attempt: Attempt, case: Case) -> Iterator[None]:
    """Say of a `Wrong` in the block, on `case`, which index is another tensor's, if one is."""
    try:
        yield
    except Wrong as wrong:
        if wrong.beyond is not None:
            told = misplaced(case, wrong.beyond, lambda case: _called(attempt, case)[0])
            wrong.means = told or wrong.means
        raise


def remark(runs: list[Run], explain: Callable[[list[Run]], str]) -> str:
    """What wrong runs mean: what their question's `explain` makes of them, or a plain symptom."""
    return explain(runs) or symptom(runs)


def right_everywhere(
    attempt: Attempt, cases: Sequence[Case], explain: Callable[[list[Run]], str]
) -> list[Run]:
    """Run every case; `Wrong` if one is wrong, with what `explain` makes of all of them."""
    runs: list[Run] = []
    for case in cases:
        with index_told(attempt, case):
            runs.append(run(attempt, case, runs))
    failed = [r for r in runs if r.fault is not None]
    if failed:
        first = failed[0]
        shown = evidence(first, lambda case: _called(attempt, case, trace=True)[:3])
        also = f" {len(failed)} of {len(runs)} inputs fail." if len(runs) > 1 else ""
        stored = f"; {shown.stored}" if shown.stored else ""
        raise Wrong(
            f"{attempt.name} on {first.case}: {first.fault}{stored}.{also}",
            remark(runs, explain),
            pictures=shown.pictures,
        )
    shapes = {tuple(case.x.shape) for case in cases}
    dtypes = ", ".join(dict.fromkeys(dtype_name(case.x.dtype) for case in cases))
    attempt.held.append(f"right on {len(runs)} random inputs: {len(shapes)} shapes, {dtypes}")
    return runs


def computed_by_kernels(
    attempt: Attempt, runs: Sequence[Run], launches: int, language: str = "Triton"
) -> None:
    """`Wrong` unless the reader's kernels, in so many launches, did all the work."""
    for r in runs:
        names = ", ".join(dict.fromkeys(r.operators))
        if not r.launches.seen:
            by = f": PyTorch's {names} computed the output" if names else ""
            raise Wrong(
                f"{attempt.name} launched no {language} kernel{by}.",
                "The values are right, but the question is about a kernel of yours.",
            )
        if r.operators:
            raise Wrong(
                f"Beside its kernel, {attempt.name} ran PyTorch operators: {names}.",
                "On a GPU each of them is a launch of its own and moves bytes of its own. "
                "Allocate with torch.empty_like, and do the rest in the kernel.",
            )
        count = len(r.launches)
        if count != launches:
            kernels = ", ".join(launch.name for launch in r.launches)
            raise Wrong(
                f"{attempt.name} made {count} launches ({kernels}) on {r.case}; {launches} will do."
            )
        stored, size = r.traffic(r.output).write_unique, _size(r.output)
        if stored < size:
            raise Wrong(
                f"The launches stored {stored:,} of the output's {size:,} bytes on {r.case}: "
                f"something else made the rest."
            )
        for name, tensor in r.case.tensors.items():
            if r.traffic(tensor).read_unique < _size(tensor):
                raise Wrong(f"The launches don't read all of {name} on {r.case}.")
    plural = "launch" if launches == 1 else "launches"
    attempt.held.append(f"{launches} {plural} of your own, and no PyTorch operator beside it")


def reads_once(attempt: Attempt, runs: Sequence[Run], name: str) -> None:
    """`Wrong` if a launch asks for an element of the tensor `name` more than once."""
    for r in runs:
        moved = r.traffic(r.case.tensors[name])
        if moved.times_read > 1:
            raise Wrong(
                f"{name} is read {moved.times_read:.1f} times on {r.case}; once will do.",
                "Each load asks memory again. What a program keeps in a variable stays in "
                "registers, and costs nothing to use twice.",
                hint=f"Load {name} once, and use the loaded value for the sums and the output.",
            )
    attempt.held.append(f"{name} is read 1.0 times")


def within_bytes(
    attempt: Attempt, runs: Sequence[Run], ideal: Callable[[Case], int], what: str
) -> None:
    """`Wrong` if the launches touch more distinct bytes than `ideal(case)`."""
    for r in runs:
        arenas = [launch.arena for launch in r.launches if launch.arena]
        moved = sum(total[1] + total[3] for arena in arenas for total in arena.totals())
        if moved > ideal(r.case):
            raise Wrong(
                f"The launches touch {moved:,} distinct bytes on {r.case}; the budget is "
                f"{ideal(r.case):,}: {what}."
            )
    attempt.held.append(f"the distinct bytes are the least there are: {what}")
