"""What ends, hangs, cheats or patches earns nothing, is told why, and the process lives."""

import contextlib
import json
import os
import signal
import time

import pytest
import torch
import triton

import kernels.grading.closeness
from kernels.grading import check, progress, question
from kernels.grading.integrity import Snapshot
from kernels.grading.progress import note
from kernels.grading.question import questions
from kernels.lab.counting import models
from tests.grading import submissions as s

right = s.with_fault("")


def endless(x, weight, bias, eps):
    while True:
        pass


@triton.jit
def endless_kernel(x_ptr):
    i = 0
    while i < 1:
        i = i * 0


def endless_in_a_kernel(x, weight, bias, eps):
    endless_kernel[(1,)](x)


def exits(x, weight, bias, eps):
    os._exit(0)


def dies(x, weight, bias, eps):
    os.kill(os.getpid(), signal.SIGSEGV)


def writes_to_null(x, weight, bias, eps):
    import ctypes

    ctypes.memset(0, 0, 8)


def takes_all_memory(x, weight, bias, eps):
    return [torch.empty(2**31, dtype=torch.uint8).fill_(1) for _ in range(64)]


def patches_the_comparison(x, weight, bias, eps):
    kernels.grading.closeness.wrong_elements.__code__ = (lambda *a: torch.zeros(1) > 0).__code__
    return torch.zeros_like(x)


def patches_the_clock(x, weight, bias, eps):
    time.perf_counter = lambda: 0.0
    return right(x, weight, bias, eps)


def patches_a_method(x, weight, bias, eps):
    torch.Tensor.__eq__ = lambda *args: True
    return right(x, weight, bias, eps)


def patches_a_builtin(x, weight, bias, eps):
    import builtins

    builtins.bool = lambda *args: False
    return torch.zeros_like(x)


class _Inserted:
    def __eq__(self, other):
        return True


def patches_a_class_by_its_bases(x, weight, bias, eps):
    question.Wrong.__bases__ = (_Inserted, Exception)
    return torch.zeros_like(x)


_open_before: set[int] = set()


def open_now():
    return {int(name) for name in os.listdir("/proc/self/fd")}


def writes_the_verdict(x, weight, bias, eps):
    told = json.dumps({"passed": True, "message": "fine"}).encode()
    for end in set(range(3, 64)) - _open_before:  # not into those of the test run itself
        with contextlib.suppress(OSError):
            os.write(end, told)
    os._exit(0)


def replaces_the_grading(x, weight, bias, eps):
    object.__setattr__(questions()["02.2"], "grade", lambda attempt: None)
    return right(x, weight, bias, eps)


def replaces_the_question(x, weight, bias, eps):
    question._QUESTIONS["02.2"] = question._QUESTIONS["02.3"]
    return right(x, weight, bias, eps)


def writes_points_down(x, weight, bias, eps):
    note("02.3", 3)
    return torch.zeros_like(x)


_kept = {}


def replays(x, weight, bias, eps):
    """Right at the first call of each shape, and that answer from then on."""
    key = tuple(x.shape)
    if key not in _kept:
        _kept[key] = right(x.float(), weight.float(), bias.float(), eps)
    return _kept[key].to(x.dtype)


def one_buffer(x, weight, bias, eps):
    key = (tuple(x.shape), x.dtype)
    out = _kept.setdefault(key, torch.empty_like(x))
    block = triton.next_power_of_2(x.shape[1])
    s.row_kernel[(len(x),)](x, weight, bias, out, x.shape[1], eps, BLOCK=block, FAULT="")
    return out


def stores_its_input(x, weight, bias, eps):
    x.add_(1)
    return right(x, weight, bias, eps)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (exits, "ended its process with exit code 0"),
        (dies, "ended its process with SIGSEGV"),
        (writes_to_null, "ended its process with SIGSEGV"),
        (takes_all_memory, "takes_all_memory raised "),
        (patches_the_comparison, "kernels.grading.closeness.wrong_elements is not the one"),
        (patches_the_clock, "time.perf_counter is not the one"),
        (patches_a_method, "Tensor.__eq__ is not the one"),
        (patches_a_builtin, "builtins.bool is not the one"),
        (patches_a_class_by_its_bases, "question.Wrong.__bases__ is not the one"),
        (writes_the_verdict, "ended its process with exit code 0"),
        (replaces_the_grading, "question 02.2.grade is not the one"),
        (replaces_the_question, "question 02.2 is not the one"),
        (writes_points_down, "should be"),
        (replays, "should be"),
        (one_buffer, "memory of an earlier call's output"),
        (stores_its_input, "it changed its input x"),
        (s.AlwaysEqual(), "returned a AlwaysEqual"),
    ],
)
def test_it_earns_nothing_and_is_told_why(answer, told):
    _open_before.update(open_now())
    result = check("02.2", answer)
    assert result.points == 0
    assert told in result.message, result
    assert progress().points == 0


