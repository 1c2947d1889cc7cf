"""Errors name the file of a helper, survive a process pool, and leave nothing behind."""

import concurrent.futures
import multiprocessing
import pickle
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from kernels import KernelError
from kernels.lab import traffic
from kernels.launch import interpreting
from tests.launch import helpers_elsewhere
from tests.launch import kernels_under_test as k
from tests.launch.helpers_elsewhere import load_at, misspelled


@triton.jit
def read_by_a_helper(x_ptr, y_ptr, i):
    tl.store(y_ptr, load_at(x_ptr, i))


@triton.jit
def wrong_in_a_helper(x_ptr, y_ptr, i):
    tl.store(y_ptr, misspelled(tl.load(x_ptr)))


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (read_by_a_helper, "return tl.load(x_ptr + i)"),
        (wrong_in_a_helper, "return x * not_there  # noqa: F821"),
    ],
)
def test_a_helper_in_another_file_is_named_with_that_file(kernel, text):
    with pytest.raises(KernelError) as caught:
        kernel[(1,)](torch.zeros(4), torch.zeros(1), 4)
    error = caught.value
    assert error.file == helpers_elsewhere.__file__
    assert Path(error.file).read_text().splitlines()[error.line - 1].strip() == text
    assert f"line {error.line} of helpers_elsewhere.py" in str(error)


def test_a_line_of_the_kernels_own_file_names_no_file():
    with pytest.raises(KernelError) as caught:
        k.missing_name[(1,)](torch.zeros(1))
    assert caught.value.file is None
    assert " of " not in str(caught.value).split(":")[0]


def test_an_error_inside_tritons_own_functions_names_the_kernels_line():
    @triton.jit
    def wrong_axis(x_ptr):
        x = tl.load(x_ptr + tl.arange(0, 4))
        tl.store(x_ptr, tl.sum(x, axis=3))

    with pytest.raises(KernelError, match="axis 3") as caught:
        wrong_axis[(1,)](torch.zeros(4))
    assert Path(__file__).read_text().splitlines()[caught.value.line - 1].strip() == (
        "tl.store(x_ptr, tl.sum(x, axis=3))"
    )


def launch_outside(index):
    k.read_outside[(1,)](torch.zeros(8), torch.zeros(1), index)


def test_an_error_is_the_same_after_pickling():
    with pytest.raises(KernelError) as caught:
        launch_outside(9)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert vars(again) == vars(caught.value)
    assert (type(again), again.kind, again.index) == (KernelError, "bounds", 9)


def test_an_error_comes_back_from_a_process_pool():
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        future = pool.submit(launch_outside, 9)
        with pytest.raises(KernelError, match="index 9"):
            future.result(timeout=60)


@triton.jit
def two_names(x_ptr, x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def test_x_and_x_ptr_are_two_tensors_of_the_ledger():
    ledger = traffic.count(lambda: two_names[(1,)](torch.zeros(5), torch.zeros(5), 5, BLOCK=8))
    assert ledger.tensors == ("x_ptr", "x")
    assert ledger.tensor("x_ptr").read_unique == ledger.tensor("x").write_unique == 20
    assert ledger.tensor("x_ptr").write_unique == ledger.tensor("x").read_unique == 0


@triton.jit
def interrupted(x_ptr, INTERRUPT: tl.constexpr):
    tl.store(x_ptr, 1.0)
    tl.static_print(INTERRUPT)


class Interrupts:
    def __str__(self):
        raise KeyboardInterrupt


def test_a_keyboard_interrupt_leaves_a_kernel_as_it_is():
    with interpreting() as launches, pytest.raises(KeyboardInterrupt):
        interrupted[(1,)](torch.zeros(1), INTERRUPT=Interrupts())
    assert len(launches) == 0
    x = torch.zeros(1)
    interrupted[(1,)](x, INTERRUPT="")
    assert x.item() == 1


def test_a_kernel_of_no_module_runs_and_names_its_line(tmp_path):
    file = tmp_path / "cell.py"
    file.write_text("@triton.jit\ndef kernel(x_ptr, i):\n    tl.store(x_ptr + i, 1.0)\n")
    namespace = {"triton": triton, "tl": tl}
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    assert namespace["kernel"].fn.__module__ in (None, "builtins")
    x = torch.zeros(2)
    namespace["kernel"][(1,)](x, 1)
    assert x.tolist() == [0, 1]
    with pytest.raises(KernelError) as caught:
        namespace["kernel"][(1,)](x, 2)
    assert (caught.value.line, caught.value.file) == (3, None)
