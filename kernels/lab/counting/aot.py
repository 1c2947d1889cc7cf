"""Every registered launch compiled for other cards, with no GPU: what each kernel takes of an SM.

Each variant of kernels in Triton or CUDA C++ is recorded at the shapes of its operation, those of
the suite and those beyond it, without gradients, in training and going back, in the configuration
it would choose on each card, and compiled ahead of time. Triton keeps what it compiled on disk, by
the hash of the source, its version and the configuration: a second run reads it from there. CUDA
C++ is compiled by NVRTC, all kernels of a source in one go.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import triton
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from kernels import registry
from kernels.cuda.cuda_compile import no_compiler
from kernels.hardware import LIMITS
from kernels.lab.cards.makers import CARDS
from kernels.lab.counting.compile_errors import reason
from kernels.lab.selection import RefusalError, load_ops
from kernels.launch import Launch, assume_capability, recording
from kernels.launch.binary import Specialization
from kernels.passes import back
from kernels.registry import Case, Op, Variant, dtype_name, options_name, shape_name

SOUND = Path(__file__).with_name("sound.txt")
TARGETS = (75, 80, 86, 89, 90, 100, 120)
_READ_OFF = (
    "num_warps", "registers", "stack_bytes", "shared_bytes", "matrix_instruction", "serialized"
)  # fmt: skip
NO_BF16 = "bf16 is not compiled for sm_75: it needs compute capability 8.0 or later"


@dataclass(frozen=True)
class Built:
    """One kernel of a variant, compiled for one compute capability.

    `shapes` are those that run this very binary, and `passes` the passes: "fwd" without gradients,
    "train" a forward that keeps something for its backward, "bwd". `stack_bytes` is per thread,
    above 0 if registers spill. `shared_limit` is the most shared memory a block may have there, in
    bytes. `matrix_instruction` is the PTX name, None if the arithmetic is plain; `serialized` says
    that its asynchronous products wait for one another, each for the one before. `error` is why
    the compiler refused, with the line; then all numbers are 0.
    """

    op: str
    variant: str
    kernel: str
    dtype: str
    shapes: tuple[str, ...]
    passes: tuple[str, ...]
    capability: int
    shared_limit: int
    num_warps: int = 0
    registers: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    matrix_instruction: str | None = None
    serialized: bool = False
    error: str = ""

    @property
    def fault(self) -> str | None:
        """One sentence if it must not be shipped like this, else None."""
        what = (self.op, self.variant, self.passes[0], self.dtype, self.shapes[0])
        where = f"{' '.join(what)} on sm_{self.capability}"
        if self.error:
            return f"{where}: {self.kernel} does not compile: {self.error}"
        if self.stack_bytes:
            return (
                f"{where}: {self.kernel} with {self.num_warps} warps spills: a thread keeps "
                f"{self.stack_bytes} bytes in memory that its {self.registers} registers don't hold"
            )
        if self.serialized:
            return (
                f"{where}: {self.kernel} lets its asynchronous products wait for one another: "
                f"something reads their sums while they run"
            )
        if self.shared_bytes > self.shared_limit:
            return (
                f"{where}: {self.kernel} takes {self.shared_bytes:,} bytes of shared memory; "
                f"a block has {self.shared_limit:,} at most"
            )
        return None


@dataclass
class Job:
    """One binary to compile, and the shapes and passes that run it."""

    op: str
    variant: str
    dtype: str
    specialization: Specialization
    shapes: list[str] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)


def _hollow(value: Any) -> Any:
    """A CPU tensor like a fake one. Its pages are never touched, so gigabytes of it cost nothing.

    Whole numbers are zeros, since a function may index with them.
    """
    if not isinstance(value, torch.Tensor):
        return value
    make = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return make if value.is_floating_point() else make.zero_()


def _inputs(op: Op, case: Case) -> dict[str, Any]:
    with FakeTensorMode():
        fakes = op.make(case, "cpu", seed=0)
    return dict(tree_map(_hollow, fakes))


def _launches(op: Op, variant: Variant, inputs: dict[str, Any]) -> Iterator[tuple[str, Launch]]:
    """Every launch of a variant with its pass: of a call without gradients, and of a training step.

    A forward that keeps something for its backward may be another binary.
    """
    with torch.no_grad(), recording() as launches:
        variant.fn(**inputs)
    yield from (("fwd", launch) for launch in launches)
    if variant.has("train"):
        with recording() as forward:
            call = back(op, variant.fn, inputs, lambda outs: [torch.empty_like(o) for o in outs])
        yield from (("train", launch) for launch in forward)
        with recording() as backward:
            call()
        yield from (("bwd", launch) for launch in backward)


def variants(op: Op) -> tuple[list[Variant], list[str]]:
    """An operation's variants to compile, and a sentence for each that can't be compiled here."""
    found, missing = [], []
    for variant in op.variants.values():
        if variant.counted == "formula":  # what can't run here can be recorded
            found.append(variant)
        elif variant.counted in ("triton", "cuda"):
            cuda = variant.counted == "cuda"
            why = (cuda and no_compiler()) or variant.unavailable(
                torch.device("cuda" if cuda else "cpu")
            )
            if why is None:
                found.append(variant)
            else:
                missing.append(f"{op.name} {variant.name} is not compiled: {why}")
    return found, missing


def told(case: Case) -> str:
    """Return a case's shape and options, as `Built.shapes` has them."""
    return " ".join(filter(None, (shape_name(case.shape), options_name(case.options))))


