"""A norm before a product: folding and what it does to rounding, what is kept, what is saved."""

import gc
import re
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import grad, jvp, vmap
from torch.nn import functional as F

from kernels import passes
from kernels.lab.counting import aten, by_formula, op_ledger, our_operators, traffic
from kernels.launch import assume_capability, interpreting, launches, recording
from kernels.launch.gluon import is_gluon, no_gluon
from kernels.ops.products.configurations import Tiling
from kernels.ops.prologues import moves, ways
from kernels.ops.prologues.configurations import hopper_group, hopper_programs, suits_hopper
from kernels.ops.prologues.folding import (
    Folded,
    composed_fold,
    fold,
    forget_folded,
    kept_fold,
    launch_fold,
)
from kernels.ops.prologues.forward import folded_forward
from kernels.ops.prologues.layernorm_linear import layernorm_linear, reference
from kernels.ops.prologues.modules import LayerNormLinear
from kernels.ops.prologues.rmsnorm_linear import rmsnorm_linear
from kernels.ops.shared import operators
from kernels.registry import Case, get

OPS = {name: get(name) for name in ways.CENTRED}
LN = OPS["layernorm_linear"]
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
NORMS = pytest.mark.parametrize("centred", [True, False], ids=["layernorm", "rmsnorm"])
EVERY = pytest.mark.parametrize("op", OPS.values(), ids=OPS)


def make(shape, dtype, seed=0, op=LN):
    return op.inputs(shape, dtype, "cpu", seed=seed)


def folds_of(given):
    return [given.get(name) for name in ("norm_weight", "norm_bias", "weight", "bias")]


def off(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


def wide(given):
    return {name: value.double() for name, value in given.items()}


# ------------------------------------------------------------------------------------------ folding


@NORMS
@pytest.mark.parametrize("without", [(), ("norm_weight",), ("norm_bias", "bias")], ids=str)
def test_the_launch_folds_as_pytorchs_operators_do(without, centred):
    given = make((1, 70, 19), torch.bfloat16) | dict.fromkeys(without)
    given["weight"] = given["weight"].T.contiguous().T
    ours, theirs = (way(*folds_of(given), centred) for way in (launch_fold, composed_fold))
    n = 19
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=2**-7, atol=1e-6)
    torch.testing.assert_close(ours.bias[:n], theirs.bias[:n], rtol=1e-5, atol=1e-5)
    assert (ours.sums is None) == (theirs.sums is None) == (not centred)
    if centred:  # the sums of the weights as they are stored
        torch.testing.assert_close(ours.sums[:n], ours.weight.float().sum(1), rtol=0, atol=1e-5)
    assert len(ours.bias) == len(theirs.bias) == 256


def test_centred_weights_leave_the_mean_what_rounding_leaves():
    given = make((1, 1024, 64), torch.bfloat16)
    given["weight"] += 3.0  # what they have in common meets Σ (x − mean), which is 0
    folded = fold(*folds_of(given), True)
    plain = given["weight"].float() * given["norm_weight"].float()
    assert plain.sum(1).abs().min() > 1000
    unit = torch.finfo(torch.bfloat16).eps / 2
    bound = unit * folded.weight.float().abs().sum(1)
    assert (folded.sums[:64].abs() <= bound).all()


# ---------------------------------------------------------------------------- rounding, large means


def errors(mean, dtype, k, change=lambda folded: folded):
    """How far torch and the folded product lie from float64, for x of such a mean and spread 1."""
    torch.manual_seed(int(mean))
    given = make((32, k, 96), dtype)
    given["x"] = (torch.randn(32, k) + mean).to(dtype)
    exact = reference(**wide(given))
    y = folded_forward(given["x"], change(fold(*folds_of(given), True)), 1e-5)
    return off(LN.variant("torch").fn(**given), exact), off(y, exact)


@HALVES
@pytest.mark.parametrize("k", [64, 1024])
@pytest.mark.parametrize("mean", [0, 10, 100])
def test_folded_is_as_near_as_pytorch_at_means_up_to_100(mean, k, dtype):
    theirs, ours = errors(mean, dtype, k)
    assert ours <= 2 * theirs


