"""A process of its own for a reader's code, with limits of time and memory.

The process is a fork: it has the notebook's functions and kernels as they are, and whatever they do
to themselves, they don't do to the notebook. Only text comes back.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import json
import os
import posix
import re
import resource
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels.grading.surroundings import without_debugger

# A check must answer within 15 s; what ran until then is told to the reader.
LIMIT_S = 14.0
_MEMORY = 3 * 2**30
_MOST_PRINTED = 2000
_STEP_S = 0.05
_MOST_VERDICT = 64 * 2**20


@dataclass(frozen=True)
class Ended:
    """How a process ended. `told` is what `work` returned, None if it never did.

    `status` is its wait status, None if something else took it. `line` is the last line of `file`
    that ran in a process that had to be stopped.
    """

    told: dict[str, Any] | None
    printed: str
    seconds: float
    stopped: bool = False
    status: int | None = 0
    line: int | None = None

    @property
    def reason(self) -> str:
        """Why nothing was told, as the end of a sentence."""
        if self.stopped:
            at = f" It was in line {self.line} of its cell." if self.line else ""
            return f"did not end within {self.seconds:.0f} seconds and was stopped.{at}"
        if self.status is None:
            return "ended its process, before the check was through."
        if os.WIFSIGNALED(self.status):
            name = signal.Signals(os.WTERMSIG(self.status)).name
            return f"ended its process with {name}, before the check was through."
        code = os.waitstatus_to_exitcode(self.status)
        return f"ended its process with exit code {code}, before the check was through."


def isolated(
    work: Callable[[], dict[str, Any]], file: str | None = None, limit_s: float | None = None
) -> Ended:
    """Call `work` in a fork of this process; it returns what JSON can hold.

    `file` is the source file whose line is told if the time runs out, after `limit_s` or LIMIT_S.
    KeyboardInterrupt ends the fork too, and is raised. What else the fork writes where its result
    goes counts for nothing: the result comes with a word that only this call knows.
    """
    word = os.urandom(16).hex().encode()
    limit_s = LIMIT_S if limit_s is None else limit_s
    start = time.perf_counter()
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as stacks:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        read_end, write_end = os.pipe()
        with warnings.catch_warnings():
            # The fork runs one thread on purpose; PyTorch's workers are forked the same way.
            warnings.simplefilter("ignore", DeprecationWarning)
            # Not os.fork: a debugger has that wait for the fork to be attached too.
            child = posix.fork()
        if child == 0:
            os.close(read_end)
            _be_the_child(work, word, write_end, printed.fileno(), stacks.fileno())
        os.close(write_end)
        try:
            text, stopped = _read(read_end, child, start + limit_s)
            if stopped:
                # It writes down where it is, and has the time of `_end` for it.
                os.kill(child, signal.SIGUSR1)
        finally:
            os.close(read_end)
            status = _end(child)
        told = _parsed(text, word)
        return Ended(
            told,
            _tail(printed),
            time.perf_counter() - start,
            stopped and told is None,
            status,
            _line(stacks, file),
        )


def _be_the_child(
    work: Callable[[], dict[str, Any]], word: bytes, out: int, printed: int, stacks: int
) -> None:
    """Run `work`, write `word` and what it returns as JSON to `out`, and end this process."""
    try:
        # Python's collector would go through all that the parent has, and have its pages copied.
        gc.freeze()
        # Out of the notebook's process group: Ctrl-C is the parent's to handle.
        os.setsid()
        without_debugger()
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
        sys.stderr = sys.stdout
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (_virtual_bytes() + _MEMORY,) * 2)
        # The parent's worker threads don't exist in a fork; waiting for them would be forever.
        torch.set_num_threads(1)
        message = word + json.dumps(work()).encode()
        while message:
            message = message[os.write(out, message) :]
        os._exit(0)
    finally:
        os._exit(1)


def _virtual_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _read(end: int, child: int, deadline: float) -> tuple[bytes, bool]:
    """Everything until the other side closes, and whether the deadline came first.

    A process that the child left behind may hold the other side: what counts then is the child.
    """
    parts: list[bytes] = []
    while sum(map(len, parts)) < _MOST_VERDICT:
        left = deadline - time.perf_counter()
        over = _ended(child)
        if not select.select([end], [], [], 0 if over else min(max(left, 0), _STEP_S))[0]:
            if over or left <= 0:
                return b"".join(parts), not over
            continue
        part = os.read(end, 1 << 16)
        if not part:
            break
        parts.append(part)
    return b"".join(parts), False


def _ended(child: int) -> bool:
    """Whether a child has ended; its status stays to be asked for."""
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _end(child: int) -> int | None:
    """End the child and what it started, if it hasn't yet, and return its wait status.

    None if nobody keeps it: SIGCHLD may be ignored, or handled by somebody who takes it.
    """
    deadline = time.perf_counter() + 0.2
    while time.perf_counter() < deadline and not _ended(child):
        time.sleep(0.002)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    try:
        return os.waitpid(child, 0)[1]
    except ChildProcessError:
        return None


def _parsed(text: bytes, word: bytes) -> dict[str, Any] | None:
    if not text.startswith(word):
        return None
    try:
        told = json.loads(text[len(word) :])
    except ValueError:
        return None
    return told if type(told) is dict else None


def _tail(file: Any) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MOST_PRINTED))
    text = str(file.read().decode(errors="replace"))
    return f"…{text}" if size > _MOST_PRINTED else text


def _line(stacks: Any, file: str | None) -> int | None:
    stacks.seek(0)
    return next(_lines(stacks.read().decode(errors="replace"), file), None)


def _lines(text: str, file: str | None) -> Iterator[int]:
    """The lines of `file` in a faulthandler's report, innermost first."""
    for name, line in re.findall(r'File "([^"]*)", line (\d+)', text):
        if file is not None and name == file:
            yield int(line)