def jobs(op: Op, capabilities: Sequence[int]) -> list[Job]:
    """Everything to compile, each binary once."""
    found: dict[Any, Job] = {}
    inputs_of = functools.cache(functools.partial(_inputs, op))
    for variant in variants(op)[0]:
        wanted = op.compiled_at(variant)
        for (case, passes), capability in itertools.product(wanted.items(), capabilities):
            if case.dtype == torch.bfloat16 and capability < 80:
                continue
            with assume_capability(capability):
                fits = variant.fits(case)
                for pass_, launch in _launches(op, variant, inputs_of(case)) if fits else ():
                    if pass_ not in passes:
                        continue
                    binary = launch.specialize(capability)
                    new = Job(op.name, variant.name, dtype_name(case.dtype), binary)
                    job = found.setdefault((variant.name, case.dtype, binary.key), new)
                    if told(case) not in job.shapes:
                        job.shapes.append(told(case))
                    if pass_ not in job.passes:
                        job.passes.append(pass_)
    return list(found.values())


def _build(job: Job) -> Built:
    wanted = job.specialization
    known: dict[str, Any] = {}
    try:
        compiled = wanted.compile()
    except Exception as error:  # whatever Triton or ptxas raises is what the reader is told
        known["error"] = reason(error, wanted.compile)
    else:
        for name in _READ_OFF:
            known[name] = getattr(compiled, name)
    return Built(
        op=job.op,
        variant=job.variant,
        kernel=wanted.kernel,
        dtype=job.dtype,
        shapes=tuple(job.shapes),
        passes=tuple(job.passes),
        capability=wanted.capability,
        shared_limit=LIMITS[wanted.capability].shared_bytes_per_block,
        **known,
    )


def digest(job: Job) -> str:
    """Return what tells a binary from all others: source, options, card, compilers.

    The folders that a compiler's files lie in are left out, so that it is the same on any machine.
    """
    source, options, capability = job.specialization.key
    options = re.sub(r"/[^' ]*/", "", options)
    made_by = [triton.__version__, *(_version(name) for name in ("nvidia-cuda-nvrtc",))]
    told = repr((source, options, capability, made_by))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


