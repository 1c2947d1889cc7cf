"""All norms and their gradients against float64, on every dtype, width and layout."""

import pytest
import torch

from kernels import passes
from kernels.lab.counting import op_ledger, traffic
from kernels.lab.measuring.correctness import gradient_errors
from kernels.launch import assume_capability, interpreting, recording
from kernels.ops.norms import configurations
from kernels.ops.norms.add_layernorm import add_layer_norm
from kernels.ops.norms.add_rmsnorm import add_rms_norm
from kernels.ops.norms.backward import backward
from kernels.ops.norms.configurations import SharedRows, Teams
from kernels.ops.norms.forward import forward
from kernels.ops.norms.layernorm import layer_norm
from kernels.ops.norms.rmsnorm import rms_norm
from kernels.registry import Case, get
from tests.ops.test_layernorm import layouts
from tests.ops.test_softmax import assert_no_worse_than_torch, assert_within, cast

OPS = {name: get(name) for name in ("layernorm", "rmsnorm", "add_layernorm", "add_rmsnorm")}
ADDED = [name for name in OPS if name.startswith("add_")]


def make(name, rows, cols, dtype, **options):
    return OPS[name].inputs((rows, cols), dtype, "cpu", seed=torch.seed() % 2**31, **options)


def outputs_of(told):
    return told if isinstance(told, tuple) else (told,)


def differentiate(fn, given, upstream, **rest):
    """Outputs and gradients of all tensors of `given`, which keep their strides."""
    given = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
    outputs = outputs_of(fn(**given, **rest))
    gradients = torch.autograd.grad(outputs, tuple(given.values()), upstream)
    return [out.detach() for out in outputs], dict(zip(given, gradients, strict=True))


