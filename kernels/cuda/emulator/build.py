"""From CUDA C++ text to a program that runs one launch, by g++.

Level -O1, without the passes that would change what is counted: a struct stays one access (no
scalar replacement), a load in a loop stays in the loop (no loop-invariant motion), and one before a
branch stays before it (no sinking). What is left merges loads of one address only where nothing was
stored in between, as nvcc does. Functions are inlined into the kernel.

The runtime and its header are compiled once for each version of them and of g++, so that a reader's
cell costs what its own lines cost.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernels.cuda.errors import CudaError
from kernels.cuda.signature import Signature, split_outside_brackets, without_comments

RUNTIME = Path(__file__).parent / "runtime"
INCLUDE = Path(__file__).parents[1] / "include"  # headers that a source may include
SOURCE_NAME = "source.cu"
HEADER = "device.h"  # stands before every source
_COMPILE_SECONDS = 60
# Kept: a kernel takes 90 kB, a runtime with its compiled header 17 MB. The least used go first.
_KEPT = {"kernel-": 500, "runtime-": 3}
_OLD_SECONDS = 3600
_FLAGS = (
    "-std=gnu++17 -O1 -g1 -w -fsanitize=thread,shift-exponent,float-cast-overflow "
    "-fsanitize-coverage=trace-pc -fno-reorder-blocks "
    "--param tsan-instrument-func-entry-exit=0 -fno-tree-sra -fno-ipa-sra -fno-tree-loop-im "
    "-fno-tree-sink -fno-thread-jumps -fno-strict-aliasing -fno-pie -fno-stack-protector "
    "-fstack-clash-protection -fno-delete-null-pointer-checks -fmax-errors=1 "
    "-fdiagnostics-color=never"
).split()
# Loops that wait for a volatile variable are known by it; an older g++ can't tell it from others.
_VOLATILE, _SINCE = ("--param", "tsan-distinguish-volatile=1"), 11
_RUNTIME_FLAGS = "-std=gnu++17 -O2 -fno-pie -fno-stack-protector".split()
_SHARED = re.compile(
    r"(?P<extern>\bextern\s+)?(?:\bstatic\s+)?(?<!\w)__shared__\s+(?P<body>[^;{}=]*);"
)
_ALIGN = re.compile(r"\b__align__\s*\([^)]*\)|\balignas\s*\([^)]*\)")


def compiler() -> str:
    """The path of g++; CudaError on a machine that can't run the emulator."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise CudaError(
            "CUDA C++ on a CPU needs Linux on x86-64 (WSL2 and Colab are); "
            f"this is {platform.system()} on {platform.machine()}"
        )
    found = shutil.which("g++")
    if found is None:
        raise CudaError(
            "CUDA C++ on a CPU is compiled by g++, which isn't installed; "
            "`apt-get install g++` brings it"
        )
    return found


