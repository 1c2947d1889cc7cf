"""On a GPU: compiled and interpreted side by side in one process, and the ledgers held to it."""

import pytest
import torch

from kernels import KernelError
from kernels.lab.counting import traffic
from kernels.lab.counting.op_ledger import count_op
from kernels.lab.profiling import profile
from kernels.ops.norms.layernorm import OP, layer_norm, reference
from kernels.registry import DTYPES
from tests.launch import kernels_under_test as k
from tests.ops.test_layernorm import rounding_of_the_mean

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.proves(
    "kernels.launch.hook", "kernels.launch.triton_launch", "kernels.launch.interpreter"
)
def test_counting_a_gpu_launch_leaves_the_compiled_mode_working():
    x, y = torch.rand(1000, device="cuda"), torch.zeros(1000, device="cuda")
    k.copy[(4,)](x, y, 1000, BLOCK=256)
    assert torch.equal(x, y)
    y.zero_()
    ledger = traffic.count(lambda: k.copy[(4,)](x, y, 1000, BLOCK=256))
    assert torch.equal(x, y)
    assert ledger.tensor("x").read_requested == ledger.tensor("y").write_requested == 4000
    x.add_(1)
    k.copy[(4,)](x, y, 1000, BLOCK=256)
    assert torch.equal(x, y)
    assert profile.timeline(lambda: k.copy[(4,)](x, y, 1000, BLOCK=256))[0][0] == "copy"


@pytest.mark.proves("kernels.launch.hook", "kernels.launch.triton_launch", "kernels.launch.arena")
def test_one_store_too_many_is_named_on_a_gpu_too_and_the_next_launch_compiles():
    memory = torch.zeros(2000, device="cuda")
    y, x = memory[:1000], memory[1000:].normal_()
    before = x.clone()
    with pytest.raises(KernelError, match="copy_one_too_many.*y_ptr.*index 1000"):
        traffic.count(lambda: k.copy_one_too_many[(4,)](x, y, 1000, BLOCK=256))
    assert torch.equal(x, before)
    k.copy[(4,)](x, y, 1000, BLOCK=256)
    assert torch.equal(x, y)


@pytest.mark.proves("kernels.ops.norms.forward", "kernels.launch.interpreter")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_interpreted_and_compiled_agree(dtype):
    inputs = OP.inputs((16, 1000), dtype, "cuda", seed=3)
    compiled = layer_norm(**inputs)
    interpreted = layer_norm(**{name: value.cpu() for name, value in inputs.items()})
    # The order of the sums differs, and y = a·w + b may cancel: a few roundings of values near 8.
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(compiled.cpu(), interpreted, rtol=2 * unit, atol=16 * unit)


@pytest.mark.proves("kernels.ops.norms.forward")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("width", [1, 3, 17, 1000, 1536, 5000, 8192, 32768, 131072])
@pytest.mark.parametrize("mean", [0.5, 100.0])
def test_layer_norm_against_float64(dtype, width, mean):
    if dtype == torch.bfloat16 and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("not on this card: bf16 needs compute capability 8.0")
    inputs = OP.inputs((33, width), dtype, "cuda", seed=torch.seed() % 2**31, mean=mean)
    out, exact = layer_norm(**inputs).double(), reference(**inputs)
    bound = OP.tolerance(dtype, (33, width)).relative_norm + rounding_of_the_mean(inputs["x"])
    assert (out - exact).norm() <= bound * exact.norm()


@pytest.mark.proves("kernels.ops.norms.forward")
def test_offsets_past_two_to_the_31():
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB")
    rows, width = 2**31 // 4096 + 8, 4096
    x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    out = layer_norm(x)
    exact = reference(x[-8:])
    assert (out[-8:].double() - exact).norm() <= 2**-7 * exact.norm()
    tall = x.view(-1, 8)[:, :].t()  # a column stride, and columns past 2^31 elements apart
    few = tall[:, :: rows * width // 64]
    assert (layer_norm(few).double() - reference(few)).abs().max() <= 2**-5


@pytest.mark.proves("kernels.ops.norms.forward", "kernels.lab.counting.aten")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_profiler_sees_the_launches_that_the_ledger_counts(dtype):
    inputs = OP.inputs((256, 4096), dtype, "cuda", seed=0)
    for variant in ("eager", "torch", "fused"):
        fn = OP.variant(variant).fn
        ledger = count_op(OP, variant, (256, 4096), dtype)
        seen = profile.timeline(lambda fn=fn: fn(**inputs))
        assert len(seen) == ledger.aten_ops + ledger.launches, (variant, seen)


def test_a_tensor_on_the_host_among_device_tensors_is_refused():
    with pytest.raises(ValueError, match="weight lies on cpu and x on cuda"):
        layer_norm(torch.randn(4, 8, device="cuda"), torch.randn(8))
