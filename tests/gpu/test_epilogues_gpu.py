"""Products with an epilogue on a GPU, forward and back, are as near as PyTorch's."""

import pytest
import torch

from kernels import passes
from kernels.ops.chains.activation_dropout import activation_dropout
from kernels.ops.epilogues.configurations import epilogue_tiling, finishes_to_try, halved
from kernels.ops.epilogues.forward import launch, with_gate, with_gelu, with_residual
from kernels.ops.epilogues.linear_bias_gelu import linear_bias_gelu
from kernels.ops.epilogues.linear_swiglu import linear_swiglu
from kernels.ops.epilogues.operators import gelu_form
from kernels.ops.epilogues.qkv import qkv
from kernels.ops.products.tuning import forward_to_try
from kernels.registry import Case, get

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
if HOPPER:
    from kernels.ops.epilogues.hopper import launch as by_hand
SIZES = ((4096, 1024, 3072), (1000, 520, 776), (333, 1001, 1003), (16, 1024, 264), (4100, 8, 520))
HEADS = (
    (8, 512, 1024, 3, 16, 64),
    (4, 256, 1024, 3, 8, 64),
    (2, 512, 1024, 3, 8, 128),
    (3, 77, 520, 3, 5, 40),
)
OF_M = {"linear_bias_gelu": (), "linear_bias_residual": ()}
GATED = dict.fromkeys(("linear_swiglu", "swiglu_mlp", "geglu_mlp"), (2,))
CASES = [(op, (*sizes, *more)) for op, more in (OF_M | GATED).items() for sizes in SIZES]
CASES += [("qkv", sizes) for sizes in HEADS]


@pytest.fixture(autouse=True)
def full_precision():
    """PyTorch's products of fp16 add up in fp32 too, which is not its default."""
    before = torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    yield
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = before


