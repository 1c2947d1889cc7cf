"""Answers in the manner of CUDA C++ or PyTorch are told what Triton has in its place."""

import pytest
import torch
import triton
import triton.language as tl

from kernels.grading import check
from tests.grading.edited import edited


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
        (counts_by_pytorch, "Inside a kernel there is no PyTorch, NumPy or math"),
        (counts_by_threads, "tl.program_id(0) stands for blockIdx.x"),
        (branches, "Give it to mask= of the load"),
        (branches_on_both, "join conditions by & and |"),
    ],
)
def test_a_habit_is_told_what_stands_for_it(kernel, told):
    result = check("03.3", copied(kernel))
    assert (result.points, "line " in result.message) == (0, True)
    assert told in result.means


LOAD, STORE = "x = tl.load(x_ptr + offsets, mask=mask)", "tl.store(y_ptr + offsets, x, mask=mask)"
HABITS = {
    "the length of a pointer": ("offsets < n", "offsets < len(x_ptr)", "and no size with it"),
    "the shape of a pointer": ("offsets < n", "offsets < x_ptr.shape[0]", "and no size with it"),
    "the number of a pointer's elements": (
        "offsets < n",
        "offsets < x_ptr.numel()",
        "and no size with it",
    ),
    "a method of PyTorch's": (STORE, STORE.replace("x,", "x.float(),"), "it is x.to(tl.float32)"),
    "an array of NumPy's": ("tl.arange(0, BLOCK)", "np.arange(0, BLOCK)", "no PyTorch, NumPy or"),
    "one address, many values": (STORE, "tl.store(y_ptr, x)", "The pointer names one address"),
    "one address, many lanes": (
        LOAD,
        "x = tl.load(x_ptr + tl.program_id(0), mask=mask)",
        "The pointer names one address",
    ),
    "an address at the launch": ("(x, y, n,", "(x.data_ptr(), y, n,", "not x.data_ptr()"),
    "a pointer stored": (STORE, STORE.replace("x,", "x_ptr,"), "an address and no number"),
    "a pointer multiplied": (
        STORE,
        STORE.replace("x,", "x_ptr * 2.0,"),
        "an address and no number",
    ),
    "a float as an offset": (
        LOAD,
        LOAD.replace("+ offsets", "+ offsets / 1"),
        "An offset and the bounds of a loop are whole numbers",
    ),
    "a block of 1000": ("1024", "1000", "A block's width is a power of two"),
    "a block of n": ("tl.arange(0, BLOCK)", "tl.arange(0, n)", "A block's width is a power of two"),
    "a print that doesn't compile": (
        LOAD,
        f"{LOAD}\n    print(f'x {{x}}')",
        "A print is fine while",
    ),
}


@pytest.mark.parametrize("habit", HABITS)
def test_a_copy_with_a_habit_is_told_what_stands_for_it(habit):
    before, after, told = HABITS[habit]
    result = check("03.3", edited("03.3", (before, after)))
    assert not result.passed
    assert told in result.means, result


def test_shapes_that_do_not_fit_are_told_of_the_axis():
    result = check("06.4", edited("06.4", ("axis=1, keep_dims=True)", "axis=1)")))
    assert "meets the tile again as [:, None]" in result.means


@pytest.mark.parametrize("question", ["10.5", "10.8", "10.9"])
def test_an_accumulator_of_16_bits_is_told(question):
    result = check(question, edited(question, ("tl.float32", "tl.float16")))
    assert "AssertionError." in result.message
    assert "an accumulator of the product's own shape, in fp32" in result.means


def test_only_the_first_element_is_no_row():
    result = check("03.3", edited("03.3", (LOAD, "x = tl.load(x_ptr)")))
    assert result.means == "It is right for one element: look at how a lane finds its element."


def test_a_launch_without_a_grid_is_told_of_it():
    result = check("03.3", copied(branches, grid=False))
    assert "takes a grid in brackets before its arguments" in result.means


def test_an_error_of_another_kind_is_told_nothing_of_the_sort():
    def my_copy(x):
        return [][1]

    assert check("03.3", my_copy).means == ""
