"""A check in a notebook that set this and that: it never raises, and a right answer stays right."""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest
import torch

from kernels.grading import check, progress
from kernels.grading.question import questions
from kernels.paths import ROOT
from tests.grading import submissions as s
from tests.grading.amid import AT_ONCE, SETTINGS, amid, ignored_children
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


@pytest.mark.parametrize("name", SETTINGS)
def test_a_right_answer_stays_right(name) -> None:
    with amid((SETTINGS[name],)):
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


def test_every_setting_is_around_some_right_answer_of_every_question() -> None:
    """The tests of all sets check right answers amid `AT_ONCE`; here is what they leave out."""
    paths = (ROOT / "tests/grading").glob("test_questions_[01]*.py")
    tables = [
        getattr(importlib.import_module(f"tests.grading.{path.stem}"), "RIGHT", {})
        for path in paths
    ]
    assert set().union(*tables) == set(questions())
    around = {setting for settings in AT_ONCE for setting in settings}
    assert around >= set(SETTINGS.values()) - {SETTINGS["no_home"]}


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
from tests.grading.edited import edited
debugpy.listen(("127.0.0.1", 0))
told = [check(question, edited(question)) for question in QUESTIONS]
told += [check("02.3", answer) for answer in (submissions.merge, submissions.merge_naively)]
print([result.passed for result in told], any(result.printed for result in told))
"""
# Of each set one whose answer is a kernel, if it asks for one.
DEBUGGED_QUESTIONS = "01.1 02.2 03.5 04.6 05.3 06.4 07.4 08.3 09.2 10.4 12.7".split()


def test_a_debugger_may_be_attached() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEBUGGED.replace("QUESTIONS", repr(DEBUGGED_QUESTIONS))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    right = [True] * (len(DEBUGGED_QUESTIONS) + 1)
    assert done.stdout.endswith(f"\n{[*right, False]} False\n"), done.stdout


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
def test_what_ends_it_is_told_with_the_seed(answer, children, monkeypatch) -> None:
    monkeypatch.setattr("kernels.grading.isolation.LIMIT_S", 1.0)
    with amid((ignored_children,) if children == "ignored" else ()):
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