def off(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


def as_wide(given):
    return {name: None if one is None else one.double() for name, one in given.items()}


@pytest.mark.proves("kernels.ops.epilogues.forward", "kernels.ops.epilogues.backward")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize(("name", "shape"), CASES, ids=str)
def test_outputs_and_gradients_are_as_near_as_pytorchs(name, shape, dtype):
    op = get(name)
    given = op.make(Case(shape, dtype), "cuda", seed=torch.seed() % 2**31)
    exact = op.reference(**as_wide(given))
    theirs = off(op.variant("torch").fn(**given), exact)
    for variant in ("fused_simple", "fused", *(["fused_hopper"] if HOPPER else [])):
        if variant in op.variants:
            assert off(op.variant(variant).fn(**given), exact) <= 2 * theirs + 2.0**-22, variant
    ours = passes.bind(op, op.variant("fused"), given, "bwd", seed=1)
    above = passes.upstream(ours.outputs, 1)
    wide = passes.back(op, op.reference, as_wide(given), lambda _: [a.double() for a in above])()
    near = passes.back(op, op.variant("torch").fn, given, lambda _: above)()
    for one, other, truth in zip(ours(), near, wide, strict=True):
        assert off(one, truth) <= 2 * off(other, truth) + 2.0**-22


def gelu_by_hand(approximate, x, weight, bias):
    todo, (y, _kept) = with_gelu(x, weight, bias, gelu_form(approximate), keeps=False)
    by_hand(todo)
    return y


@pytest.mark.proves("kernels.ops.epilogues.hopper_kernels")
@pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_both_forms_of_gelu_by_hand(approximate, dtype):
    op = get("linear_bias_gelu")
    given = op.make(Case((4100, 328, 1544), dtype), "cuda", seed=4)
    exact = op.reference(**as_wide(given), approximate=approximate)
    theirs = off(op.variant("torch").fn(**given, approximate=approximate), exact)
    assert off(gelu_by_hand(approximate, **given), exact) <= 1.1 * theirs
    large = {**given, "bias": given["bias"] * 0 + 1e4}  # nothing but the number itself, or 0
    assert torch.equal(
        gelu_by_hand(approximate, **large), op.variant("fused").fn(**large, approximate=approximate)
    )


@pytest.mark.proves("kernels.ops.epilogues.hopper_kernels", "kernels.ops.epilogues.hopper")
@pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("approximate", ["tanh", "none"])
@pytest.mark.parametrize("shape", [(4100, 328, 1544), (16384, 256, 264)], ids=str)
def test_every_way_to_finish_a_tile_is_right_each_time(shape, approximate, dtype):
    """A buffer that is written over too early shows in some runs, and in few elements."""
    gelu, gate, form = get("linear_bias_gelu"), get("linear_swiglu"), gelu_form(approximate)
    given = gelu.make(Case(shape, dtype), "cuda", seed=4)
    exact = gelu.reference(**as_wide(given), approximate=approximate)
    theirs = off(gelu.variant("torch").fn(**given, approximate=approximate), exact)
    of_gate = gate.make(Case((*shape, 2), dtype), "cuda", seed=4)
    gate_exact = gate.reference(**as_wide(of_gate))
    gate_theirs = off(gate.variant("torch").fn(**of_gate), gate_exact)
    for finish in finishes_to_try(form):
        outputs = []
        for _ in range(8):
            todo, (y, _kept) = with_gelu(*given.values(), form, keeps=False)
            by_hand(todo, finish=finish)
            outputs.append(y)
        assert off(outputs[0], exact) <= 1.2 * theirs, finish.name
        assert all(torch.equal(one, outputs[0]) for one in outputs), finish.name
        todo, (y, _kept) = with_gate(*of_gate.values(), "silu", keeps=False)
        by_hand(todo, finish=finish)
        assert off(y, gate_exact) <= 1.2 * gate_theirs, finish.name


def added_by_hand(**given):
    todo, y = with_residual(**given)
    by_hand(todo)
    return y


@pytest.mark.proves("kernels.ops.epilogues.hopper_kernels", "kernels.ops.epilogues.hopper")
@pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize(
    "shape", [(4100, 328, 1544), (16384, 64, 264), (2048, 1000, 4104)], ids=str
)
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_a_residual_by_hand_is_right_each_time_and_nothing_is_written_beside_it(shape, dtype, mean):
    op = get("linear_bias_residual")
    given = op.make(Case(shape, dtype), "cuda", seed=9)
    given["x"] = (given["x"].float() + mean).to(dtype)
    wide = torch.randn(shape[0], shape[2] + 24, device="cuda").to(dtype)
    wide[:, : shape[2]] = given["residual"]
    for residual in (given["residual"], wide[:, : shape[2]]):
        told = {**given, "residual": residual}
        exact = op.reference(**as_wide(told))
        theirs = off(op.variant("torch").fn(**told), exact)
        y = added_by_hand(**told)
        assert off(y, exact) <= 1.1 * theirs
        assert all(torch.equal(y, added_by_hand(**told)) for _ in range(8))
    without = {**given, "bias": None}
    assert off(added_by_hand(**without), op.reference(**as_wide(without))) < 2.0**-8


@pytest.mark.proves("kernels.ops.epilogues.forward")
def test_every_tiling_that_tune_compares_is_right():
    case = Case((700, 520, 776), torch.bfloat16)
    gelu, gate = get("linear_bias_gelu"), get("linear_swiglu")
    given = gelu.make(case, "cuda", seed=8)
    of_gate = gate.make(Case((*case.shape, 2), case.dtype), "cuda", seed=8)
    exact, of_gate_exact = gelu.reference(**as_wide(given)), gate.reference(**as_wide(of_gate))
    card = torch.cuda.get_device_capability()
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    chosen = epilogue_tiling(case.shape, 2, True, True, True, card, sms)
    for tiling in forward_to_try(case).values():
        if card < (9, 0) and tiling.persistent:
            continue
        for keeps in (False, True):
            todo, (y, _) = with_gelu(*given.values(), "gelu_tanh", keeps)
            launch(todo, tiling)
            assert off(y, exact) < 2.0**-8, tiling.name
            if keeps and halved(tiling) != chosen:
                continue  # what is kept, beside more stages, may not fit: `tune` keeps nothing
            todo, (y, _) = with_gate(*of_gate.values(), "silu", keeps)
            launch(todo, halved(tiling))
            assert off(y, of_gate_exact) < 2.0**-8, tiling.name


@pytest.mark.proves("kernels.ops.epilogues.operators")
@pytest.mark.parametrize("fn", [linear_bias_gelu, linear_swiglu, qkv], ids=lambda f: f.__name__)
def test_compiled_whole_with_inductor(fn):
    name = fn.__name__
    shape = {"linear_swiglu": (64, 136, 72, 2), "qkv": (2, 64, 136, 3, 2, 64)}.get(name)
    op = get(name)
    given = op.make(Case(shape or (64, 136, 72), torch.float16), "cuda", seed=5)

    def both_ways(call):
        leaves = [one.detach().requires_grad_() for one in given.values()]
        y = call(*leaves)
        return y.detach(), *torch.autograd.grad(y, leaves, torch.ones_like(y))

    for one, other in zip(both_ways(torch.compile(fn, fullgraph=True)), both_ways(fn), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.proves("kernels.ops.epilogues.forward", "kernels.launch.again")
def test_kept_launches_take_other_tensors():
    for name, shape in CASES[1::3]:
        op = get(name)
        for seed in range(3):
            given = op.make(Case(shape, torch.bfloat16), "cuda", seed)
            with torch.no_grad():
                y = op.variant("fused").fn(**given)
            assert off(y, op.reference(**as_wide(given))) < 2.0**-6


@pytest.mark.proves(
    "kernels.ops.epilogues.epilogue_kernels",
    "kernels.ops.epilogues.hopper_activations",
    "kernels.ops.chains.gelu_by_power",
)
@pytest.mark.parametrize("approximate", ["tanh", "none"])
@pytest.mark.parametrize("way", ["fused_simple", "fused", "fused_hopper"])
def test_nan_stays_nan(way, approximate):
    x, weight = torch.randn(2, 8192, 128, device="cuda").bfloat16()
    x[5, 3], x[1000, 0] = float("nan"), float("nan")
    y = get("linear_bias_gelu").variant(way).fn(x, weight, None, approximate)
    assert y.isnan().any(-1).nonzero().flatten().tolist() == [5, 1000]
    assert y[5].isnan().all()


@pytest.mark.proves("kernels.ops.chains.gelu_by_power", "kernels.ops.chains.dropped")
def test_nan_stays_nan_beside_a_dropout():
    x = torch.randn(64, 1024, device="cuda").bfloat16()
    x[3, 7] = float("nan")
    seed = torch.tensor([1, 2], device="cuda")
    for activation in ("gelu_erf", "gelu_tanh", "relu"):
        leaf = x.detach().requires_grad_()
        y = activation_dropout(leaf, activation, 0.0, seed)
        (dx,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
        assert y.isnan().nonzero().tolist() == [[3, 7]]
        if activation != "relu":
            assert dx.isnan().nonzero().tolist() == [[3, 7]]
