"""The chains with dropout beyond what every operation is held to: masks, p, seeds, refusals."""

import math

import pytest
import torch
import triton

from kernels import registry
from kernels.lab.measuring import correctness
from kernels.launch import interpreting, recording
from kernels.ops.chains import bias_gelu, configurations, norm_gelu
from kernels.ops.chains.configurations import Strips, WholeRows
from kernels.philox import threshold

NAMES = ("bias_gelu_dropout_residual", "layernorm_gelu_dropout_residual")
BOTH = (*NAMES, "layernorm_gelu")
chains = pytest.mark.parametrize("name", NAMES)


def inputs_of(name, shape, dtype=torch.float32, seed=5, **options):
    return registry.get(name).inputs(shape, dtype, "cpu", seed, **options)


def fused(name, **inputs):
    return registry.get(name).variant("fused").fn(**inputs)


def upstream(shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(9)).to(dtype)


def gradients(name, inputs, dy):
    names = registry.get(name).backward.differentiates
    leaves = {n: inputs[n].detach().requires_grad_() for n in names}
    y = fused(name, **{**inputs, **leaves})
    found = torch.autograd.grad(y, list(leaves.values()), dy)
    return dict(zip(names, found, strict=True))


def exact_gradients(name, inputs, dy):
    op = registry.get(name)
    leaves = {n: inputs[n].double().requires_grad_() for n in op.backward.differentiates}
    y = op.reference(**{**inputs, **leaves})
    found = torch.autograd.grad(y, list(leaves.values()), dy.double())
    return dict(zip(leaves, found, strict=True))


def revealed(name, shape, p, seed_offset):
    """The mask of the fused kernel: GELU's argument is 5 everywhere, and the residual 0."""
    inputs = inputs_of(name, shape[-2:], p=p) | {"seed_offset": seed_offset}
    inputs["residual"] = torch.zeros(shape)
    inputs["bias"] = torch.full(shape[-1:], 5.0)
    inputs["x"] = torch.zeros(shape)  # which a norm leaves as it is
    y = fused(name, **inputs)
    kept = y != 0
    scale = 65536 / (65536 - threshold(p))
    gelu = torch.nn.functional.gelu(torch.tensor(5.0), approximate="tanh")
    torch.testing.assert_close(y[kept], (gelu * scale).expand(int(kept.sum())))
    return kept


def seeded(seed, offset=0):
    return torch.tensor([seed, offset])


def within_five_errors(hits, of, share):
    assert abs(hits - share * of) <= 5 * math.sqrt(of * share * (1 - share))


@chains
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("n_cols", [1024, 1021])
def test_statistics_of_the_mask(name, p, n_cols):
    """The rate; and neighbours, rows, calls and seeds agree as often as strangers do."""
    kept = revealed(name, (32, n_cols), p, seeded(11, 3))
    keep = 1 - threshold(p) / 65536
    agree = keep**2 + (1 - keep) ** 2
    within_five_errors(int(kept.sum()), kept.numel(), keep)
    for step in range(1, 9):  # the eight of a call, and the next call's
        same = kept[:, step:] == kept[:, :-step]
        within_five_errors(int(same.sum()), same.numel(), agree)
    others = {
        "row below": kept.roll(1, 0),
        "next call": revealed(name, (32, n_cols), p, seeded(11, 4)),
        "next seed": revealed(name, (32, n_cols), p, seeded(12, 3)),
        "high half of the seed": revealed(name, (32, n_cols), p, seeded(11 + 2**32, 3)),
    }
    for other in others.values():
        within_five_errors(int((kept == other).sum()), kept.numel(), agree)


@chains
def test_a_seed_gives_one_mask_whatever_the_shape_and_the_block(name):
    kept = revealed(name, (6, 1024), 0.5, seeded(1))
    assert torch.equal(kept, revealed(name, (6, 1024), 0.5, seeded(1)))
    for shape in ((2, 3072), (3, 2, 1024), (96, 64), (1, 6144)):
        assert torch.equal(revealed(name, shape, 0.5, seeded(1)).flatten(), kept.flatten()), shape
    assert torch.equal(
        revealed(name, (6, 1021), 0.5, seeded(1)).flatten(), kept.flatten()[: 6 * 1021]
    )
    assert torch.equal(revealed("bias_gelu_dropout_residual", (6, 1024), 0.5, seeded(1)), kept)