def test_at_a_mean_of_1000_what_fp32_loses_is_bounded():
    for dtype in (torch.bfloat16, torch.float16):
        theirs, ours = errors(1000, dtype, 1024)
        assert ours <= 2 * theirs + 1000 * 2.0**-22 * 2


def test_without_the_sums_of_rounded_weights_a_mean_is_an_error():
    def as_if_exact(folded):
        return Folded(folded.weight, torch.zeros_like(folded.sums), folded.bias)

    theirs, ours = errors(100, torch.bfloat16, 1024, as_if_exact)
    assert ours > 10 * theirs


def test_a_shift_far_from_the_mean_costs_no_digits():
    """The first 64 of a row at 0, the others at 1000: the worst that a shift can meet."""
    given = make((16, 1024, 32), torch.float16)
    given["x"][:, 64:] += 1000
    exact = reference(**wide(given))
    theirs = off(LN.variant("torch").fn(**given), exact)
    for tiling in (None, Tiling(16, 32, 64, 4, 2, persistent=True)):
        y = folded_forward(given["x"], fold(*folds_of(given), True), 1e-5, tiling=tiling)
        assert off(y, exact) <= 2 * theirs


# ---------------------------------------------------------------------------- tiles and their bytes

KEPT = {"persistent": True}
TILINGS = {
    "pointers": Tiling(16, 32, 16, num_warps=4, num_stages=2),
    "row-major": Tiling(32, 16, 32, num_warps=4, num_stages=2, group=1),
    "descriptors": Tiling(32, 16, 16, num_warps=4, num_stages=2, group=2, **KEPT),
    "halves": Tiling(16, 32, 32, num_warps=4, num_stages=2, **KEPT, halves=True, flatten=True),
}


@NORMS
@pytest.mark.parametrize("shape", [(48, 64, 80), (50, 40, 104), (7, 8, 16)], ids=str)
@pytest.mark.parametrize("name", TILINGS)
def test_every_way_through_a_folded_product_moves_what_its_formula_says(name, shape, centred):
    op = LN if centred else OPS["rmsnorm_linear"]
    given = make(shape, torch.bfloat16, op=op)
    folded = fold(*folds_of(given), centred)
    with interpreting() as seen:
        y = folded_forward(given["x"], folded, 1e-5, tiling=TILINGS[name])
    assert off(y, op.reference(**wide(given))) <= 3 * 2.0**-9
    (step,) = traffic.ledger_of(seen).steps
    told = moves._folded_step(Case(shape, torch.bfloat16), centred, TILINGS[name])
    assert (step.name, step.grid) == (told.name, told.grid)
    (wanted,) = by_formula.ledger_of([told])
    assert tuple(one for one in step.tensors if one.unique) == wanted.tensors