@functools.cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def known_sound() -> frozenset[str]:
    """Return the digests of the binaries that compiled without a fault when it was last kept.

    A compiler is deterministic: what it made once of a source, it makes again.
    """
    if not SOUND.exists():
        return frozenset()
    lines = SOUND.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def keep_sound(wanted: Sequence[Job]) -> list[Built]:
    """Write the digests of what compiles without a fault, and nothing else; return what was new.

    What is known to be sound already is not compiled again.
    """
    told, known = [digest(job) for job in wanted], known_sound()
    new = [(job, one) for job, one in zip(wanted, told, strict=True) if one not in known]
    built = _built([job for job, _ in new])
    faulty = {one for (_, one), made in zip(new, built, strict=True) if made.fault is not None}
    _write_sound(set(told) - faulty)
    return built


def _write_sound(digests: Iterable[str]) -> None:
    head = "# Launches that compile without a spill: python -m kernels.lab aot --keep\n"
    SOUND.write_text(head + "\n".join(sorted(digests)) + "\n", encoding="utf-8")


def build_new(op: Op, capabilities: Sequence[int] = TARGETS) -> list[Built]:
    """Compile the launches of an operation that aren't known to be sound."""
    sound = known_sound()
    return _built([job for job in jobs(op, capabilities) if digest(job) not in sound])


def _built(wanted: Sequence[Job]) -> list[Built]:
    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(_build, wanted))


def build(op: Op, capabilities: Sequence[int] = TARGETS) -> list[Built]:
    """Compile every launch of an operation's own kernels for each compute capability.

    bf16 is left out below 8.0. As many threads as there are cores compile: LLVM, ptxas and NVRTC
    run outside Python's lock, so that two take half the time.
    """
    return _built(jobs(op, capabilities))


_HEAD = ("op", "variant", "kernel", "passes", "dtype", "shapes", "card", "warps", "registers",
         "stack B", "shared B", "of", "matrix instruction")  # fmt: skip


def table(rows: Iterable[Built]) -> str:
    """Return the kernels as aligned text, a line each; stack is per thread, shared per block."""
    lines = [_HEAD] + [
        (b.op, b.variant, b.kernel, " ".join(b.passes), b.dtype, " ".join(b.shapes),
         f"sm_{b.capability}", str(b.num_warps), str(b.registers), str(b.stack_bytes),
         str(b.shared_bytes), str(b.shared_limit), b.matrix_instruction or "none")
        for b in rows
    ]  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cards(capability: int) -> str:
    return ", ".join(c.name for c in CARDS.values() if c.capability == capability)


def run(op_name: str | None, keep: bool = False) -> int:
    """Compile one operation, or all, and print what each kernel takes; 1 if one is at fault.

    With `keep` the sound ones are written down, so that tests compile only what is new.
    """
    load_ops()
    try:
        ops = registry.ops() if op_name is None else [registry.get(op_name)]
    except KeyError as error:
        raise RefusalError(str(error.args[0])) from error
    if keep and op_name is not None:
        raise RefusalError("--keep writes down all operations; name none")
    if keep:
        rows = keep_sound([job for op in ops for job in jobs(op, TARGETS)])
        print(f"{len(known_sound())} binaries known to be sound, {len(rows)} new, in {SOUND}")
    else:
        rows = [built for op in ops for built in build(op)]
    if not rows and not keep:
        raise RefusalError(
            f"{op_name or 'the registry'} has no variant in Triton or CUDA C++ to compile"
        )
    print(table(rows))
    print()
    for capability in TARGETS:
        print(f"sm_{capability}: {_cards(capability)}")
    if any(torch.bfloat16 in op.dtypes for op in ops):
        print(NO_BF16)
    for op in ops:
        print(*(f"{sentence}\n" for sentence in variants(op)[1]), sep="", end="")
    faults = [built.fault for built in rows if built.fault]
    print(*(f"{fault}\n" for fault in faults), sep="", end="")
    print(f"{len(rows)} kernels compiled, {len(faults)} at fault")
    return 1 if faults else 0
