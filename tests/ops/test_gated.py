"""SwiGLU and GEGLU beyond what every operation is held to: halves, forms, ends of fp32."""

import math

import pytest
import torch

from kernels.launch import interpreting, recording
from kernels.ops.chains import geglu as geglu_module
from kernels.ops.chains import swiglu as swiglu_module
from kernels.ops.chains.gated import gated_backward
from kernels.ops.chains.geglu import geglu
from kernels.ops.chains.peers import liger_swiglu, needs_liger_gated
from kernels.ops.chains.swiglu import swiglu
from kernels.registry import DTYPES
from tests.ops.layouts import LAYOUTS


def geglu_erf(gate, up=None):
    return geglu(gate, up, approximate="none")


def reference_erf(gate, up):
    return geglu_module.reference(gate, up, "none")


FORMS = {
    "swiglu": (swiglu, swiglu_module.reference),
    "geglu": (geglu, geglu_module.reference),
    "geglu_erf": (geglu_erf, reference_erf),
}
forms = pytest.mark.parametrize(("fn", "reference"), FORMS.values(), ids=FORMS)


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gradients(fn, inputs, dy):
    leaves = [value.detach().requires_grad_() for value in inputs]
    return torch.autograd.grad(fn(*leaves), leaves, dy)


def near(got, exact, dtype):
    assert got.shape == exact.shape
    assert got.dtype == dtype
    unit = torch.finfo(dtype).eps / 2
    assert (got.double() - exact).norm() <= (unit + 2.0**-20) * exact.norm()


@forms
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize("shape", [(4, 64), (3, 34), (2, 3, 6), (5, 2), (6, 2050), (10,)])
def test_the_halves_of_one_tensor(fn, reference, dtype, layout, shape):
    x = layout(numbers(*shape, dtype=dtype))
    half = shape[-1] // 2
    dy = layout(numbers(*shape[:-1], half, seed=1, dtype=dtype))
    wide = x.double().requires_grad_()
    exact = reference(*wide.split(half, -1))
    near(fn(x), exact.detach(), dtype)
    assert torch.equal(fn(x), fn(*x.split(half, -1)))
    near(
        gradients(fn, [x], dy)[0],
        torch.autograd.grad(exact, wide, dy.double())[0],
        dtype,
    )


@forms
def test_one_launch_each_way_writes_both_gradients(fn, reference):
    for inputs in ([numbers(4, 32)], [numbers(4, 16), numbers(4, 16, seed=1)]):
        leaves = [value.requires_grad_() for value in inputs]
        with interpreting() as forward:
            y = fn(*leaves)
        with interpreting() as backward:
            y.backward(numbers(4, 16, seed=2))
        assert [launch.name for launch in forward] == ["gated_tile"]
        assert [launch.name for launch in backward] == ["gated_backward_tile"]