@chains
@pytest.mark.parametrize("shape", [(5, 64), (3, 1001), (2, 3, 40)])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_every_probability_forward_and_back(name, p, shape):
    inputs = inputs_of(name, shape[-2:], p=p)
    if len(shape) == 3:
        inputs |= {n: upstream(shape) for n in ("x", "residual")}
    op = registry.get(name)
    exact = op.reference(**inputs)
    torch.testing.assert_close(fused(name, **inputs).double(), exact, rtol=1e-5, atol=1e-5)
    dy = upstream(shape)
    got, truth = gradients(name, inputs, dy), exact_gradients(name, inputs, dy)
    for one in got:
        torch.testing.assert_close(got[one].double(), truth[one], rtol=1e-4, atol=1e-4)
    assert torch.equal(got["residual"], dy)
    if p == 1:
        assert torch.equal(fused(name, **inputs), inputs["residual"])
        for one in set(got) - {"residual"}:
            assert not got[one].any(), one


@chains
def test_without_dropout_no_random_number_is_drawn(name):
    for p, calls in ((0.0, False), (0.1, True)):
        inputs = inputs_of(name, (4, 256), p=p)
        leaf = inputs["x"].detach().requires_grad_()
        with recording() as launches:
            fused(name, **{**inputs, "x": leaf}).backward(upstream((4, 256)))
        texts = [launch.specialize(90).compile().ptx for launch in launches]
        # Philox's multiplier, as a compiler writes it in PTX, and as `philox_wide` does.
        written = str(0xD2511F53 - 2**32), f"{0xD2511F53:#x}"
        found = [any(one in text for one in written) for text in texts[:2]]
        assert found == [calls, calls], p


@chains
def test_the_backward_drops_what_the_forward_dropped(name):
    inputs = inputs_of(name, (4, 200), p=0.5)
    inputs["residual"] = torch.zeros(4, 200)
    if name == NAMES[0]:
        dropped = fused(name, **inputs) == 0
        dx = gradients(name, inputs, torch.ones(4, 200))["x"]
        assert torch.equal(dx == 0, dropped)
    else:  # behind a norm only the sums of the parameters show one element
        inputs["bias"] = torch.full((200,), 5.0)
        inputs["weight"] = torch.zeros(200)
        kept = fused(name, **inputs) != 0
        dbias = gradients(name, inputs, torch.ones(4, 200))["bias"]
        slope = float(dbias.sum()) / int(kept.sum())
        torch.testing.assert_close(dbias, kept.sum(0) * slope, rtol=1e-5, atol=1e-6)


@chains
def test_a_seed_that_changed_before_the_backward_is_told(name):
    inputs = inputs_of(name, (2, 16))
    y = fused(name, **{**inputs, "x": inputs["x"].detach().requires_grad_()})
    inputs["seed_offset"][1] += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("name", BOTH)
def test_the_same_inputs_give_the_same_bits(name):
    inputs = inputs_of(name, (40, 72))
    dy = upstream((40, 72))
    first, again = gradients(name, inputs, dy), gradients(name, inputs, dy)
    assert all(torch.equal(first[one], again[one]) for one in first)


