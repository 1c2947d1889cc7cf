"""A check in a notebook that set this and that: it never raises, and a right answer stays right."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import pytest
import torch

from kernels.grading import check, progress
from kernels.paths import ROOT
from tests.grading import submissions as s
from tests.grading.test_exercises import code_cells

right = s.with_fault("")


def solution(question: str):
    """The answer to a question of 06 or 07 whose check draws its inputs in the default dtype."""
    (path,) = (ROOT / "solutions").glob(f"{question.split('.')[0]}_*.ipynb")
    number = question.split(".")[1]
    (source,) = (text for cell, text in code_cells(path) if cell == f"q{number}-answer")
    names: dict = {}
    exec(source, names)
    return next(value for name, value in names.items() if callable(value))


def no_home(monkeypatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(number):
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", nobody)


def no_temporary_folder(monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/none"])


def a_temporary_folder_that_is_gone(monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/none")


def no_working_directory(monkeypatch) -> None:
    folder = tempfile.mkdtemp()
    monkeypatch.chdir(folder)
    os.rmdir(folder)


def ignored_children(monkeypatch) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def somebody_who_takes_children(monkeypatch) -> None:
    def take(*_) -> None:
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    return
            except ChildProcessError:
                return

    signal.signal(signal.SIGCHLD, take)


def few_frames(monkeypatch) -> None:
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + 30)


def traced(monkeypatch) -> None:
    sys.settrace(lambda *_: None)


SETTINGS: dict[str, Callable] = {
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


@pytest.fixture
def put_back():
    limit, handler, trace = (
        sys.getrecursionlimit(),
        signal.getsignal(signal.SIGCHLD),
        sys.gettrace(),
    )
    yield
    sys.setrecursionlimit(limit)
    signal.signal(signal.SIGCHLD, handler)
    sys.settrace(trace)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_right_answer_stays_right(name, monkeypatch, put_back, own_progress) -> None:
    SETTINGS[name](monkeypatch)
    kept = dict(os.environ), tempfile.tempdir, sys.getrecursionlimit(), sys.gettrace()
    handler = signal.getsignal(signal.SIGCHLD)
    result = check("02.2", right)
    assert (dict(os.environ), tempfile.tempdir, sys.getrecursionlimit(), sys.gettrace()) == kept
    assert signal.getsignal(signal.SIGCHLD) is handler
    if name == "no_working_directory":
        with pytest.raises(FileNotFoundError):
            os.getcwd()
    assert result.passed, result
    assert progress().points == 4


FIRST = """
import importlib, os, tempfile
from kernels.grading import check
from tests.grading.submissions import bytes_by_operator
asked, load = [], importlib.import_module
def asks(*what, **how):
    asked.append(what)
    return load(*what, **how)
importlib.import_module = asks
gone = tempfile.mkdtemp()
os.chdir(gone)
os.rmdir(gone)
print([check("02.1", bytes_by_operator).points, bool(asked)])
"""


def test_a_first_check_imports_what_it_needs_where_no_folder_is() -> None:
    # In a process of its own: what the first check of a process imports is asked for there alone.
    done = subprocess.run(
        [sys.executable, "-c", FIRST],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.endswith("\n[2, True]\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    "setting",
    [
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float16),
        lambda: torch.set_default_device("meta"),
        lambda: torch.set_grad_enabled(False),
    ],
    ids=["float64", "float16", "device", "no grad"],
)
def test_settings_of_torch_are_not_those_of_a_check(setting) -> None:
    answers = {question: solution(question) for question in ("06.1", "07.1")}
    try:
        setting()
        before = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
        results = [check(question, answer) for question, answer in answers.items()]
        after = torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
    assert all(result.passed for result in results), results
    assert after == before


DEBUGGED = """
import debugpy
from kernels.grading import check
from tests.grading import submissions
debugpy.listen(("127.0.0.1", 0))
print([check("02.3", answer).points for answer in (submissions.merge, submissions.merge_naively)])
"""


def test_a_debugger_may_be_attached() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEBUGGED],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.endswith("\n[3, 0]\n"), done.stdout
    assert "Your code printed" not in done.stdout


def leaves_a_child(a, b):
    if os.fork() == 0:
        os.setsid()
        time.sleep(20)
        os._exit(0)
    return s.merge(a, b)


def test_a_process_that_it_left_behind_is_not_waited_for() -> None:
    check("02.3", s.merge)
    start = time.perf_counter()
    assert check("02.3", leaves_a_child).passed
    assert time.perf_counter() - start < 10


def endless(a, b):
    while True:
        pass


def dies(a, b):
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize("answer", [endless, dies])
@pytest.mark.parametrize("children", ["kept", "ignored"])
def test_what_ends_it_is_told_with_the_seed(answer, children, monkeypatch, put_back) -> None:
    monkeypatch.setattr("kernels.grading.isolation.LIMIT_S", 1.0)
    if children == "ignored":
        ignored_children(monkeypatch)
    result = check("02.3", answer, seed=7)
    assert result.rerun == f'check("02.3", {answer.__name__}, seed=7)'
    assert "did not end within 1 seconds" in result.message or "SIGSEGV" in result.message
    assert result.rerun in repr(result)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(11, "Resource temporarily unavailable"), "Resource temporarily unavailable"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (KeyboardInterrupt(), "stopped before it ended"),
    ],
)
def test_whatever_is_raised_around_it_is_a_sentence(error, told, monkeypatch) -> None:
    def fails(*_):
        raise error

    monkeypatch.setattr("kernels.grading.checker.isolated", fails)
    result = check("02.3", s.merge)
    assert (result.question, result.points, result.max_points) == ("02.3", 0, 3)
    assert told in result.message


def test_without_any_folder_there_is_a_sentence(monkeypatch) -> None:
    monkeypatch.setattr("kernels.grading.surroundings._takes_files", lambda folder: False)
    assert check("02.3", s.merge).message.endswith("set TMPDIR to a folder that takes them.")


@pytest.mark.parametrize("text", ["[" * 500_000, json.dumps([[]] * 400_000)], ids=["deep", "huge"])
def test_whatever_the_file_of_points_holds(text, own_progress) -> None:
    own_progress.write_text(text)
    assert check("02.3", s.merge).passed
    assert progress().points == 3