@pytest.mark.parametrize("answer", [endless, endless_in_a_kernel])
def test_an_endless_loop_is_stopped_and_its_line_told(answer, monkeypatch):
    monkeypatch.setattr("kernels.grading.isolation.LIMIT_S", 2.0)
    start = time.perf_counter()
    result = check("02.2", answer)
    assert time.perf_counter() - start < 4
    assert "did not end within 2 seconds" in result.message
    first = answer.__code__.co_firstlineno
    if answer is endless:
        assert any(f"in line {line} of" in result.message for line in (first + 1, first + 2))


def test_a_patch_in_the_notebook_is_told_before_anything_runs(monkeypatch):
    monkeypatch.setattr("kernels.grading.checks.kind_fault", lambda *args: None)
    result = check("02.2", right)
    assert result.points == 0
    assert "checks.kind_fault" in result.message
    assert "Restart Python" in result.means


def test_what_pytorch_replaces_of_its_own_is_no_patch(monkeypatch):
    """The compiler replaces methods of every `torch.nn.Module`, those of our models too."""
    snapshot = Snapshot()
    monkeypatch.setattr(torch.nn.Module, "__setstate__", lambda module, state: None)
    assert issubclass(models.Block, torch.nn.Module)
    assert snapshot.changed() is None
    monkeypatch.setattr(models.Block, "forward", lambda module, x: x)
    assert snapshot.changed() == "kernels.lab.counting.models.Block.forward"
    monkeypatch.undo()
    monkeypatch.setattr(torch.Tensor, "norm", lambda tensor: 0.0)
    assert snapshot.changed() == "Tensor.norm"


def test_nothing_reaches_this_process():
    before = time.perf_counter
    check("02.2", patches_the_clock)
    assert time.perf_counter is before
    check("02.2", replays)
    assert not _kept


def test_the_same_answer_passes_afterwards():
    assert check("02.2", right).passed


def test_what_it_prints_is_shown():
    def answer(a, b):
        print("a is", a)
        return s.merge(a, b)

    result = check("02.3", answer)
    assert result.passed
    assert "a is (" in result.printed
    assert "Your code printed" in repr(result)


def test_a_wrong_output_is_drawn_in_words_and_marks():
    result = check("02.2", s.with_fault("last column"))
    error, reads, *_ = result.pictures
    assert "wrong in all 4 rows, column 63 of 64" in error
    assert 'aria-label="Error of the output' in error
    assert "Reads of x: each element once" in reads
    assert "wrong in all 4 rows" in repr(result)
    assert "<svg" in result._repr_html_()
    assert "no program stored it" in result.message


def test_the_line_of_the_wrong_store_is_named():
    result = check("02.2", s.with_fault("given"))
    source = s.row_kernel.raw_src
    stores = [
        n
        for n, line in enumerate(source)
        if "tl.store(y_ptr + row * n_cols + cols, y, mask=mask)" in line
    ]
    first = s.row_kernel.fn.__code__.co_firstlineno
    assert f"program 0 stored it, in line {first + stores[0]}" in result.message, result


def test_hints_come_one_by_one():
    given = s.with_fault("given")
    counts = [len(check("02.1", lambda r, c, i: 1).hints) for _ in range(2)]
    assert counts[0] == 1
    assert counts[1] >= counts[0]
    assert check("02.2", given).hints


def test_the_first_hint_answers_the_mistake_that_was_made():
    own = questions()["02.2"].hint
    first, again = check("02.2", s.with_fault("twice")), check("02.2", s.with_fault("twice"))
    (hint,) = first.hints
    assert hint == "Load x once, and use the loaded value for the sums and the output."
    assert again.hints == (hint, own)
    # A mistake without a hint of its own gets the question's.
    assert check("02.2", s.with_fault("shifted")).hints[0] == own


def test_progress_survives_a_restart_and_the_best_counts(own_progress):
    assert progress().points == 0
    check("02.3", s.merge)
    check("02.3", s.merge_naively)
    assert progress().points == 3
    assert "■" in repr(progress())
    assert "02.3: 3 of 3" in progress()._repr_html_()
    assert own_progress.exists()


def test_points_for_speed_are_kept_and_told(own_progress):
    note("03.3", 2, bonus=1)
    note("03.3", 2)
    assert (progress().points, progress().bonus) == (2, 1)
    assert progress().headline.startswith("2 of ")
    assert progress().headline.endswith("points, and 1 for speed")
    # A file written before there was a bonus is read as it is.
    own_progress.write_text('{"03.3": {"points": 2, "failed": 0}}')
    assert (progress().points, progress().bonus) == (2, 0)


def test_an_unreadable_progress_file_is_put_aside(own_progress):
    own_progress.write_text("{not json")
    assert progress().points == 0
    assert own_progress.with_suffix(".unreadable").read_text() == "{not json"
    check("02.3", s.merge)
    assert progress().points == 3


def test_progress_that_cannot_be_kept_costs_no_verdict(monkeypatch):
    monkeypatch.setenv("KERNELS_PROGRESS", "/proc/none/progress.json")
    assert check("02.3", s.merge).passed
    monkeypatch.setenv("KERNELS_PROGRESS", "")
    assert check("02.3", s.merge).passed