def cache_folder() -> Path:
    """Where built kernels are kept; remove it whenever you like."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "fusing-kernels" / "cuda"


def rewrite(source: str) -> str:
    """`source` with its `__shared__` declarations turned into places of the emulator's memory.

    Lines stay where they are.
    """
    text = without_comments(source)

    def declare(match: re.Match[str]) -> str:
        body = " ".join(_ALIGN.sub(" ", match["body"]).split())
        first = re.match(r"(.*?)(\w+)\s*((?:\[[^\]]*\]\s*)*)$", split_outside_brackets(body)[0])
        if first is None or not first[1].strip():
            return match[0]
        kind, out = first[1].strip(), []
        if match["extern"] and text.count("{", 0, match.start()) == text.count(
            "}", 0, match.start()
        ):
            # Outside every function: a name to put in, since there is no block yet.
            line = text.count("\n", 0, match.end()) + 1
            instead = f'(({kind}*)emulated_dynamic_shared("{first[2]}", sizeof({kind})))'
            return f'\n#define {first[2]} {instead}\n#line {line} "{SOURCE_NAME}"\n'
        rest = split_outside_brackets(body)[1:]
        for one in [first[2] + first[3], *rest]:
            name, sizes = re.match(r"(\w+)\s*(.*)$", one, re.DOTALL).groups()  # type: ignore[union-attr]
            if match["extern"]:
                out.append(
                    f"{kind}* const {name} = ({kind}*)emulated_dynamic_shared("
                    f'"{name}", sizeof({kind}));'
                )
                continue
            # Each instance of a function template has its own static variable, so its own place.
            out.append(
                f"static char emulated_place_{name}; "
                f"using emulated_{name} = {kind} {sizes}; auto& {name} = "
                f'*(emulated_{name}*)emulated_shared(&emulated_place_{name}, "{name}", '
                f"sizeof(emulated_{name}), sizeof({kind}));"
            )
        return " ".join(out) + "\n" * match[0].count("\n")

    return _SHARED.sub(declare, text)


def build(source: str, entries: tuple[Signature, ...]) -> Path:
    """Return a program that can launch each of `entries`, built once for each source.

    CudaError if g++ is missing or finds a fault, with the source's line.
    """
    gxx = compiler()
    text = f"{rewrite(source)}\n{_entries(entries)}"
    key = hashlib.sha256("\0".join([text, _runtime_key(gxx)]).encode()).hexdigest()[:24]
    folder = cache_folder()
    program = folder / f"kernel-{key}"
    if _found(program):
        return program
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CudaError(
            f"can't keep compiled kernels in {folder} ({error.strerror}); set XDG_CACHE_HOME to a "
            f"folder that can be written"
        ) from None
    runtime = _runtime(gxx, folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        code, made = Path(scratch) / SOURCE_NAME, Path(scratch) / "program"
        code.write_text(text)
        # The compiled header lies in the first folder, the header itself in the second.
        folders = (runtime, RUNTIME, RUNTIME / "include", INCLUDE)
        before = [*(f"-I{one}" for one in folders), "-include", HEADER]
        command = [gxx, *_flags(gxx), *before, "-x", "c++", "-c", str(code)]
        _run([*command, "-o", f"{scratch}/code.o"], source)
        around = [str(runtime / name) for name in ("before.o", "after.o")]
        others = sorted({str(one) for one in runtime.glob("*.o")} - set(around))
        objects = [around[0], f"{scratch}/code.o", around[1], *others]
        _run([gxx, "-no-pie", *objects, "-o", str(made)], source)
        made.replace(program)
    _tidy(folder)
    return program


def _entries(entries: tuple[Signature, ...]) -> str:
    """A function that calls entry `number` with the values that `arguments` point at."""
    cases = []
    for number, entry in enumerate(entries):
        values = ", ".join(
            f"*({one.declared}*)arguments[{place}]" for place, one in enumerate(entry.parameters)
        )
        cases.append(f"    if (number == {number}) {entry.expression}({values});\n")
    head = '#line 1 "entries"\nextern "C" void emulated_entry(int number, void** arguments) {\n'
    return head + "".join(cases) + "}\n"


@functools.cache
def _version(gxx: str) -> str:
    return subprocess.run([gxx, "--version"], capture_output=True, text=True).stdout


def _flags(gxx: str) -> list[str]:
    number = re.search(r"\) (\d+)\.", _version(gxx))
    return [*_FLAGS, *(_VOLATILE if number and int(number[1]) >= _SINCE else ())]


@functools.cache
def _runtime_key(gxx: str) -> str:
    version = _version(gxx)
    digest = hashlib.sha256("\0".join([version, *_flags(gxx), *_RUNTIME_FLAGS]).encode())
    for path in sorted([*RUNTIME.rglob("*.*"), *INCLUDE.glob("*.cuh")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _runtime(gxx: str, folder: Path) -> Path:
    """The folder with the runtime's object files and compiled header, made the first time."""
    made = folder / f"runtime-{_runtime_key(gxx)}"
    if _found(made):
        return made
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        ready = Path(scratch) / "objects"
        ready.mkdir()
        header = [*_flags(gxx), "-x", "c++-header", str(RUNTIME / HEADER), "-o", f"{HEADER}.gch"]
        commands = [[gxx, *header]]
        for path in sorted(RUNTIME.rglob("*.cpp")):
            commands.append([gxx, *_RUNTIME_FLAGS, "-c", str(path)])
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda command: _run(command, "", cwd=ready), commands))
        try:
            ready.rename(made)
        except OSError:  # another process was first
            if not made.exists():
                raise
    return made


def _found(path: Path) -> bool:
    """Whether it is there; if so, it is now the one used last."""
    with contextlib.suppress(OSError):  # it is gone, or another user's
        os.utime(path)
    return path.exists()


def _tidy(folder: Path) -> None:
    """Remove what was used longest ago, and what a process that was killed left behind."""
    used: dict[Path, float] = {}
    for one in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process tidies too
            used[one] = one.stat().st_mtime
    scratch = [one for one in used if one.name.startswith("tmp")]
    old = [one for one in scratch if time.time() - used[one] > _OLD_SECONDS]
    for prefix, kept in _KEPT.items():
        found = [one for one in used if one.name.startswith(prefix)]
        old += sorted(found, key=lambda one: used[one], reverse=True)[kept:]
    for one in old:
        if one.is_dir():
            shutil.rmtree(one, ignore_errors=True)
        else:
            one.unlink(missing_ok=True)


def _run(command: list[str], source: str, cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=cwd, timeout=_COMPILE_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise CudaError(f"g++ took more than {_COMPILE_SECONDS} s over the source") from None
    if done.returncode:
        raise _compile_error(done.stderr, source)


def _compile_error(said: str, source: str) -> CudaError:
    """The first error of g++ as one sentence, with the line it is about."""
    match = re.search(rf"{SOURCE_NAME}:(\d+)(?::\d+)?: (?:fatal )?error: (.*)", said)
    if match is None:
        errors = re.findall(r"(?:error|undefined reference)[:\s].*", said)
        what = errors[0] if errors else said.strip().splitlines()[-1]
        return CudaError(f"the source doesn't compile: {what}")
    line = int(match[1])
    lines = source.splitlines()
    code = lines[line - 1].strip() if line <= len(lines) else ""
    shown = f", at `{code}`" if code else ""
    return CudaError(f"line {line}: {match[2].strip()}{shown}", line=line)