@pytest.mark.parametrize("name", BOTH)
def test_gradients_that_nobody_wants_are_not_made(name):
    inputs = inputs_of(name, (6, 64))
    y = fused(name, **{**inputs, "x": inputs["x"].detach().requires_grad_()})
    with interpreting() as launches:
        y.backward(upstream((6, 64)))
    assert len(launches) == 1  # no parameter's sums, so none to finish
    if "residual" in inputs:
        y = fused(name, **{**inputs, "residual": inputs["residual"].detach().requires_grad_()})
        with interpreting() as launches:
            y.backward(upstream((6, 64)))
        assert len(launches) == 0


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("missing", [("weight",), ("bias",), ("weight", "bias")])
def test_parameters_that_are_missing(name, missing):
    if name == NAMES[0]:
        pytest.skip("its bias is never missing")
    op = registry.get(name)
    for n_cols in (40, 20_000):
        inputs = inputs_of(name, (2, n_cols)) | dict.fromkeys(missing)
        exact = op.reference(**inputs)
        torch.testing.assert_close(fused(name, **inputs).double(), exact, rtol=1e-5, atol=1e-5)
        leaf, wide = inputs["x"].requires_grad_(), inputs["x"].double().requires_grad_()
        dy = upstream((2, n_cols))
        (got,) = torch.autograd.grad(fused(name, **{**inputs, "x": leaf}), leaf, dy)
        truth = op.reference(**{**inputs, "x": wide})
        (dx,) = torch.autograd.grad(truth, wide, dy.double())
        torch.testing.assert_close(got.double(), dx, rtol=1e-4, atol=1e-4)


def test_strips_and_whole_rows_give_the_same_gradients():
    inputs = inputs_of(NAMES[1], (21, 200))
    x, p, seed_offset = inputs["x"], inputs["p"], inputs["seed_offset"]
    parameters = inputs["weight"], inputs["bias"]
    _, mean, inv_std = norm_gelu.forward(
        x, *parameters, inputs["residual"], p, seed_offset, 1e-5, statistics=True
    )
    dy = upstream((21, 200))
    found = [
        norm_gelu.backward(
            dy, x, *parameters, mean, inv_std, p, seed_offset, True, True, configured
        )
        for configured in (
            None,
            WholeRows(2, 4, 1, 2, hold_weight=False),
            WholeRows(4, 2, 1, 1),
            Strips(4, 64, 2, 1, 1),
            Strips(2, 128, 4, 4, 3),
        )
    ]
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, same, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", BOTH)
def test_the_simple_kernel_of_each_chain(name):
    op = registry.get(name)
    variant = op.variant("fused_simple")
    for shape in ((5, 64), (30, 1001), (3, 2056)):
        inputs = inputs_of(name, shape)
        out = variant.fn(**inputs)
        error = correctness.relative_error(op, shape, inputs, out, variant.own_random)
        assert error <= op.tolerance(torch.float32, shape).relative_norm
    if name in NAMES:
        with pytest.raises(ValueError, match="p must be below 1"):
            variant.fn(**{**inputs, "p": 1.0})
    if name != NAMES[0]:
        with pytest.raises(ValueError, match="one block holds 16384 at most"):
            variant.fn(**inputs_of(name, (1, 16385)))


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("variant", ["fused", "fused_simple"])
def test_what_is_refused(name, variant):
    good = inputs_of(name, (2, 8))
    wrong = [
        ({"bias": torch.zeros(7)}, ValueError, r"bias has the shape \(7,\)"),
        ({"x": [1.0]}, TypeError, "x is a list"),
        ({"x": torch.zeros(2, 0)}, ValueError, "1 or more"),
        ({"x": torch.zeros(())}, ValueError, "1 or more"),
        ({"x": torch.zeros(2, 8).double()}, TypeError, "x has dtype torch.float64"),
        ({"bias": torch.zeros(8, device="meta")}, ValueError, "bias lies on meta and x on cpu"),
    ]
    if name in NAMES:
        wrong += [
            ({"p": -0.1}, ValueError, "from 0 to 1"),
            ({"p": 1.5}, ValueError, "from 0 to 1"),
            ({"p": math.nan}, ValueError, "from 0 to 1"),
            ({"residual": torch.zeros(2, 7)}, ValueError, "residual has the shape"),
            ({"residual": torch.zeros(2, 8).half()}, TypeError, "residual has dtype"),
            ({"residual": None}, TypeError, "residual is a NoneType"),
            ({"seed_offset": torch.zeros(2)}, ValueError, "it is torch.float32 of shape"),
            ({"seed_offset": torch.zeros(3).long()}, ValueError, "an int64 tensor of shape"),
            ({"seed_offset": torch.zeros(2).int()}, ValueError, "it is torch.int32"),
            ({"seed_offset": good["seed_offset"].to("meta")}, ValueError, "on cpu; it is .* meta"),
            ({"seed_offset": 3}, ValueError, "it is a int"),
        ]
    for change, error, message in wrong:
        with pytest.raises(error, match=message) as told:
            registry.get(name).variant(variant).fn(**{**good, **change})
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", BOTH)
def test_no_rows(name):
    inputs = inputs_of(name, (0, 16))
    dy = torch.zeros(0, 16)
    found = gradients(name, inputs, dy)
    assert found["x"].shape == (0, 16)
    assert not found["bias"].any()