def test_on_hopper_statistics_load_x_for_themselves():
    """A tile that is multiplied there must not go to registers too: see `kernels.folded_tile`."""
    given = make((96, 64, 80), torch.bfloat16)
    folded = fold(*folds_of(given), True)
    for tiling in TILINGS.values():
        asked = []
        for capability in (80, 90, 100):
            with assume_capability(capability), interpreting() as seen:
                y = folded_forward(given["x"], folded, 1e-5, tiling=tiling)
            assert off(y, reference(**wide(given))) <= 3 * 2.0**-9
            (step,) = traffic.ledger_of(seen).steps
            asked.append(step.tensor("x").read_requested)
        across = -(-80 // tiling.block_n)
        assert asked[1] - asked[0] == 96 * 64 * 2 * across
        assert asked[2] == asked[0]


@EVERY
@pytest.mark.parametrize("pass_", ["fwd", "bwd"])
def test_a_large_case_is_counted_by_its_formula(op, pass_):
    case = Case((4096, 1024, 3072), torch.bfloat16)
    ledger = op_ledger.count_case(op, "two_kernels", case, pass_)
    assert ledger.method == "formula"
    assert ledger.launches == (2 if pass_ == "fwd" else 5)
    m, k, _ = case.shape
    apart = ledger.bytes_unique - op.pass_(pass_).cost(case).bytes_ideal
    if pass_ == "fwd":  # what is normalised goes out and comes in again
        assert apart == 2 * m * k * 2
        folded = op_ledger.count_case(op, "one_kernel_folded", case)
        assert folded.bytes_unique < ledger.bytes_unique - 2 * m * k * 2 + 8 * 3072
    else:
        assert apart > 2 * m * k * 2


@EVERY
def test_in_a_model_the_operators_are_told_by_their_formulas(op, monkeypatch):
    """On fake CUDA tensors a call goes through the operator; a large one by its formula."""
    case = Case((64, 256, 96), torch.bfloat16)
    fakes = aten.fake_inputs(op, case)
    whole = aten.count(op.variant("two_kernels").fn, **fakes)
    monkeypatch.setattr(our_operators, "MOST_REQUESTED", 0)
    told = aten.count(op.variant("two_kernels").fn, **fakes)
    assert [step.kind for step in told] == ["launch", "launch"]
    assert [step.name for step in whole] == [step.name for step in told]
    for one, other in zip(whole, told, strict=True):
        seen, formula = ([t for t in s.tensors if t.unique] for s in (one, other))
        assert [replace(t, tensor="") for t in seen] == [replace(t, tensor="") for t in formula]


@EVERY
def test_every_candidate_of_tune_is_right(op):
    case = Case((40, 72, 136), torch.bfloat16)
    given = make(case.shape, case.dtype, op=op)
    exact = op.reference(**wide(given))
    tried = op.forward.candidates(case)
    assert len(tried) > 10
    for name, fn in tried.items():
        assert off(fn(**given), exact) <= 3 * 2.0**-9, name


# --------------------------------------------------------------------------------------------- kept


def test_folded_weights_are_kept_until_a_parameter_changes():
    given = make((1, 32, 24), torch.bfloat16)
    tensors = folds_of(given)
    first = kept_fold(*tensors, True)
    assert kept_fold(*tensors, True) is first
    assert kept_fold(*tensors, False) is not first  # RMSNorm's are others
    assert kept_fold(*tensors, True) is first
    for one in tensors:
        before = kept_fold(*tensors, True)
        one.mul_(2)
        after = kept_fold(*tensors, True)
        assert after is not before
        assert torch.equal(after.weight, composed_fold(*tensors, True).weight)
        assert torch.equal(after.bias, composed_fold(*tensors, True).bias)
    before = kept_fold(*tensors, True)
    others = [tensors[0].clone(), *tensors[1:]]
    assert kept_fold(*others, True) is not before


def test_an_optimizer_and_a_state_dict_are_seen():
    layer = LayerNormLinear(16, 24, dtype=torch.bfloat16)
    tensors = (layer.norm.weight, layer.norm.bias, layer.linear.weight, layer.linear.bias)
    before = kept_fold(*tensors, True)
    layer(torch.randn(4, 16).bfloat16()).sum().backward()
    torch.optim.SGD(layer.parameters(), 0.1).step()
    after = kept_fold(*tensors, True)
    assert not torch.equal(before.weight, after.weight)
    layer.load_state_dict(LayerNormLinear(16, 24, dtype=torch.bfloat16).state_dict())
    assert not torch.equal(kept_fold(*tensors, True).weight, after.weight)
    assert not before.weight.requires_grad


def test_what_is_written_past_pytorchs_count_is_not_seen_until_it_is_told():
    tensors = folds_of(make((1, 32, 24), torch.bfloat16))
    before = kept_fold(*tensors, True)
    tensors[2].data.mul_(2)
    assert kept_fold(*tensors, True) is before
    forget_folded()
    assert torch.equal(kept_fold(*tensors, True).weight, composed_fold(*tensors, True).weight)


def test_the_module_forgets_what_it_folded_when_it_is_trained_or_not():
    layer = LayerNormLinear(16, 24, dtype=torch.bfloat16)
    tensors = (layer.norm.weight, layer.norm.bias, layer.linear.weight, layer.linear.bias)
    before = kept_fold(*tensors, True)
    layer.linear.weight.data.mul_(2)
    for mode in (layer.eval, layer.train):
        mode()
        after = kept_fold(*tensors, True)
        assert after is not before
        assert torch.equal(after.weight, composed_fold(*tensors, True).weight)
        before = after


def test_it_lives_as_long_as_the_weight_and_holds_nothing_else():
    from kernels.ops.prologues import folding

    gc.collect()
    tensors = folds_of(make((1, 32, 24), torch.bfloat16))
    known = len(folding._kept)
    kept_fold(*tensors, True)
    assert len(folding._kept) == known + 1
    del tensors
    gc.collect()
    assert len(folding._kept) == known


def test_tensors_of_inference_mode_are_folded_each_time():
    with torch.inference_mode():
        tensors = folds_of(make((1, 32, 24), torch.bfloat16))
        assert kept_fold(*tensors, True) is not kept_fold(*tensors, True)


def test_nothing_is_folded_for_a_gradient_or_on_a_cpu():
    given = make((8, 32, 24), torch.bfloat16)
    leaves = {name: nn.Parameter(value) for name, value in given.items()}
    for variant in ("one_kernel", "one_kernel_folded"):
        with pytest.raises(RuntimeError, match="layernorm_linear has no backward pass"):
            LN.variant(variant).fn(**leaves)
    assert not ways.folds(*leaves.values())
    with torch.no_grad():
        assert not ways.folds(*leaves.values())
        assert torch.equal(layernorm_linear(**leaves), LN.variant("two_kernels").fn(**given))


@EVERY
def test_a_training_step_may_fold_at_the_call_and_keeps_x_alone(op, monkeypatch):
    given = make((16, 32, 24), torch.bfloat16, op=op)
    leaves = {name: nn.Parameter(value) for name, value in given.items()}
    with interpreting() as seen:
        y = op.variant("one_kernel_folding").fn(**leaves)
    assert [launch.name for launch in seen] == ["fold_rows", "folded_tile"]
    assert {one.data_ptr() for one in y.grad_fn.saved_tensors if one is not None} <= {
        one.data_ptr() for one in leaves.values()
    }
    # The rule: Hopper, enough rows for each column, and somebody who asks for a gradient.
    x, *parameters = (
        torch.empty(sizes, dtype=torch.bfloat16, requires_grad=True)
        for sizes in ((9000, 256), (256,), (256,), (1024, 256), (1024,))
    )
    monkeypatch.setattr(operators, "SHORT_WHERE", "is_cpu")
    assert not ways.trains_folded(x, *parameters)  # as the record has it
    monkeypatch.setitem(ways.FOLDS_FROM, (9, 0), 8.0)
    assert ways.trains_folded(x, *parameters) == (no_gluon() is None)
    assert not ways.trains_folded(x[:8000], *parameters)
    with torch.no_grad():
        assert not ways.trains_folded(x, *parameters)
    with assume_capability(80):
        assert not ways.trains_folded(x, *parameters)


@EVERY
def test_the_best_way_for_inference_on_hopper_is_folded_and_follows_the_parameters(op, monkeypatch):
    """As if this were a card with one SM; what is written for it is interpreted in Triton."""
    monkeypatch.setattr(operators, "SHORT_WHERE", "is_cpu")
    monkeypatch.setattr(ways, "multiprocessors", lambda _: 1)
    given = make((16, 256, 264), torch.bfloat16, op=op)  # two tiles
    parameters = {name: nn.Parameter(value) for name, value in given.items() if name != "x"}
    ours = {"layernorm_linear": layernorm_linear, "rmsnorm_linear": rmsnorm_linear}[op.name]
    x, told = given["x"], folds_of(parameters)

    def names():
        with interpreting() as seen:
            y = ours(x, **parameters)
        exact = op.reference(x.double(), **{n: p.detach().double() for n, p in parameters.items()})
        assert off(y.detach(), exact) <= 3 * 2.0**-9
        return [launch.name for launch in seen]

    assert names() == ["norm_row", "linear_tile"]  # parameters want gradients
    with torch.no_grad():
        assert ways.folds(x, *told)
        assert ways.folds(x.view(2, 8, 256), *told)
        assert not ways.folds(x.view(2, 8, 256).transpose(0, 1), *told)
        y = ours(x, **parameters)
        assert torch.equal(y, op.variant("one_kernel_folded").fn(x=x, **parameters))
        parameters["weight"].mul_(2)
        assert torch.equal(
            ours(x, **parameters), folded_forward(x, fold(*told, ways.CENTRED[op.name]), 1e-5)
        )
        plain = {name: value.detach() for name, value in parameters.items()}
        assert torch.equal(ours(x, **plain), op.variant("two_kernels").fn(x=x, **plain))


# ------------------------------------------------------------------------- what is kept, going back


@EVERY
def test_going_back_starts_from_x_alone_and_normalises_again(op):
    given = make((16, 32, 24), torch.bfloat16, op=op)
    leaves = {name: value.detach().requires_grad_() for name, value in given.items()}
    saved = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t)
    with hooks:
        y = op.variant("two_kernels").fn(**leaves)
    known = {one.data_ptr() for one in leaves.values()}
    assert {one.data_ptr() for one in saved} <= known
    with interpreting() as seen:
        torch.autograd.grad(y, list(leaves.values()), torch.randn_like(y))
    names = [launch.name for launch in seen]
    assert names[0] == "norm_row"
    assert [name.startswith("gradient") for name in names[1:-2]] == [True, True]
    assert names[-2:] == ["norm_backward_rows", "sum_partials"]