@forms
def test_no_derivative_is_lost(fn, reference):
    x = numbers(3, 8, dtype=torch.float64).float()
    tangent = numbers(3, 8, seed=3)
    ours = torch.func.jvp(fn, (x,), (tangent,))[1]
    exact = torch.func.jvp(
        lambda wide: reference(*wide.chunk(2, -1)), (x.double(),), (tangent.double(),)
    )[1]
    near(ours, exact, torch.float32)
    leaf = x.requires_grad_()
    (first,) = torch.autograd.grad(fn(leaf).sum(), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        first.sum().backward()


@forms
def test_the_ends_of_fp32(fn, reference):
    far = torch.tensor([-3e38, -1e20, -200.0, -30.0, 30.0, 200.0, 1e20, 3e38])
    one = torch.ones(8)
    assert fn(far, one).tolist() == pytest.approx(
        [0, 0, 0, float(fn(far, one)[3]), 30, 200, 1e20, 3e38], rel=1e-6, abs=1e-30
    )
    assert abs(float(fn(far, one)[3])) < 1e-10
    dgate, dup = gradients(fn, [far, one], one)
    assert dgate.tolist() == pytest.approx([0, 0, 0, 0, 1, 1, 1, 1], abs=1e-10)
    torch.testing.assert_close(dup, fn(far, one), rtol=1e-6, atol=0)
    nan = torch.tensor([math.nan, 1.0])
    for got in (fn(nan, torch.ones(2)), *gradients(fn, [nan, torch.ones(2)], torch.ones(2))):
        assert got.isnan().tolist() == [True, False]


@forms
def test_no_rows(fn, reference):
    none = torch.zeros(0, 6, requires_grad=True)
    fn(none).sum().backward()
    assert none.grad.shape == (0, 6)


def test_the_forms_of_gelu_are_pytorchs():
    gate, up = torch.linspace(-9, 9, 1001), torch.ones(1001)
    for approximate in ("tanh", "none"):
        exact = torch.nn.functional.gelu(gate.double(), approximate=approximate)
        torch.testing.assert_close(
            geglu(gate, up, approximate).double(), exact, rtol=1e-6, atol=1e-6
        )
    assert not torch.equal(geglu(gate, up), geglu(gate, up, "none"))


@pytest.mark.parametrize("capability", [75, 80, 89, 90, 100, 120])
@forms
def test_halves_are_loaded_16_bytes_at_a_time_without_a_spill(fn, reference, capability):
    x = torch.empty(64, 2 * 14336, dtype=torch.float16).requires_grad_()
    with recording() as launches:
        y = fn(x)
        y.backward(torch.empty_like(y))
    assert len(launches) == 2
    for launch in launches:
        built = launch.specialize(capability).compile()
        assert built.stack_bytes == 0
        assert "ld.global.v4.b32" in built.ptx.replace("ld.global.L1::evict", "ld.global")
        assert "ld.global.b16" not in built.ptx


def test_a_row_of_a_large_tensor_is_found_beyond_32_bits():
    """Without gaps all rows are one, of more elements than 31 bits count."""
    gate = torch.empty(2**31 + 4096, dtype=torch.float16, device="meta")
    with recording() as launches:
        gated_backward(gate, gate, gate, "silu")
    (launch,) = launches
    assert launch.grid[0] == (2**31 + 4096) // 1024
    assert launch.arguments["n_col_units"] == (2**31 + 4096) // 16


@pytest.mark.parametrize("fn", [swiglu, geglu])
def test_what_is_refused(fn):
    x = torch.zeros(2, 8)
    wrong = [
        ((torch.zeros(2, 7),), ValueError, "cut in halves, so its last dimension must be even"),
        ((torch.zeros(2, 0),), ValueError, "must be even, 2 or more"),
        ((torch.zeros(()),), ValueError, "must be even, 2 or more"),
        ((torch.zeros(2, 0), torch.zeros(2, 0)), ValueError, "must be 1 or more"),
        ((x, torch.zeros(2, 7)), ValueError, r"up has the shape \(2, 7\) and gate \(2, 8\)"),
        ((x, torch.zeros(1, 8)), ValueError, "up has the shape"),
        ((x, x.half()), TypeError, "up has dtype torch.float16 and gate torch.float32"),
        ((x.double(), x.double()), TypeError, "gate has dtype torch.float64"),
        (([1.0], x), TypeError, "gate is a list"),
        ((x, 1.0), TypeError, "up is a float"),
        ((x, x.to("meta")), ValueError, "up lies on meta and gate on cpu"),
    ]
    for given, error, message in wrong:
        for leaf in (False, True):
            first = given[0]
            if leaf and isinstance(first, torch.Tensor):
                first = first.detach().requires_grad_()
            with pytest.raises(error, match=message) as told:
                fn(first, *given[1:])
            assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match="approximate is 'erf'; GELU takes 'tanh' or 'none'"):
        geglu(x, x, approximate="erf")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_ligers_backward_leaves_the_inputs_as_they_are():
    if why := needs_liger_gated(torch.device("cuda")):
        pytest.skip(why)
    gate, up = (numbers(8, 64, seed=s).cuda().requires_grad_() for s in (0, 1))
    before = gate.detach().clone(), up.detach().clone()
    liger_swiglu(gate, up).backward(torch.ones(8, 64, device="cuda"))
    assert torch.equal(gate, before[0])
    assert torch.equal(up, before[1])
