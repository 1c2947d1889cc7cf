"""The steps of `make test`: side by side, told in order, ended by the first that fails."""

import os
import re
import time

from kernels.paths import ROOT
from tests import steps
from tests.steps import Step, main


def python(name, code):
    return Step(name, ["-c", code])


def done(capfd):
    return re.sub(r"\(\d+ s\)", "(t)", capfd.readouterr().out).split("\n\n== ")


def test_lanes_run_beside_each_other_and_the_last_step_after_them(capfd, tmp_path):
    flag = tmp_path / "flag"
    waits = (
        f"import pathlib, time\nwhile not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.01)"
    )
    lanes = (
        (python("check", f"{waits}\nprint('seen')"), python("more", "print('more')")),
        # What it says is out before the other lane goes on.
        (python("build", f"print('made', flush=True); open({str(flag)!r}, 'w')"),),
    )
    assert main(lanes, python("tests", "print('tested')")) == 0
    told = done(capfd)
    assert [part.split(" (t)")[0] for part in told[-3:]] == [
        "tests",
        "where the time went",
        "all passed",
    ]
    assert "check, done (t)\nseen" in told
    assert "more, done (t)\nmore" in told
    table = re.findall(r"^ +\d+ s  (.+)$", told[-2], re.M)
    assert sorted(table[:3]) == ["build", "check", "more"]
    assert table[3:] == ["tests", "in all"]


def test_the_tests_have_a_core_each(capfd):
    assert steps.LAST.environment == {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    code = "import torch, os; print('threads', torch.get_num_threads(), os.environ['HOME'])"
    assert main(((),), Step("tests", ["-c", code], steps.LAST.environment)) == 0
    assert f"threads 1 {os.environ['HOME']}" in capfd.readouterr().out


def test_a_step_that_fails_ends_the_others_and_the_tests_do_not_begin(capfd):
    began = time.monotonic()
    fails = (
        python("check", "print('wrong'); raise SystemExit(3)"),
        python("more", "print('more')"),
    )
    sleeps = (python("build", "import time; time.sleep(60)"),)
    for lanes in ((fails, sleeps), (sleeps, fails)):
        assert main(lanes, python("tests", "print('tested')")) == 1
        told = "\n".join(done(capfd))
        assert "wrong" in told
        assert "tested" not in told
        assert "more" not in told
        assert "failed: check" in told
        assert "all passed" not in told
    assert time.monotonic() - began < 50


def test_tests_that_fail_are_no_success(capfd):
    assert main(((python("check", ""),), (python("build", ""),)), python("tests", "1 / 0")) == 1
    assert "failed: tests" in capfd.readouterr().out


def test_make_runs_all_that_must_hold():
    (recipe,) = re.findall(r"^test:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert recipe == "\t@$(RUN) -m tests.steps\n"
    commands = [" ".join(step.arguments) for lane in steps.LANES for step in lane]
    assert commands == [
        "-m ruff check .",
        "-m mypy",
        "-m kernels.grading.generate --check",
        "book/tools/build.py",
    ]
    assert " ".join(steps.TESTS) == "-m pytest -n 2 --dist worksteal -rs"