@EVERY
def test_only_the_gradients_that_are_wanted(op):
    given = make((16, 32, 24), torch.float32, op=op)
    dy = torch.randn(16, 24)
    exact = dict(zip(given, back(op.reference, wide(given), given, dy.double()), strict=True))
    for name in given:
        got = back(op.variant("two_kernels").fn, given, [name], dy)
        torch.testing.assert_close(got[0].double(), exact[name], rtol=1e-4, atol=1e-4)


def back(fn, given, names, dy):
    leaves = {name: given[name].detach().requires_grad_() for name in names}
    return torch.autograd.grad(fn(**{**given, **leaves}), list(leaves.values()), dy)


def test_a_second_derivative_is_refused_in_a_sentence():
    given = make((4, 8, 8), torch.float32)
    x = given["x"].requires_grad_()
    (dx,) = torch.autograd.grad(layernorm_linear(**given).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        dx.sum().backward()


# ---------------------------------------------------------------------------- arguments, transforms


def test_parameters_may_be_missing_or_wider():
    given = make((6, 40, 24), torch.bfloat16)
    x, weight = given["x"], given["weight"]
    exact = F.linear(F.layer_norm(x.double(), (40,)), weight.double())
    assert off(layernorm_linear(x, None, None, weight), exact) <= 3 * 2.0**-9
    mixed = given | {"norm_weight": torch.rand(40), "norm_bias": torch.rand(40)}
    for way in ("two_kernels", "one_kernel", "one_kernel_folded"):
        assert off(LN.variant(way).fn(**mixed), reference(**wide(mixed))) <= 3 * 2.0**-9
    exact = F.linear(F.rms_norm(x.double(), (40,), eps=1e-5), weight.double())
    assert off(rmsnorm_linear(x, None, weight), exact) <= 3 * 2.0**-9


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"norm_weight": torch.ones(7)}, "norm_weight has the shape (7,); with x of shape (4, 8)"),
        ({"norm_bias": torch.ones(8, dtype=torch.int32)}, "norm_bias has dtype torch.int32"),
        ({"weight": torch.ones(5, 9)}, "weight has the shape (5, 9)"),
        ({"bias": torch.ones(5, dtype=torch.half)}, "they must have the same"),
        ({"x": torch.tensor(1.0)}, "its last dimension must be 1 or more"),
    ],
)
@pytest.mark.parametrize("variant", ["two_kernels", "one_kernel", "one_kernel_folded"])
def test_wrong_arguments_are_told_in_one_sentence(variant, change, sentence):
    given = make((4, 8, 5), torch.float32) | change
    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)) as told:
        LN.variant(variant).fn(**given)
    assert "\n" not in str(told.value)


