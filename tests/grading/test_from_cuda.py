"""Answers in the manner of CUDA C++ or PyTorch are told what Triton has in its place."""

import pytest
import torch
import triton
import triton.language as tl

from kernels.grading import check


@triton.jit
def loads_by_index(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, x_ptr[i], mask=i < n)


@triton.jit
def stores_by_index(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y_ptr[i] = tl.load(x_ptr + i, mask=i < n)


@triton.jit
def counts_by_pytorch(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + torch.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def counts_by_threads(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.threadIdx.x
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def branches(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if i < n:
        tl.store(y_ptr + i, tl.load(x_ptr + i))


@triton.jit
def branches_on_both(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    while i < n and i >= 0:
        tl.store(y_ptr + i, tl.load(x_ptr + i))


def copied(kernel, grid=True):
    def my_copy(x):
        y, n = torch.empty_like(x), x.numel()
        launched = kernel[(triton.cdiv(n, 256),)] if grid else kernel
        launched(x, y, n, BLOCK=256)
        return y

    return my_copy


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (loads_by_index, "write tl.load(x_ptr + i, mask=...)"),
        (stores_by_index, "tl.store(y_ptr + i, value, mask=...)"),
        (counts_by_pytorch, "Inside a kernel there is no PyTorch"),
        (counts_by_threads, "tl.program_id(0) stands for blockIdx.x"),
        (branches, "Give it to mask= of the load"),
        (branches_on_both, "join conditions by & and |"),
    ],
)
def test_a_habit_is_told_what_stands_for_it(kernel, told):
    result = check("03.3", copied(kernel))
    assert (result.points, "line " in result.message) == (0, True)
    assert told in result.means


def test_a_launch_without_a_grid_is_told_of_it():
    result = check("03.3", copied(branches, grid=False))
    assert "takes a grid in brackets before its arguments" in result.means


def test_an_error_of_another_kind_is_told_nothing_of_the_sort():
    def my_copy(x):
        return [][1]

    assert check("03.3", my_copy).means == ""
