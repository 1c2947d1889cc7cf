"""The picture of a block's requests shows those of the trace, in the order of each warp."""

import shutil

import pytest
import torch

from kernels.cuda import cuda
from kernels.lab.counting import traffic
from kernels.lab.drawing.rounds import requests, rounds
from kernels.ops.norms.layernorm import OP

SOURCE = """
__global__ void twice(const float* x, float* y, int n) {
    float sum = 0;
    for (int again = 0; again < 2; again++)
        for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i] * (again + 1);
    y[threadIdx.x] = sum;
}
__global__ void wide(const float4* x, float4* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void scattered(const float* x, float* y) {
    y[threadIdx.x] = x[2 * (threadIdx.x % 2)];
}
"""

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="CUDA C++ on a CPU is compiled by g++"
)


@needs_compiler
def test_a_round_is_the_how_manieth_request_of_its_warp():
    traced = cuda(SOURCE).twice[1, 64].traced(torch.randn(128), torch.zeros(64), 128)
    found = requests(traced.trace, "x", 4)
    # Two warps, 128 elements: two rounds a sweep, two sweeps.
    expected = [(r, w, 64 * (r % 2) + 32 * w, 32) for w in (0, 1) for r in range(4)]
    assert sorted(found) == sorted(expected)
    assert requests(traced.trace, "y", 4, kind="store") == [(0, 0, 0, 32), (0, 1, 32, 32)]
    assert requests(traced.trace, "x", 4, program=1) == []


@needs_compiler
def test_a_load_of_four_elements_is_told_in_elements():
    traced = cuda(SOURCE).wide[1, 64].traced(torch.randn(256), torch.zeros(256))
    assert requests(traced.trace, "x", 4) == [(0, 0, 0, 128), (0, 1, 128, 128)]


@needs_compiler
def test_a_request_that_scatters_is_several_entries_of_one_round():
    traced = cuda(SOURCE).scattered[1, 32].traced(torch.randn(4), torch.zeros(32))
    assert requests(traced.trace, "x", 4) == [(0, 0, 0, 1), (0, 0, 2, 1)]


@needs_compiler
def test_the_figure_has_a_panel_a_kernel_and_says_how_often_an_element_is_loaded():
    traced = cuda(SOURCE).twice[1, 64].traced(torch.randn(128), torch.zeros(64), 128)
    once = cuda(SOURCE).scattered[1, 32].traced(torch.randn(4), torch.zeros(32))
    figure = rounds({"again": traced.trace, "once": once.trace}, "x", 128, 4, "title")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["again: 4 rounds, each element 2×", "once: 1 round, each element 1×"]
    warps = [patch.get_gid() for patch in figure.axes[0].patches]
    assert sorted(warps) == ["warp:0", "warp:1"]


@needs_compiler
def test_a_block_that_loads_nothing_is_refused():
    traced = cuda(SOURCE).scattered[1, 32].traced(torch.randn(4), torch.zeros(32))
    with pytest.raises(ValueError, match="block 3 of 'it' loads nothing of 'x'"):
        rounds({"it": traced.trace}, "x", 4, 4, "title", program=3)


def test_a_trace_of_triton_has_no_warps():
    trace = traffic.trace(OP.variant("fused").fn, **OP.inputs((2, 16), torch.float32, "cpu", 0))
    with pytest.raises(ValueError, match="no warps"):
        requests(trace, "x_ptr", 4)