@EVERY
def test_transforms_and_compilers_take_the_public_function(op):
    given = make((3, 5, 4), torch.float32, op=op)
    ours = {"layernorm_linear": layernorm_linear, "rmsnorm_linear": rmsnorm_linear}[op.name]
    others = {name: value for name, value in given.items() if name != "x"}

    def of(fn, others):
        return lambda x: fn(x, **others).sin().sum()

    def near(got, exact):
        torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-4)

    x, tangent, wide_others = given["x"], torch.randn(3, 5), wide(others)
    mine, exact = of(ours, others), of(op.reference, wide_others)
    near(grad(mine)(x), grad(exact)(x.double()))
    near(jvp(mine, (x,), (tangent,))[1], jvp(exact, (x.double(),), (tangent.double(),))[1])
    batch = torch.stack([x, x.flip(0)])
    near(vmap(grad(mine))(batch), vmap(grad(exact))(batch.double()))
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    near(compiled(**given), op.reference(**wide(given)))
    leaf = x.clone().requires_grad_()
    (dx,) = torch.autograd.grad(compiled(leaf, **others).sin().sum(), leaf)
    near(dx, grad(exact)(x.double()))


@EVERY
def test_the_short_way_gives_the_same_bits_and_dispatches_nothing(op, monkeypatch):
    given = make((6, 16, 8), torch.bfloat16, op=op)
    step = passes.bind(op, op.variant("two_kernels"), given, "train")
    calls = (step, lambda: (op.variant("one_kernel_folded").fn(**given),))
    expected = [call() for call in calls]
    monkeypatch.setattr(operators, "SHORT_WHERE", "is_cpu")
    for call, wanted in zip(calls, expected, strict=True):
        call()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            got = call()
        assert not [event.key for event in seen.key_averages() if "fusing_kernels" in event.key]
        assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))