def compare(name, given, dtype, eps=1e-5):
    """Hold outputs and gradients to float64, and to twice PyTorch's own errors."""
    op, x = OPS[name], given["x"]
    shape = (x.numel() // x.shape[-1], x.shape[-1])
    upstream = [torch.randn(x.shape).to(dtype) for _ in range(1 + (name in ADDED))]
    fused, torchs = (op.variant(variant).fn for variant in ("fused", "torch"))
    ours, our_gradients = differentiate(fused, given, upstream, eps=eps)
    theirs, their_gradients = differentiate(torchs, given, upstream, eps=eps)
    wide = {tensor: value.double() for tensor, value in given.items()}
    exact, exact_gradients = differentiate(
        op.reference, wide, [u.double() for u in upstream], eps=eps
    )
    for one, other, truth in zip(ours, theirs, exact, strict=True):
        assert one.is_contiguous()
        assert_within(one, truth, op.tolerance(dtype, shape), dtype)
        assert_no_worse_than_torch(one, other, truth)
    for tensor, truth in exact_gradients.items():
        one = our_gradients[tensor]
        assert one.dtype == given[tensor].dtype
        assert one.shape == given[tensor].shape
        if truth.norm() == 0:  # rows of equal elements: x̂ is 0
            assert one.abs().max() <= 1e-6
            continue
        assert_no_worse_than_torch(one, their_gradients[tensor], truth)
        if shape[1] >= 1000:  # narrow rows cancel in dx
            bound = op.gradient_tolerance(tensor, dtype, shape)
            assert_within(one, truth, bound, one.dtype)


@pytest.mark.parametrize(("layout", "x"), list(layouts()), ids=[name for name, _ in layouts()])
@pytest.mark.parametrize("name", OPS)
def test_every_layout(name, layout, x):
    dtype = torch.bfloat16 if layout in ("sliced columns", "three strides") else torch.float32
    x = cast(x, dtype)
    n_cols = x.shape[-1]
    given = {"x": x}
    if name in ADDED:
        given["residual"] = torch.randn(x.shape).to(dtype)
    given["weight"] = torch.randn(n_cols).to(dtype)
    if "layer" in name:
        given["bias"] = torch.randn(n_cols).to(dtype)
    # With a large eps, since rows of equal elements would magnify rounding by 1/√eps.
    compare(name, given, dtype, eps=1.0)


@pytest.mark.parametrize("name", ADDED)
def test_a_residual_in_the_strides_of_x_is_not_copied(name):
    x, residual = torch.randn(2, 6, 40)[:, :, ::2], torch.randn(2, 6, 40)[:, :, ::2]
    weight = torch.randn(20)
    with recording() as launches:
        OPS[name].variant("fused").fn(x, residual, weight)
    arguments = launches.seen[0].arguments
    assert arguments["x_ptr"] is x
    assert arguments["residual_ptr"] is residual
    compare(name, {"x": x, "residual": residual, "weight": weight}, torch.float32)


def test_the_sum_is_rounded_and_the_rounded_sum_is_normalised():
    given = make("add_rmsnorm", 5, 64, torch.bfloat16)
    y, h = add_rms_norm(**given)
    assert torch.equal(h, given["x"] + given["residual"])
    assert torch.equal(y, rms_norm(h, given["weight"]))


@pytest.mark.parametrize("rows", [1, 5, 133, 300])
@pytest.mark.parametrize("block_rows", [1, 4])
def test_partial_sums_of_any_number_of_rows(rows, block_rows):
    x, dy, weight = torch.randn(rows, 24), torch.randn(rows, 24), torch.randn(24)
    _, _, mean, inv_std = forward(x, None, weight, weight, 1e-5, centred=True, statistics=True)
    told = backward(
        dy=dy,
        dh=None,
        x=x,
        weight=weight,
        bias=weight,
        mean=mean,
        inv_std=inv_std,
        wants_weight=True,
        wants_bias=True,
        configured=SharedRows(block_rows, num_warps=1, programs_per_sm=1, stages=1),
    )
    x_hat = (x - mean[:, None]) * inv_std[:, None]
    for one, truth in zip(told[1:], ((dy * x_hat).sum(0), dy.sum(0)), strict=True):
        torch.testing.assert_close(one, truth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "n_cols"), [(128, 24), (200, 100), (130, 33), (5, 9000)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_few_rows_are_summed_in_the_launch_that_takes_them(rows, n_cols, dtype):
    op = OPS["add_layernorm"]
    inputs = op.make(Case((rows, n_cols), dtype), "cpu", 3)
    step = passes.bind(op, op.variant("fused"), inputs, "bwd", 3)
    with interpreting() as seen:
        found = step()
    assert [launch.name for launch in seen] == ["norm_backward_wide"]
    names = passes.differentiated(op, inputs)
    above = passes.upstream(step.outputs, 3)
    errors = gradient_errors(op, (rows, n_cols), inputs, above, found)
    for name in names:
        bound = op.gradient_tolerance(name, dtype, (rows, n_cols))
        assert errors[name] <= bound.relative_norm, name


@pytest.mark.parametrize("name", OPS)
def test_the_same_inputs_give_the_same_bits(name):
    given = make(name, 140, 40, torch.bfloat16)
    upstream = [torch.randn(140, 40).bfloat16() for _ in range(1 + (name in ADDED))]
    fused = OPS[name].variant("fused").fn
    first, again = (differentiate(fused, given, upstream)[1] for _ in range(2))
    for tensor in given:
        assert torch.equal(first[tensor], again[tensor])


def test_a_batch_of_sequences_an_expanded_gradient_and_frozen_parameters():
    x = torch.randn(2, 3, 40, requires_grad=True)
    weight, bias = torch.randn(40), torch.randn(40, requires_grad=True)
    layer_norm(x, weight, bias).sum().backward()  # autograd expands a single 1.0
    exact = x.detach().double().requires_grad_()
    OPS["layernorm"].reference(exact, weight, bias.detach()).sum().backward()
    torch.testing.assert_close(x.grad, exact.grad.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bias.grad, torch.full((40,), 6.0))
    assert weight.grad is None
    only = torch.randn(40, requires_grad=True)
    rms_norm(x.detach(), only).sum().backward()
    assert only.grad.isfinite().all()


def test_parameters_of_another_dtype_get_gradients_of_theirs():
    x = torch.randn(4, 40).bfloat16().requires_grad_()
    weight, bias = torch.randn(40, requires_grad=True), torch.randn(40).half().requires_grad_()
    layer_norm(x, weight, bias).sum().backward()
    assert (x.grad.dtype, weight.grad.dtype, bias.grad.dtype) == (
        *(torch.bfloat16, torch.float32, torch.float16),
    )


@pytest.mark.parametrize("used", ["y", "h", "both"])
def test_either_output_of_a_sum_may_be_used_alone(used):
    given = {"x": torch.randn(5, 24), "residual": torch.randn(5, 24)}

    def of(fn, given):
        leaves = [tensor.clone().requires_grad_() for tensor in given.values()]
        y, h = fn(*leaves)
        picked = {"y": y.square().sum(), "h": h.square().sum(), "both": (y * h).sum()}
        return torch.autograd.grad(picked[used], leaves)

    exact = of(OPS["add_rmsnorm"].reference, {k: v.double() for k, v in given.items()})
    for one, truth in zip(of(add_rms_norm, given), exact, strict=True):
        torch.testing.assert_close(one, truth.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPS)
def test_no_rows_give_no_rows_and_zero_gradients_of_parameters(name):
    given = {t: v.requires_grad_() for t, v in make(name, 0, 8, torch.float32).items()}
    out = outputs_of(OPS[name].variant("fused").fn(**given))
    torch.autograd.backward(out, [torch.empty(0, 8) for _ in out])
    assert given["x"].grad.shape == (0, 8)
    assert torch.equal(given["weight"].grad, torch.zeros(8))


@pytest.mark.parametrize("width", [1000, 1536])
def test_a_large_mean_cancels_neither_forward_nor_back(width):
    x = (1e3 + 1e-3 * torch.randn(4, width, dtype=torch.float64)).float()
    dy = torch.randn(4, width)
    for fn, reference in ((layer_norm, "layernorm"), (rms_norm, "rmsnorm")):
        (y,), gradients = differentiate(fn, {"x": x}, [dy], eps=1e-12)
        (exact,), truths = differentiate(
            OPS[reference].reference, {"x": x.double()}, [dy.double()], eps=1e-12
        )
        # x is known to 2^-24 · 1000 only; the mean in fp32 to about as much. RMSNorm has no mean.
        bound = 2**-24 * 1e3 / 1e-3 if fn is layer_norm else 1e-6
        assert (y.double() - exact).norm() <= bound * exact.norm()
        if fn is rms_norm:
            error = (gradients["x"].double() - truths["x"]).norm()
            assert error <= 1e-5 * truths["x"].norm()


def test_fp16_squares_do_not_overflow():
    x = (300 * torch.randn(2, 4096)).half()
    compare("rmsnorm", {"x": x, "weight": torch.ones(4096).half()}, torch.float16)


def test_a_second_derivative_is_refused_with_a_sentence():
    for fn in (layer_norm, rms_norm):
        x = torch.randn(3, 8, requires_grad=True)
        (dx,) = torch.autograd.grad(fn(x).square().sum(), x, create_graph=True)
        with pytest.raises(NotImplementedError, match="no second derivative"):
            dx.sum().backward()


@pytest.mark.parametrize(
    ("residual", "error", "sentence"),
    [
        (torch.randn(4, 9), ValueError, r"residual has the shape \(4, 9\) and x \(4, 8\)"),
        (torch.randn(4, 8).half(), TypeError, "residual has dtype torch.float16 and x torch.float"),
        ([1.0], TypeError, "residual is a list; it takes a torch.Tensor"),
        (torch.randn(4, 8).to("meta"), ValueError, "residual lies on meta and x on cpu"),
    ],
)
def test_a_residual_that_does_not_fit_gets_one_sentence(residual, error, sentence):
    for fn in (add_layer_norm, add_rms_norm):
        with pytest.raises(error, match=sentence):
            fn(torch.randn(4, 8), residual)


@pytest.mark.parametrize("name", OPS)
def test_the_costs_are_each_tensor_once(name):
    given = make(name, 6, 50, torch.bfloat16)
    size = {tensor: value.numel() * 2 for tensor, value in given.items()}
    added = name in ADDED
    fwd, bwd = (OPS[name].cost((6, 50), torch.bfloat16, pass_) for pass_ in ("fwd", "bwd"))
    assert fwd.read_bytes == sum(size.values())
    assert fwd.write_bytes == (1 + added) * size["x"]
    statistics = 4 * 6 * (2 if "bias" in given else 1)
    assert bwd.read_bytes == (2 + added) * size["x"] + size["weight"] + statistics
    assert bwd.write_bytes == size["x"] + size["weight"] + size.get("bias", 0)
    with pytest.raises(ValueError, match="takes 'fwd', 'bwd' or 'train'"):
        OPS[name].cost((6, 50), torch.bfloat16, "sideways")


@pytest.mark.parametrize("name", OPS)
def test_a_graph_keeps_it_whole_with_its_gradient(name):
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    fn = OPS[name].variant("fused").fn
    given = make(name, 4, 64, torch.float32)
    upstream = [torch.randn(4, 64) for _ in range(1 + (name in ADDED))]
    compiled = torch.compile(fn, fullgraph=True, backend=counter)
    ours, gradients = differentiate(compiled, given, upstream)
    eager, truths = differentiate(fn, given, upstream)
    torch.testing.assert_close(ours, eager)
    torch.testing.assert_close(gradients, truths)
    assert counter.frame_count == 1


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("used", [("mean", "inv_std"), ("y", "mean", "inv_std"), ("inv_std",)])
def test_gradients_come_back_through_the_statistics(centred, used):
    def statistics(x):
        mean = x.mean(-1) if centred else torch.zeros(len(x), dtype=x.dtype)
        off = x - mean[:, None]
        inv_std = torch.rsqrt((off * off).mean(-1) + 1e-5)
        return {"y": off * inv_std[:, None], "mean": mean, "inv_std": inv_std}

    def ours(x):
        y, _, mean, inv_std = torch.ops.fusing_kernels.norm_train(
            x, None, None, None, 1e-5, centred
        )
        return {"y": y, "mean": mean if centred else 0 * inv_std, "inv_std": inv_std}

    def gradient(fn, x):
        x = x.detach().requires_grad_()
        found = fn(x)
        return torch.autograd.grad(sum(found[name].sin().sum() for name in used), x)[0]

    x = 0.5 + torch.randn(3, 40)
    exact = gradient(statistics, x.double())
    assert (gradient(ours, x).double() - exact).norm() <= 64 * 2.0**-24 * exact.norm()


def test_the_operators_pass_pytorchs_own_check():
    x, weight, bias = torch.randn(4, 24, requires_grad=True), torch.randn(24), torch.randn(24)
    operators = torch.ops.fusing_kernels
    checks = ("test_schema", "test_faketensor")
    rms = (x.detach(), weight, 1e-5)
    torch.library.opcheck(operators.rms_norm.default, rms, test_utils=checks)
    both = (x.detach(), x.detach().clone(), weight, bias, 1e-5)
    torch.library.opcheck(operators.add_layer_norm.default, both, test_utils=checks)
    torch.library.opcheck(
        operators.norm_train.default,
        (x, x.detach().clone(), weight, bias, 1e-5, True),
        test_utils=(*checks, "test_autograd_registration", "test_aot_dispatch_static"),
    )


def launches_of_backward(rows, n_cols, dtype, capability, centred, dh):
    x, statistic = torch.empty(rows, n_cols, dtype=dtype), torch.empty(rows)
    weight = torch.empty(n_cols, dtype=dtype)
    with assume_capability(capability), recording() as launches:
        backward(
            dy=x,
            dh=torch.empty_like(x) if dh else None,
            x=torch.empty_like(x),
            weight=weight,
            bias=weight if centred else None,
            mean=statistic if centred else None,
            inv_std=statistic.clone(),
            wants_weight=True,
            wants_bias=centred,
        )
    return launches.seen


def test_a_row_too_wide_for_its_sums_leaves_them_to_other_programs():
    def names(n_cols, dtype, centred, dh=False, capability=90):
        seen = launches_of_backward(4096, n_cols, dtype, capability, centred, dh)
        return [launch.name for launch in seen]

    rows, wide = ["norm_backward_rows", "sum_partials"], ["norm_backward_wide", "sum_partials"]
    half = torch.bfloat16
    assert names(8192, torch.float32, True) == rows
    # One sum leaves room for a row of twice that, where rows are loaded 16 bytes at a time.
    assert names(16384, half, False) == names(16384, torch.float32, False) == rows
    assert names(16384, half, False, capability=120) == wide
    assert names(12_289, half, False) == names(16385, half, False) == wide
    assert names(16384, half, True) == names(16384, half, False, dh=True) == wide


@pytest.mark.parametrize("centred", [True, False], ids=["layernorm", "rmsnorm"])
@pytest.mark.parametrize("wants", [(True, True), (True, False), (False, True), (False, False)])
def test_teams_of_programs_take_rows_and_then_their_sums(centred, wants):
    """Three teams of four rows, the last of them one row; columns in tiles that do not divide."""
    rows, n_cols = 9, 1100
    x, dy, dh = torch.randn(3, rows, n_cols).unbind()
    weight, bias = torch.randn(2, n_cols).unbind()
    exact = [t.double().requires_grad_() for t in (x, weight, bias)]
    mean = x.mean(-1) if centred else None
    centre = exact[0] - exact[0].mean(-1, keepdim=True) if centred else exact[0]
    inv_std = torch.rsqrt((centre**2).mean(-1, keepdim=True) + 1e-5)
    y = centre * inv_std * exact[1] + exact[2]
    truths = torch.autograd.grad(y, exact, dy.double())
    got = backward(
        dy=dy,
        dh=dh,
        x=x,
        weight=weight,
        bias=bias,
        mean=mean,
        inv_std=inv_std[:, 0].float(),
        wants_weight=wants[0],
        wants_bias=wants[1],
        configured=Teams(512, num_warps=4, sum_rows=2, sum_cols=256, rows_per_team=4),
    )
    assert (got[0] - dh - truths[0]).norm() <= 1e-6 * truths[0].norm()
    for one, truth, wanted in zip(got[1:], truths[1:], wants, strict=True):
        assert (one is not None) == wanted
        assert one is None or (one - truth).norm() <= 1e-6 * truth.norm()


def test_the_second_reading_of_a_wide_row_is_asked_for_but_unique_bytes_are_ideal():
    rows, n_cols = 6, 20_000
    x, dy = torch.zeros(2, rows, n_cols, dtype=torch.bfloat16).unbind()
    weight, statistic = torch.ones(n_cols, dtype=torch.bfloat16), torch.ones(rows)
    counts = traffic.count(
        lambda: backward(
            dy=dy,
            dh=None,
            x=x,
            weight=weight,
            bias=weight,
            mean=statistic,
            inv_std=statistic.clone(),
            wants_weight=True,
            wants_bias=True,
            configured=Teams(4096, num_warps=8, sum_rows=4, sum_cols=512, rows_per_team=4),
        )
    )
    wide, finish = counts.steps
    by_name = {t.tensor: t for t in wide.tensors}
    large = x.numel() * x.itemsize
    for name in ("x", "dy"):  # twice for dx, once for the sums
        assert by_name[name].read_unique == large
        assert by_name[name].read_requested == 3 * large
    assert by_name["dx"].write_unique == by_name["dx"].write_requested == large
    parts = 2 * 2 * n_cols * 4  # two sums of two teams, in fp32
    assert finish.bytes_unique == parts + 2 * n_cols * weight.itemsize


def test_programs_of_two_kinds_are_counted_at_a_few_rows(monkeypatch):
    """In the suite a team has 64 rows of 16384 columns; here 4 of 200, so that all can be run."""
    monkeypatch.setattr(configurations, "WIDEST", 64)
    few = Teams(64, num_warps=1, sum_rows=2, sum_cols=64, rows_per_team=4)
    monkeypatch.setattr(configurations, "WIDER_HALF", few)
    op, shape, dtype = get("layernorm"), (100, 192), torch.bfloat16
    forget = configurations.backward_configuration.cache_clear, op_ledger.forget
    try:
        for one in forget:
            one()
        extended = op_ledger.count_op(op, "fused", shape, dtype, "bwd")
        bound = passes.bind(op, op.variant("fused"), op.inputs(shape, dtype, "cpu", 0), "bwd")
        whole = traffic.count(bound)
    finally:
        for one in forget:
            one()
    assert [s.name for s in whole.steps] == ["norm_backward_wide", "sum_partials"]
    assert extended.method == "linear"
    for one, other in zip(extended.steps, whole.steps, strict=True):
        assert one.grid == other.grid
        for name in (t.tensor for t in other.tensors):
            assert one.tensor(name) == other.tensor(name)
