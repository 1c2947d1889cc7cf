"""CUDA C++ on a GPU: the very sources that the emulator runs, with the same results."""

import dataclasses

import pytest
import torch

from kernels.cuda import CudaError, cuda
from tests.cuda.kernels_under_test import CASES

pytest.importorskip("cuda.core")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def on_gpu(values):
    return tuple(v.cuda() if isinstance(v, torch.Tensor) else v for v in values)


@pytest.mark.proves("kernels.cuda.cuda_launch", "kernels.cuda.nvrtc", "kernels.cuda.signature")
@pytest.mark.parametrize("name", CASES)
def test_the_emulators_kernels_are_right_on_the_card(name):
    case = CASES[name]
    moved = dataclasses.replace(case, arguments=lambda: on_gpu(case.arguments()))
    counts, got, want = moved.run()
    assert counts is None
    torch.testing.assert_close(got.cpu(), want.cpu(), rtol=2e-5, atol=2e-5)


@pytest.mark.proves("kernels.cuda.cuda_launch", "kernels.cuda.nvrtc", "kernels.cuda.signature")
def test_a_launch_goes_to_the_current_stream():
    x = torch.ones(1 << 20, device="cuda")
    z, n = torch.zeros_like(x), x.numel()
    add = cuda(CASES["add"].source).add
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    add[n // 128, 128](x, x, z, n)  # compiled before it is captured
    with torch.cuda.graph(graph, stream=stream):
        add[n // 128, 128](x, x, z, n)
    x.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((z == 6).all())


@pytest.mark.proves("kernels.cuda.nvrtc")
def test_a_fault_of_the_source_names_its_line():
    x = torch.ones(4, device="cuda")
    source = "__global__ void k(float* x) {\n    x[0] = y;\n}"
    with pytest.raises(CudaError, match="line 2: .*y") as raised:
        cuda(source).k[1, 1](x)
    assert raised.value.line == 2
