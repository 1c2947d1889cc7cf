"""The checks of what a GPU would make of a launch, each with a kernel that fails it."""

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from kernels.cuda import cuda
from kernels.grading.cases import Case
from kernels.grading.checks import run
from kernels.grading.compiled_checks import compiles, enough_programs
from kernels.grading.question import Attempt, Wrong
from kernels.hardware import LIMITS
from kernels.registry import Tolerance
from tests.grading import submissions as s


def case(rows=4, cols=64):
    x = torch.randn(rows, cols)
    return Case({"x": x}, (), x.double(), Tolerance(1e-6, 1e-6))


@triton.jit
def python_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    kept = {"x": tl.load(x_ptr + places, mask=places < n)}
    tl.store(y_ptr + places, kept["x"], mask=places < n)


@triton.jit
def whole_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n)
    total = tl.sum(x)
    tl.store(y_ptr + places, x + 0 * total, mask=places < n)


@triton.jit
def printing_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n)
    tl.device_print("x", x)
    tl.store(y_ptr + places, x, mask=places < n)


printing = cuda(r"""
__global__ void copy(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) printf("%d %f\\n", i, x[i]);
    if (i < n) y[i] = x[i];
}
""")


def printing_in_cuda(x):
    y = torch.empty_like(x)
    printing.copy[triton.cdiv(x.numel(), 64), 64](x, y, x.numel())
    return y


def in_one(kernel, warps=4):
    def copy(x):
        y = torch.empty_like(x)
        block = triton.next_power_of_2(x.numel())
        kernel[(1,)](x, y, x.numel(), BLOCK=block, num_warps=warps)
        return y

    return copy


def test_a_plain_copy_fits_everywhere():
    attempt = Attempt(s.copied, 0)
    compiles(attempt, [case()])
    assert attempt.held == ["compiles for sm_75 and sm_80: no spills, shared memory fits"]


@pytest.mark.parametrize(
    ("answer", "size", "told"),
    [
        (in_one(python_kernel), (4, 64), "does not compile"),
        (in_one(whole_kernel, warps=1), (16, 2048), "spills"),
        (in_one(printing_kernel), (4, 64), "printing_kernel .* prints"),
        (printing_in_cuda, (4, 64), "copy .* prints"),
    ],
)
def test_what_a_gpu_refuses_is_told(answer, size, told):
    with pytest.raises(Wrong, match=told) as raised:
        compiles(Attempt(answer, 0), [case(*size)])
    assert "compiled for sm_75" in raised.value.sentence
    assert raised.value.means


def test_more_shared_memory_than_a_block_has_is_told(monkeypatch):
    small = replace(LIMITS[75], shared_bytes_per_block=8)
    monkeypatch.setattr("kernels.grading.compiled_checks.LIMITS", {**LIMITS, 75: small})
    with pytest.raises(Wrong, match="16 bytes of shared memory; a block there has 8 at most"):
        compiles(Attempt(in_one(whole_kernel), 0), [case()])


def test_one_giant_block_is_too_few_programs():
    attempt = Attempt(in_one(whole_kernel), 0)
    runs = [run(attempt, case())]
    with pytest.raises(Wrong, match="runs 1 program on .*takes 4 at least: one a row"):
        enough_programs(attempt, runs, lambda case: len(case.x), "one a row")
    enough_programs(attempt, runs, lambda case: 1, "one")
    assert attempt.held