@pytest.mark.parametrize("name", BOTH)
def test_a_thread_loads_16_bytes_and_makes_its_own_numbers(name):
    """No shared memory but for sums: numbers stay in the threads whose elements they are."""
    inputs = inputs_of(name, (4, 4096), torch.bfloat16)
    with recording() as launches, torch.no_grad():
        fused(name, **inputs)
    (launch,) = launches
    built = launch.specialize(90).compile()
    assert "ld.global.v4.b32" in built.ptx
    assert built.shared_bytes <= 128
    assert built.stack_bytes == 0


def test_configurations_are_kept_within_bounds():
    assert bias_gelu.strips_over(torch.empty(1, 5), None)[0].block_cols >= 8
    held = configurations.HELD
    for n_cols, card, size, planned in (
        *((n, (7, 5), 4, held[7, 5]) for n in (1, 7, 64, 1000, 4096)),
        *((n, (9, 0), 4, held[8, 0]) for n in (1, 64, 4096)),
        *((n, (9, 0), 2, held[9, 0]) for n in (1024, 2048, 4096, 8192)),
        *((n, (9, 0), 2, configurations.MASKED) for n in (1000, 3000, 8000)),
        *((n, (9, 0), 2, held[8, 0]) for n in (1, 72, 512)),
    ):
        rows = configurations.rows_configuration(n_cols, size, True, True, card)
        block = max(configurations.NARROWEST, triton.next_power_of_2(n_cols))
        threads = rows.num_warps * 32
        assert rows.block_rows * block == planned.thread * threads
        # As many programs as planned have room for their registers, 64K of an SM.
        assert rows.num_warps * rows.programs_per_sm == planned.warps_per_sm
        assert rows.registers * threads * rows.programs_per_sm <= 65536
    assert configurations.rows_configuration(8193, 2, True, True, (9, 0)) is None


@pytest.mark.parametrize("variant", ["unfused_cuda", "fused_cuda"])
def test_the_chain_behind_a_norm_in_cuda(variant):
    """What is kept is what Triton's kernel keeps, whatever is missing, and wherever rows lie."""
    op = registry.get(NAMES[1])
    if why := op.variant(variant).unavailable(torch.device("cpu")):
        pytest.skip(why)
    apart = torch.randn(3, 2 * 72, generator=torch.Generator().manual_seed(4))[:, :72]
    for shape, changes in (
        ((3, 72), {"p": 0.5, "residual": apart}),
        ((3, 72), {"p": 1.0, "weight": None}),
        ((2, 1030), {"p": 0.3, "bias": None}),
        ((2, 16392), {"p": 0.0, "weight": None, "bias": None}),
    ):
        inputs = inputs_of(NAMES[1], shape) | changes
        out = op.variant(variant).fn(**inputs)
        torch.testing.assert_close(out, fused(NAMES[1], **inputs), rtol=2e-6, atol=2e-6)
    with pytest.raises(TypeError, match="weight has dtype torch.float16"):
        op.variant(variant).fn(**inputs_of(NAMES[1], (2, 8)) | {"weight": torch.ones(8).half()})
    with pytest.raises(RuntimeError, match="the variant fused"):
        op.variant(variant).fn(
            **inputs_of(NAMES[1], (2, 8)) | {"x": torch.ones(2, 8).requires_grad_()}
        )
