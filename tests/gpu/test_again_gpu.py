"""Launches that are ready, on a GPU: the same bits, on the stream at hand, and how quick."""

import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import passes
from kernels.lab.measuring.host_cost import host_costs
from kernels.launch import again, lasting, ready
from kernels.ops.norms.layernorm import layer_norm
from kernels.ops.shared import operators
from kernels.ops.softmax.softmax import softmax
from kernels.paths import ROOT
from kernels.registry import Case
from tests.lab.test_host_cost import above_bounds
from tests.launch.test_again import CALLS
from tests.ops.layouts import LAYOUTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
WAY = "c" if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7) else "launcher"


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, scale, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * scale, mask=mask)


@triton.jit
def descriptor_kernel(x_desc, y_ptr, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    tl.store(y_ptr + start + tl.arange(0, BLOCK), x_desc.load([start]))


def scaled(x, scale=3.0):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), scale, BLOCK=1024)
    return y


@pytest.mark.proves("kernels.launch.again", "kernels.launch.plan", "kernels.launch.tape")
@pytest.mark.parametrize(("op", "variant"), CALLS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
def test_the_short_way_gives_the_same_bits(op, variant, layout, monkeypatch):
    shape = op.resized(op.shapes[0], R=64)

    def both(seed):
        made = op.make(Case(shape, torch.bfloat16, op.options[0]), "cuda", seed)
        given = {k: layout(v) if k in op.tensors else v for k, v in made.items()}
        outputs = passes.as_tuple(variant.fn(**given))
        if not variant.has("bwd"):
            return outputs
        return (*outputs, *passes.bind(op, variant, given, "train", seed)())

    short = {seed: [both(seed) for _ in range(3)] for seed in (1, 2)}
    monkeypatch.setattr(operators, "SHORT_WHERE", "is_meta")
    again.forget()
    for seed, times in short.items():
        expected = both(seed)
        for outputs in times:
            for one, other in zip(outputs, expected, strict=True):
                assert torch.equal(one, other)


@pytest.mark.proves("kernels.launch.again", "kernels.launch.plan", "kernels.launch.tape")
def test_a_launch_is_the_launcher_s_own():
    call = again.Ready(scaled)
    x = torch.randn(4096, device="cuda")
    for _ in range(2):
        torch.testing.assert_close(call(x, 3.0), 3 * x)
    assert [made.ways for made in call.plans] == [[WAY]]


@pytest.mark.proves("kernels.launch.again", "kernels.launch.plan", "kernels.launch.tape")
@pytest.mark.parametrize("change", ["alignment", "dtype", "value", "source"])
def test_a_changed_call_gets_no_stale_launch(change):
    call = again.Ready(scaled)
    x, scale, source = torch.randn(4097, device="cuda"), 3.0, scale_kernel.src
    for _ in range(2):
        torch.testing.assert_close(call(x, scale), 3 * x)
    try:
        if change == "source":
            scale_kernel._unsafe_update_src(source.replace("* scale", "* scale * 2"))
            expected = x * 6
        else:
            x = {"alignment": x[1:], "dtype": x.half()}.get(change, x)
            scale = 4.0 if change == "value" else scale
            expected = x * scale
        for _ in range(2):
            torch.testing.assert_close(call(x, scale), expected)
    finally:
        scale_kernel._unsafe_update_src(source)


@pytest.mark.proves("kernels.launch.again", "kernels.launch.plan", "kernels.launch.tape")
def test_a_launch_goes_to_the_stream_at_hand():
    x = torch.randn(1 << 20, device="cuda")
    call = again.Ready(scaled)
    for _ in range(2):
        call(x, 3.0)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        call(x, 3.0)
        done = side.record_event()
    torch.cuda.current_stream().synchronize()
    assert not done.query()  # it waits behind the sleep, on the side stream
    done.synchronize()


@pytest.mark.proves("kernels.launch.again", "kernels.launch.plan", "kernels.launch.tape")
def test_a_captured_launch_reads_what_is_there_at_the_replay():
    x, weight, bias = (torch.randn(*size, device="cuda") for size in ((64, 1024), (1024,), (1024,)))
    for _ in range(2):
        layer_norm(x, weight, bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer_norm(x, weight, bias)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(y, layer_norm(x, weight, bias))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_tensor_on_another_device_is_launched_there():
    for device in ("cuda:0", "cuda:1", "cuda:0", "cuda:1"):
        x = torch.randn(64, 1024, device=device)
        torch.testing.assert_close(softmax(x), torch.softmax(x, -1))
        with torch.cuda.device(device):
            torch.testing.assert_close(softmax(x), torch.softmax(x, -1))


@pytest.mark.proves("kernels.launch.again", "kernels.launch.plan", "kernels.launch.tape")
@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0),
    reason="needs a GPU with descriptors",
)
def test_a_descriptor_is_renewed_and_a_table_is_kept():
    table = lasting(torch.randn(4096, device="cuda"))

    def copied(x):
        y = torch.empty_like(x)
        descriptor_kernel[(16,)](TensorDescriptor.from_tensor(x, [256]), y, BLOCK=256)
        z = torch.empty_like(x)
        descriptor_kernel[(16,)](TensorDescriptor.from_tensor(table, [256]), z, BLOCK=256)
        return y, z

    call = again.Ready(copied)
    for _ in range(4):
        x = torch.randn(4096, device="cuda")
        y, z = call(x)
        assert torch.equal(y, x)
        assert torch.equal(z, table)
    assert [made.ways for made in call.plans] == [[WAY, WAY]]


