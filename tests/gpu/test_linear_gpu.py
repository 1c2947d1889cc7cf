"""Products on a GPU, forward and back: against float64, ragged, strided, kept, compiled whole."""

from functools import partial

import pytest
import torch

from kernels import passes
from kernels.lab.measuring import paired_ratios, timing
from kernels.ops.products.backward import grad_weight, grad_x
from kernels.ops.products.configurations import FORWARD, SIMPLE, Tiling
from kernels.ops.products.forward import forward
from kernels.ops.products.linear import fused, fused_simple, linear
from kernels.ops.products.peers import torch_linear
from kernels.ops.products.tuning import forward_to_try, gradients_to_try
from kernels.registry import DTYPES, Case, Variant, get

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
OP = get("linear")
SIZES = (
    *((1, 1, 1), (1, 17, 5), (16, 1024, 3072), (33, 70, 17), (1000, 1000, 1000)),
    *((1001, 8192, 257), (517, 1, 130), (4100, 1032, 776), (300, 520, 4099)),
)


@pytest.fixture(autouse=True)
def full_precision():
    """PyTorch's products of fp16 add up in fp32 too, which is not its default."""
    before = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    yield
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = before


def both_ways(fn, given, dy):
    """The output and the gradients of x, weight and bias."""
    leaves = [value.detach().requires_grad_() for value in given.values()]
    y = fn(*leaves)
    return (y.detach(), *torch.autograd.grad(y, leaves, dy))


def off(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


def assert_as_near(names, ours, theirs, exact, shape):
    """Twice PyTorch's error at most.

    In fp32 the kernels add up one term after the other, and cuBLAS parts of a sum, for few rows at
    least: there the bound is the tolerance of so many terms.
    """
    m, k, n = shape
    for name, one, other, truth in zip(names, ours, theirs, exact, strict=True):
        more = torch.finfo(one.dtype).eps / 2 if truth.numel() < 64 else 2.0**-22
        if one.dtype == torch.float32:
            more = 2.0**-24 * {"y": k, "dx": n}.get(name, m) ** 0.5 + 2.0**-22
        assert off(one, truth) <= 2 * off(other, truth) + more, name


@pytest.mark.proves("kernels.ops.products.operators", "kernels.ops.products.linear")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_outputs_and_gradients_are_as_near_as_pytorchs(shape, dtype):
    given = OP.inputs(shape, dtype, "cuda", seed=torch.seed() % 2**31)
    dy = torch.randn(shape[0], shape[2], device="cuda").to(dtype)
    exact = both_ways(OP.reference, {n: v.double() for n, v in given.items()}, dy.double())
    theirs = both_ways(torch_linear, given, dy)
    names = ("y", "dx", "dweight", "dbias")
    assert_as_near(names, both_ways(fused, given, dy), theirs, exact, shape)
    assert_as_near(names, both_ways(linear, given, dy), theirs, exact, shape)
    assert_as_near(names[:1], [fused_simple(**given)], theirs[:1], exact[:1], shape)


@pytest.mark.proves("kernels.ops.products.forward")
def test_rows_apart_expanded_and_in_batches():
    x = torch.randn(6, 40, 264, device="cuda").bfloat16()
    weight = torch.randn(136, 512, device="cuda").bfloat16()[:, 100:356]
    for one in (x[..., :256], x[..., 4:260].transpose(0, 1), x[:1, :, 8:].expand(6, 40, 256)):
        exact = one.double() @ weight.double().T
        for fn in (fused, fused_simple):
            assert off(fn(one, weight), exact) < 2.0**-8


@pytest.mark.proves("kernels.ops.products.operators")
def test_the_same_inputs_give_the_same_bits():
    given = OP.inputs((4096, 1024, 1024), torch.bfloat16, "cuda", seed=3)
    dy = torch.randn(4096, 1024, device="cuda").bfloat16()
    first = both_ways(fused, given, dy)
    for _ in range(5):
        for one, other in zip(first, both_ways(fused, given, dy), strict=True):
            assert torch.equal(one, other)


@pytest.mark.proves("kernels.ops.products.operators", "kernels.launch.again")
def test_kept_launches_take_other_tensors():
    for seed in range(4):
        given = OP.inputs((300, 256, 520), torch.bfloat16, "cuda", seed)
        with torch.no_grad():
            y = fused(**given)
        assert off(y, OP.reference(**given)) < 2.0**-8


@pytest.mark.proves("kernels.ops.products.operators")
@pytest.mark.parametrize("fn", [fused, linear])
def test_compiled_whole_with_inductor(fn):
    given = OP.inputs((64, 1000, 136), torch.float32, "cuda", seed=5)
    dy = torch.randn(64, 136, device="cuda")
    ours = both_ways(torch.compile(fn, fullgraph=True), given, dy)
    for one, other in zip(ours, both_ways(fn, given, dy), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.proves("kernels.ops.products.forward")
def test_every_tiling_of_the_table_and_of_tune_is_right():
    card = torch.cuda.get_device_capability()
    case = Case((700, 520, 776), torch.bfloat16)
    given = OP.inputs(case.shape, case.dtype, "cuda", seed=8)
    exact = OP.reference(**given)
    tried: list[Tiling] = [*SIMPLE.values(), *forward_to_try(case).values()]
    tried += [t for c, t in FORWARD.items() if c <= card]
    for tiling in tried:
        if card >= (9, 0) or not tiling.persistent:
            assert off(forward(**given, tiling=tiling), exact) < 2.0**-8, tiling.name


@pytest.mark.proves("kernels.ops.products.backward")
@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0),
    reason="needs a GPU with descriptors",
)
def test_every_tiling_of_the_backward_that_tune_compares_is_right():
    case = Case((700, 520, 776), torch.bfloat16)
    given = OP.inputs(case.shape, case.dtype, "cuda", seed=8)
    dy = torch.randn(700, 776, device="cuda").bfloat16()
    wide = dy.double()
    dx, dweight, dbias = wide @ given["weight"].double(), wide.T @ given["x"].double(), wide.sum(0)
    for name, (of, tiling) in gradients_to_try(case).items():
        if of == "x":
            assert off(grad_x(dy, given["weight"], tiling), dx) < 2.0**-8, name
        else:
            one, sums = grad_weight(dy, given["x"], True, tiling)
            assert off(one, dweight) < 2.0**-8, name
            assert off(sums, dbias) < 2.0**-8, name


@pytest.mark.alone
@pytest.mark.proves("kernels.ops.products.operators", "kernels.ops.products.configurations")
@pytest.mark.parametrize("shape", OP.shapes, ids=lambda shape: "x".join(map(str, shape)))
def test_the_public_backward_is_no_slower_than_pytorchs(shape):
    """At least 0.98 of its speed, by graphs that are replayed in turn."""
    pool, graphs = torch.cuda.graph_pool_handle(), {}
    for name, fn in (("ours", linear), ("pytorch", torch_linear)):
        inputs = OP.inputs(shape, torch.bfloat16, "cuda", 0)
        make = partial(passes.bind, OP, Variant(name, fn, ("fwd", "bwd")), inputs, "bwd", 0)
        graphs[name] = timing.make_and_capture([make], pool)
    stream = timing.CudaStream(torch.device("cuda"))
    windows = {name: graph.replay for name, graph in graphs.items()}
    samples = timing.time_windows(windows, stream, seconds=0.1)
    assert paired_ratios.speed_up(samples["ours"], samples["pytorch"]).ratio >= 0.98
