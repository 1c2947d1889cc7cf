"""What a check needs around it, whatever a notebook has set: put in order before, put back after.

A default dtype of float64 makes other inputs, a low recursion limit ends any Python, and a debugger
stops a fork. None of that is part of an answer.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

_FRAMES = 1000  # what Python gives at its start


class NoFolder(Exception):  # noqa: N818
    """There is nowhere to write a temporary file; the message is one sentence."""


@contextlib.contextmanager
def as_usual() -> Iterator[None]:
    """Run a block under Python's and PyTorch's own settings; NoFolder if no file can be written."""
    with contextlib.ExitStack() as after:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + _FRAMES)
        after.callback(sys.setrecursionlimit, limit)
        _of_torch(after)
        # With SIGCHLD ignored nobody learns how a process ended.
        ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        if ignored and threading.current_thread() is threading.main_thread():
            after.callback(signal.signal, signal.SIGCHLD, signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _folders(after)
        yield


def _of_torch(after: contextlib.ExitStack) -> None:
    dtype = torch.get_default_dtype()
    if dtype != torch.float32:
        after.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
    if torch.get_default_device().type != "cpu":
        after.enter_context(torch.device("cpu"))
    if torch.is_inference_mode_enabled():
        after.enter_context(torch.inference_mode(False))
    if not torch.is_grad_enabled():
        after.enter_context(torch.enable_grad())
    if torch.is_autocast_enabled("cpu"):
        after.enter_context(torch.autocast("cpu", enabled=False))


def _folders(after: contextlib.ExitStack) -> None:
    """See to a working directory, one for temporary files, and a home for compilers' caches."""
    try:
        os.getcwd()
    except OSError:  # it was deleted; its descriptor leads back
        gone = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        after.callback(os.close, gone)
        after.callback(os.fchdir, gone)
        os.chdir("/")
    if not _takes_files(None):
        found = next((one for one in _elsewhere() if _takes_files(one)), None)
        if found is None:
            raise NoFolder(
                "No temporary file can be written: set TMPDIR to a folder that takes them."
            )
        after.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
        tempfile.tempdir = found
        _set(after, "TMPDIR", found)
    try:
        Path.home()
    except RuntimeError:
        _set(after, "HOME", _instead_of_a_home())
        _set(after, "TRITON_HOME", _instead_of_a_home())


def _takes_files(folder: str | None) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _elsewhere() -> Iterator[str]:
    yield "/dev/shm"
    with contextlib.suppress(RuntimeError):
        yield str(Path.home())


def _set(after: contextlib.ExitStack, name: str, value: str) -> None:
    old = os.environ.get(name)
    if old is None:
        after.callback(os.environ.pop, name, None)
    else:
        after.callback(os.environ.__setitem__, name, old)
    os.environ[name] = value


@functools.cache
def _instead_of_a_home() -> str:
    folder, owner = tempfile.mkdtemp(prefix="fusing-kernels-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a fork
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def without_debugger() -> None:
    """End the tracing of this process, a fork: the debugger's threads don't exist in it."""
    with contextlib.redirect_stderr(io.StringIO()):  # debugpy warns of it
        sys.settrace(None)
    sys.setprofile(None)
    threading.settrace(None)
    threading.setprofile(None)
    monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
    if monitoring is not None:
        for tool in range(6):
            if monitoring.get_tool(tool) is not None:
                monitoring.set_events(tool, 0)