def test_autocast_leaves_dtypes_as_they_are():
    given = make((4, 16, 8), torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layernorm_linear(**given)
    assert y.dtype == torch.float32
    assert torch.equal(y, layernorm_linear(**given))


# ------------------------------------------------------------------------------------------- module


def test_the_module_has_the_names_and_states_of_its_parts():
    torch.manual_seed(0)
    parts = nn.Sequential()
    parts.add_module("norm", nn.LayerNorm(32))
    parts.add_module("linear", nn.Linear(32, 24))
    torch.manual_seed(0)
    ours = LayerNormLinear(32, 24)
    assert list(ours.state_dict()) == list(parts.state_dict())
    for name, value in parts.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name])
    with torch.no_grad():
        parts.norm.weight.mul_(1.5)
        parts.norm.bias.add_(0.5)
    ours.load_state_dict(parts.state_dict())
    x = torch.randn(2, 3, 32, requires_grad=True)
    dy = torch.randn(2, 3, 24)
    wanted = torch.autograd.grad(parts(x), (x, *parts.parameters()), dy)
    got = torch.autograd.grad(ours(x), (x, *ours.parameters()), dy)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    ours.eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), parts(x), rtol=1e-5, atol=1e-5)
    assert LayerNormLinear(8, 4, bias=False).linear.bias is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_module_in_autocast_is_what_its_parts_are(dtype):
    ours = LayerNormLinear(32, 24)
    x = (torch.randn(16, 32) + 30).to(dtype)
    with torch.no_grad():
        exact = reference(x, ours.norm.weight, ours.norm.bias, ours.linear.weight, ours.linear.bias)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ours(x)
    assert y.dtype == torch.bfloat16
    assert off(y.detach(), exact) <= 4 * 2.0**-9
    y.sum().backward()
    assert all(one.grad.dtype == torch.float32 for one in ours.parameters())


