"""Launches in CUDA C++ in the ledgers: beside Triton's, in order, with the same four numbers."""

import pytest
import torch

from kernels.cuda import cuda
from kernels.grading.cases import Case, Run
from kernels.lab.counting import traffic
from kernels.launch import interpreting, recording
from kernels.registry import Tolerance
from tests.launch import kernels_under_test as k

MODULE = cuda(r"""
__global__ void scale(const float* x, float* y, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
template <typename T>
__global__ void spread(const T* one, T* y) {
    y[threadIdx.x] = one[0];
}
""")


def numbers(step):
    return {
        t.tensor: (t.read_unique, t.read_requested, t.write_unique, t.write_requested)
        for t in step.tensors
    }


def test_a_chain_of_triton_and_cuda_is_one_ledger_in_the_order_of_its_launches():
    x, y, z = torch.rand(100), torch.zeros(100), torch.zeros(100)

    def chain():
        MODULE.scale[4, 32](x, y, 2.0, 100)
        k.copy[(2,)](y, z, 100, BLOCK=64)
        MODULE["spread<float>"][1, 64](z, y)

    ledger = traffic.count(chain)
    assert torch.equal(z, 2 * x)
    assert [(step.name, step.kind, step.grid) for step in ledger] == [
        ("scale", "launch", (4, 1, 1)),
        ("copy", "launch", (2, 1, 1)),
        ("spread<float>", "launch", (1, 1, 1)),
    ]
    copied = {"x": (400, 400, 0, 0), "y": (0, 0, 400, 400)}
    assert [numbers(step) for step in ledger] == [
        copied,
        copied,
        {"one": (4, 256, 0, 0), "y": (0, 0, 256, 256)},
    ]
    assert ledger.launches == 3
    assert ledger.bytes_unique == 800 + 800 + 260


def test_lanes_that_stay_away_are_told():
    ledger = traffic.count(MODULE.scale[5, 32], torch.rand(100), torch.zeros(100), 2.0, 100)
    # Four warps make a request each, the fourth with 4 lanes; the fifth warp makes none.
    assert (ledger.steps[0].lanes, ledger.steps[0].masked_lanes) == (2 * 128, 2 * 28)


def test_sectors_are_those_of_the_warps_requests():
    ledger = traffic.count(MODULE.scale[5, 32], torch.rand(100), torch.zeros(100), 2.0, 100)
    assert ledger.bytes_sectors == 2 * 13 * 32  # 12 whole sectors and a half one, read and written
    mixed = traffic.count(lambda: k.copy[(2,)](torch.rand(9), torch.zeros(9), 9, BLOCK=64))
    assert mixed.bytes_sectors is None


def test_what_is_recorded_does_not_run():
    x, y = torch.rand(100), torch.zeros(100)
    with interpreting() as counted, recording() as launches:
        assert MODULE.scale[4, 32, 16](x, y, 2.0, 100) is None
        k.copy[(2,)](x, y, 100, BLOCK=64)
    assert torch.equal(y, torch.zeros(100))
    first, second = launches
    assert (first.name, second.name, len(counted)) == ("scale", "copy", 0)
    assert (first.grid, first.block, first.shared_bytes) == ((4, 1, 1), (32, 1, 1), 16)
    assert first.arguments["x"] is x
    assert first.arguments["n"] == 100
    assert (first.arena, first.trace) == (None, ())
    with pytest.raises(ValueError, match="launch of 'scale' was recorded, not run"):
        traffic.step_of(first)


def test_every_block_around_a_launch_counts_it():
    x, y = torch.rand(64), torch.zeros(64)
    with interpreting() as outer, interpreting(trace=True) as inner:
        counts = MODULE.scale[1, 64](x, y, 2.0, 64)
    assert outer.seen == inner.seen
    assert inner.seen[0].arena is counts
    accesses = [(a.argument, a.kind, a.offsets.tolist()) for a in inner.seen[0].trace]
    assert ("x", "load", list(range(32, 64))) in accesses
    assert len(accesses) == 4
    MODULE.scale[1, 64](x, y, 2.0, 64)
    assert len(outer) == 1


def test_a_check_of_an_exercise_sees_the_bytes_of_one_tensor():
    x, y = torch.rand(100), torch.zeros(100)
    with interpreting() as launches:
        MODULE.scale[4, 32](x, y, 2.0, 100)
        MODULE.scale[4, 32](y, x, 2.0, 100)
    case = Case({"x": x}, (), x.double(), Tolerance(1e-3, 1e-3))
    moved = Run(case, y, launches, ()).traffic(x)
    assert (moved.read_unique, moved.write_unique, moved.times_read) == (400, 400, 1.0)
