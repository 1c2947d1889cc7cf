"""LayerNorm in CUDA C++ on a GPU: against float64, and seen by the ledgers and the profilers."""

import pytest
import torch

from kernels.lab.counting import traffic
from kernels.lab.counting.op_ledger import count_op
from kernels.lab.measuring import timing
from kernels.lab.profiling import profile
from kernels.ops.norms.layernorm import OP, reference
from kernels.registry import DTYPES
from tests.ops.test_layernorm import assert_close, layouts, rounding_of_the_mean

pytest.importorskip("cuda.core")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
VARIANTS = [name for name, variant in OP.variants.items() if variant.counted == "cuda"]
CPU_REASON = OP.variant("fused_cuda").unavailable(torch.device("cpu"))


def skip_without(dtype):
    if dtype == torch.bfloat16 and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("not on this card: bf16 needs compute capability 8.0")


@pytest.mark.proves("kernels.ops.norms.layernorm_cuda")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("width", [1, 3, 17, 1000, 1001, 1536, 4096, 5000, 16_384, 20_001, 131_072])
@pytest.mark.parametrize("name", VARIANTS)
def test_each_variant_against_float64(name, dtype, width):
    skip_without(dtype)
    inputs = OP.inputs((33, width), dtype, "cuda", seed=torch.seed() % 2**31)
    out, exact = OP.variant(name).fn(**inputs), reference(**inputs)
    assert out.dtype == dtype
    bound = OP.tolerance(dtype, (33, width)).relative_norm
    # A thread that sums a row alone rounds once for each element.
    bound += 2**-24 * width**0.5 if name == "cuda_1" else 0
    assert (out.double() - exact).norm() <= bound * exact.norm()


@pytest.mark.proves("kernels.ops.norms.layernorm_cuda")
@pytest.mark.parametrize("width", [1000, 1001, 20_000])
def test_a_mean_far_from_zero(width):
    inputs = OP.inputs((33, width), torch.float32, "cuda", seed=1, mean=100.0)
    exact = reference(**inputs)
    for name in ("unfused_cuda", "cuda_3", "cuda_4", "fused_cuda"):
        out = OP.variant(name).fn(**inputs).double()
        bound = OP.tolerance(torch.float32, (33, width)).relative_norm
        bound += rounding_of_the_mean(inputs["x"]) * (width / 256) ** 0.5
        assert (out - exact).norm() <= bound * exact.norm(), name


@pytest.mark.proves("kernels.ops.norms.layernorm_cuda")
@pytest.mark.parametrize(("layout", "x"), list(layouts()), ids=[name for name, _ in layouts()])
@pytest.mark.parametrize("name", ["unfused_cuda", "fused_cuda"])
def test_every_layout(name, layout, x):
    there = torch.empty(0, device="cuda")
    there.set_(x.untyped_storage().cuda(), x.storage_offset(), x.shape, x.stride())
    out, exact = OP.variant(name).fn(there, eps=1.0), reference(there, eps=1.0)
    if exact.any():
        assert_close(out, exact, x.dtype, x.shape)
    else:  # rows of equal elements: what is left is the rounding of their mean
        assert out.abs().max() <= rounding_of_the_mean(there, eps=1.0)


def test_no_rows_launch_nothing():
    for name in VARIANTS:
        assert OP.variant(name).fn(torch.empty(0, 8, device="cuda")).shape == (0, 8)


@pytest.mark.proves("kernels.ops.norms.layernorm_cuda")
def test_offsets_past_two_to_the_31():
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB")
    rows, width = 2**31 // 4096 + 8, 4096
    x = torch.randn(rows, width, device="cuda", dtype=torch.float16)
    exact = reference(x[-8:])
    out = OP.variant("fused_cuda").fn(x)
    assert (out[-8:].double() - exact).norm() <= 2**-10 * exact.norm()
    far = x.as_strided((2, width), (2**31 + 4096, 1))  # a row stride that 32 bits don't hold
    for name in ("unfused_cuda", "cuda_1", "cuda_4"):
        out = OP.variant(name).fn(far).double()
        assert (out - reference(far)).norm() <= 2**-10 * reference(far).norm(), name


@pytest.mark.proves("kernels.ops.norms.layernorm_cuda", "kernels.cuda.cuda_launch")
def test_the_profiler_sees_the_launches_in_their_order():
    inputs = OP.inputs((256, 4096), torch.float16, "cuda", seed=0)
    for name in VARIANTS:
        fn = OP.variant(name).fn
        seen = [kernel for kernel, _, _ in profile.timeline(lambda fn=fn: fn(**inputs))]
        if CPU_REASON is None:
            ledger = count_op(OP, name, (256, 4096), torch.float16)
            counted = [step.name.partition("<")[0] for step in ledger]
            assert len(seen) == len(counted), seen
            assert all(short in long for short, long in zip(counted, seen, strict=True)), seen
        assert len(seen) == (1 if name in ("cuda_3", "cuda_4", "fused_cuda") else 4)
    if CPU_REASON is not None:
        pytest.skip(f"the names were not compared: {CPU_REASON}")


@pytest.mark.proves(
    "kernels.ops.norms.layernorm_cuda", "kernels.cuda.cuda_launch", "kernels.cuda.module"
)
@pytest.mark.skipif(CPU_REASON is not None, reason=str(CPU_REASON))
@pytest.mark.parametrize("name", ["unfused_cuda", "fused_cuda"])
def test_counting_tensors_of_a_gpu_computes_the_same(name):
    inputs = OP.inputs((16, 1000), torch.float32, "cuda", seed=3)
    there = OP.variant(name).fn(**inputs)
    kept = []
    ledger = traffic.count(lambda: kept.append(OP.variant(name).fn(**inputs)))
    assert kept[0].is_cuda
    torch.testing.assert_close(kept[0], there, rtol=1e-5, atol=1e-5)
    assert ledger.tensor("x").read_unique == 64_000 * (3 if name == "unfused_cuda" else 1)
    again = OP.variant(name).fn(**inputs)  # and the card runs the next one
    assert torch.equal(again, there)


@pytest.mark.proves("kernels.ops.norms.layernorm_cuda", "kernels.cuda.cuda_launch")
def test_in_a_cuda_graph():
    inputs = OP.inputs((64, 1024), torch.float16, "cuda", seed=0)
    for name in VARIANTS:
        fn = OP.variant(name).fn
        want = fn(**inputs)
        kept = []
        call = lambda fn=fn, kept=kept: kept.append(fn(**inputs))  # noqa: E731
        graph = timing.capture([call], torch.cuda.graph_pool_handle())
        kept[-1].zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(kept[-1], want), name