# ------------------------------------------------------------------------------------------- Hopper


def test_the_rule_of_the_kernel_written_for_hopper():
    rule = 2, True, (9, 0), 132
    assert suits_hopper((4096, 1024, 3072), *rule)
    assert not suits_hopper((16, 1024, 3072), *rule)  # 12 tiles for 132 SMs
    assert not suits_hopper((4096, 1032, 3072), *rule)  # not in whole steps of 64
    assert not suits_hopper((4096, 192, 3072), *rule)  # fewer steps than it begins with
    assert not suits_hopper((4096, 1024, 3072), 4, True, (9, 0), 132)
    assert not suits_hopper((4096, 1024, 3072), 2, True, (10, 0), 132)


@pytest.mark.parametrize("down", [1, 3, 8, 32, 100, 200])
def test_a_program_keeps_to_its_rows_of_tiles(down):
    group, across = hopper_group(down), 12
    programs = hopper_programs(down * across, group, 132)
    assert programs <= 132
    if programs == down * across:
        return
    assert programs % group == 0
    whole = down // group * group * across  # tiles of whole groups; what is left is narrower

    def row(tile):
        return tile // (group * across) * group + tile % (group * across) % group

    changes = sum(
        row(tile) != row(tile - programs)
        for tile in range(programs, whole)
        if tile // (group * across) == (tile - programs) // (group * across)
    )
    assert changes == 0


@pytest.mark.skipif(no_gluon() is not None, reason="no Gluon for Hopper")
@EVERY
def test_where_it_stands_and_where_it_steps_aside(op):
    def recorded(shape, dtype, capability=90):
        given = {
            name: torch.empty([dict(zip("MKN", shape, strict=True))[d] for d in dims], dtype=dtype)
            for name, dims in op.tensors.items()
        }
        with recording() as seen, assume_capability(capability):
            op.variant("fused_hopper").fn(**given)
        (launch,) = seen
        return launch

    launch = recorded((4096, 1024, 3072), torch.bfloat16)
    assert is_gluon(launch.kernel)
    assert launch.grid == (128, 1, 1)  # 32 rows of tiles, four programs each
    for other in ((16, 1024, 3072), (4096, 1032, 3072)):
        assert not is_gluon(recorded(other, torch.bfloat16).kernel)
    assert not is_gluon(recorded((4096, 1024, 3072), torch.bfloat16, 80).kernel)
    assert launches.mode() is None


def test_its_bytes_by_hand():
    told = moves.hopper_moves(Case((200, 256, 520), torch.float16), "fwd", True)
    # 2 rows of 3 tiles: x three times, the weight twice, sums and bias (768 numbers each, in whole
    # tiles) by two groups of each row.
    of_x, of_weight, of_y = 200 * 256 * 2, 520 * 256 * 2, 200 * 520 * 2
    assert told.requested == 3 * of_x + 2 * of_weight + of_y + 2 * 2 * 2 * 768 * 4
    assert told.unique == of_x + of_weight + of_y + 2 * 768 * 4


@pytest.mark.skipif(no_gluon() is not None, reason="no Gluon for Hopper")
def test_gelu_by_a_polynomial_with_groups_apart_compiles_without_a_spill():
    from kernels.ops.epilogues.configurations import Finish
    from kernels.ops.prologues import hopper

    x, y = (torch.empty(4096, n, dtype=torch.bfloat16) for n in (1024, 3072))
    folded = Folded(torch.empty(3072, 1024).bfloat16(), torch.empty(3072), torch.empty(3072))
    finish = Finish(apart=True, by_power=True)
    with recording() as seen, assume_capability(90):
        hopper.launch(x, folded, y, 1e-5, activation="gelu_tanh", finish=finish)
    (launch,) = seen
    compiled = launch.specialize(90).compile()
    assert not compiled.serialized
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= 232_448