@pytest.mark.proves("kernels.launch.again", "kernels.launch.plan", "kernels.launch.tape")
def test_a_gluon_kernel_is_ready_too():
    gluon = pytest.importorskip("triton.experimental.gluon")
    from tests.gpu.gluon_kernels import copy_kernel

    assert gluon
    quick = ready(copy_kernel)
    for _ in range(3):
        x, y = torch.randn(4096, device="cuda"), torch.empty(4096, device="cuda")
        quick[(8,)](x, y, 4096, BLOCK=512, num_warps=4)
        assert torch.equal(x, y)
    assert [made.ways for made in quick.calls.plans] == [[WAY]]


@pytest.mark.proves("kernels.launch.again", "kernels.launch.plan", "kernels.ops.shared.operators")
def test_a_model_trains_as_pytorchs_own_does():
    torch.manual_seed(0)
    weights = [torch.randn(256, device="cuda") for _ in range(2)]

    def losses(norm, autocast):
        w, b = (one.clone().requires_grad_() for one in weights)
        linear = torch.nn.Linear(256, 256, device="cuda")
        torch.manual_seed(1)
        torch.nn.init.normal_(linear.weight, std=0.05)
        optimizer = torch.optim.SGD([w, b, *linear.parameters()], lr=0.1)
        found = []
        for step in range(6):
            generator = torch.Generator("cuda").manual_seed(step % 2)
            x = torch.randn(8 + step % 3, 256, device="cuda", generator=generator)
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = (norm(linear(x).float(), w, b) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                found.append(float((norm(linear(x).float(), w, b) ** 2).mean()))
        return torch.tensor(found)

    def own(x, w, b):
        return torch.nn.functional.layer_norm(x, (256,), w, b)

    for autocast in (False, True):
        with torch.random.fork_rng(devices=[0]):
            torch.manual_seed(2)
            ours = losses(layer_norm, autocast)
            torch.manual_seed(2)
            theirs = losses(own, autocast)
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=1e-3)


def test_a_second_derivative_is_refused_in_one_sentence():
    for norm in (layer_norm, softmax):
        x = torch.randn(4, 64, device="cuda", requires_grad=True)
        (first,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="no second derivative"):
            first.sum().backward()


@pytest.mark.alone
@pytest.mark.proves(
    "kernels.launch.again", "kernels.launch.plan", "kernels.ops.shared.operators",
    "kernels.lab.measuring.host_cost",
)  # fmt: skip
def test_a_call_costs_about_what_pytorchs_own_does(tmp_path):
    # In a process of its own, as a reader runs it.
    command = [sys.executable, "-m", "kernels.lab", "host", "--out", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT)
    (told,) = host_costs(tmp_path)
    assert above_bounds(told) == []
