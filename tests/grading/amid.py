"""What a notebook may have set around a check: each by itself, and as many at once as go together.

Every question's right answers are checked amid them (`tests/grading/right.py`).
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import triton

from kernels.grading.progress import VARIABLE

Setting = Callable[[pytest.MonkeyPatch], None]


def no_home(patch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "TRITON_HOME"):
        patch.delenv(name, raising=False)

    def nobody(number: int) -> None:
        raise KeyError(number)

    patch.setattr("pwd.getpwuid", nobody)


def no_temporary_folder(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tempfile, "tempdir", None)
    patch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/none"])


def a_temporary_folder_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tempfile, "tempdir", "/none")


def no_working_directory(patch: pytest.MonkeyPatch) -> None:
    folder = tempfile.mkdtemp()
    patch.chdir(folder)
    os.rmdir(folder)


def ignored_children(patch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def somebody_who_takes_children(patch: pytest.MonkeyPatch) -> None:
    def take(*_: object) -> None:
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    return
            except ChildProcessError:
                return

    signal.signal(signal.SIGCHLD, take)


def few_frames(patch: pytest.MonkeyPatch) -> None:
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + 30)


def traced(patch: pytest.MonkeyPatch) -> None:
    sys.settrace(lambda *_: None)


SETTINGS: dict[str, Setting] = {
    one.__name__: one
    for one in (
        no_home,
        no_temporary_folder,
        a_temporary_folder_that_is_gone,
        no_working_directory,
        ignored_children,
        somebody_who_takes_children,
        few_frames,
        traced,
    )
}


def _deep_points(patch: pytest.MonkeyPatch) -> None:
    Path(os.environ[VARIABLE]).write_text("[" * 500_000)


def _huge_points(patch: pytest.MonkeyPatch) -> None:
    Path(os.environ[VARIABLE]).write_text(json.dumps([[]] * 100_000))


def _no_home_but_a_cache(patch: pytest.MonkeyPatch) -> None:
    # Compiled kernels stay where they are: to make them anew takes seconds.
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    of_triton = triton.knobs.cache.dir
    no_home(patch)
    patch.setenv("XDG_CACHE_HOME", cache)
    patch.setenv("TRITON_CACHE_DIR", of_triton)


def _meta_in_float64(patch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)


def _float16(patch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float16)


# Alternatives that can't hold together stand in different ones.
AT_ONCE: tuple[tuple[Setting, ...], ...] = (
    (),
    (
        _deep_points,
        no_working_directory,
        _no_home_but_a_cache,
        no_temporary_folder,
        ignored_children,
        _meta_in_float64,
        few_frames,
    ),
    (
        _huge_points,
        a_temporary_folder_that_is_gone,
        somebody_who_takes_children,
        _float16,
        traced,
    ),
)


@contextlib.contextmanager
def amid(settings: tuple[Setting, ...]) -> Iterator[None]:
    """Run a block amid settings, and put back what was before."""
    handler, trace = signal.getsignal(signal.SIGCHLD), sys.gettrace()
    limit, dtype = sys.getrecursionlimit(), torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        try:
            for setting in settings:
                setting(patch)
            yield
        finally:
            sys.settrace(trace)
            sys.setrecursionlimit(limit)
            signal.signal(signal.SIGCHLD, handler)
            torch.set_default_dtype(dtype)
            torch.set_default_device(None)
            torch.set_grad_enabled(True)
