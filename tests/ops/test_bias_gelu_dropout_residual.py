"""The chain bias, GELU, dropout, residual: values, masks, bytes, and what it refuses."""

import math

import numpy as np
import pytest
import torch

from kernels.lab.counting.op_ledger import count_op
from kernels.lab.measuring import correctness
from kernels.launch import interpreting
from kernels.ops.chains.bias_gelu_dropout_residual import OP, reference
from kernels.philox import keeps
from kernels.registry import DTYPES

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
        ],
    ),
]
IN_CUDA = [name for name, variant in OP.variants.items() if variant.counted == "cuda"]
SHAPES = [(5, 64), (7, 37), (3, 2056), (1, 1), (2, 7), (300, 8)]


def call(name, **inputs):
    return OP.variant(name).fn(**inputs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("name", OP.variants)
def test_every_variant_is_right(name, dtype, device):
    variant = OP.variant(name)
    if why := variant.unavailable(torch.device(device)):
        pytest.skip(why)
    for shape in SHAPES:
        inputs = OP.inputs(shape, dtype, device, seed=4)
        out = variant.fn(**inputs)
        assert out.dtype == dtype
        error = correctness.relative_error(OP, shape, inputs, out, variant.own_random)
        assert error <= OP.tolerance(dtype, shape).relative_norm, shape


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", [*IN_CUDA, "eager", "torch"])
def test_every_probability(name, p, device):
    variant = OP.variant(name)
    inputs = OP.inputs((40, 136), torch.float32, device, seed=2, p=p)
    out = variant.fn(**inputs)
    if name == "eager" and p == 1:  # nothing kept, over 1 - p = 0
        assert not bool(out.isfinite().all())
        return
    assert correctness.relative_error(OP, (40, 136), inputs, out, variant.own_random) < 2e-6


def test_the_reference_keeps_the_elements_of_numpy():
    inputs = OP.inputs((9, 21), torch.float32, "cpu", seed=5, p=0.4)
    seed, offset = inputs["seed_offset"].tolist()
    moved = (reference(**inputs) != inputs["residual"].double()).numpy()
    assert np.array_equal(moved, keeps((9, 21), 0.4, seed, offset))
    rows = {n: v[4:] if n in ("x", "residual") else v for n, v in inputs.items()}
    assert torch.equal(reference(**rows, first_row=4), reference(**inputs)[4:])


def test_the_gelu_is_pytorchs_tanh_form():
    x = torch.linspace(-9, 9, 1001)[None]
    nothing = torch.zeros(1001), torch.zeros(1, 1001)
    out = call("fused_cuda", x=x, bias=nothing[0], residual=nothing[1], p=0.0, **seeded())
    exact = torch.nn.functional.gelu(x.double(), approximate="tanh")
    torch.testing.assert_close(out.double(), exact, rtol=1e-6, atol=1e-6)
    far = torch.tensor([[-1e4, 1e4, -100.0, 100.0]])
    ends = call(
        "fused_cuda", x=far, bias=torch.zeros(4), residual=torch.zeros(1, 4), p=0.0, **seeded()
    )
    assert ends.tolist() == [[0.0, 1e4, 0.0, 100.0]]


def seeded(seed=1, offset=0):
    return {"seed_offset": torch.tensor([seed, offset])}


@pytest.mark.parametrize("name", IN_CUDA)
def test_a_seed_gives_one_mask_and_an_offset_another(name):
    inputs = OP.inputs((6, 200), torch.float32, "cpu", seed=8, p=0.5)
    first = call(name, **inputs)
    assert torch.equal(first, call(name, **inputs))
    later = call(name, **{**inputs, **seeded(offset=4)})
    assert not torch.equal(first, later)


@pytest.mark.parametrize("name", IN_CUDA)
def test_layouts_and_no_elements(name):
    inputs = OP.inputs((12, 48), torch.float16, "cpu", seed=3)
    turned = {**inputs, "x": inputs["x"].t().contiguous().t(), "bias": inputs["bias"][::1]}
    assert torch.equal(call(name, **turned), call(name, **inputs))
    three = {n: v.view(3, 4, 48) if n in ("x", "residual") else v for n, v in inputs.items()}
    assert torch.equal(call(name, **three).view(12, 48), call(name, **inputs))
    wide = torch.zeros(12 * 48 + 1, dtype=torch.float16)
    wide[1:] = inputs["x"].flatten()
    shifted = {**inputs, "x": wide[1:].view(12, 48)}  # begins at 2 bytes past a multiple of 16
    assert torch.equal(call(name, **shifted), call(name, **inputs))
    none = {**inputs, "x": inputs["x"][:0], "residual": inputs["residual"][:0]}
    assert call(name, **none).shape == (0, 48)


def test_bytes_by_hand():
    rows, cols = 16, 512
    size, row = rows * cols * 2, cols * 2
    expected = {"unfused_cuda": (4, 9 * size + row + 16), "torch": (4, None)}
    for name in ("cuda_1", "fused_cuda"):
        expected[name] = (1, 3 * size + row + 16)
    for name, (steps, moved) in expected.items():
        ledger = count_op(OP, name, (rows, cols), torch.bfloat16)
        assert len(ledger.steps) == steps, name
        if moved is not None:
            assert ledger.bytes_unique == moved, name
    cost = OP.cost((rows, cols), torch.bfloat16, "fwd")
    assert cost.bytes_ideal == expected["fused_cuda"][1]
    # The mask that PyTorch's dropout keeps for a backward pass: half a byte for each byte of x.
    torch_bytes = count_op(OP, "torch", (rows, cols), torch.bfloat16).bytes_unique
    assert torch_bytes == 9 * size + row + size // 2


def test_sixteen_bytes_a_load():
    inputs = OP.inputs((4, 2048), torch.float16, "cpu", seed=0)
    with interpreting() as launches:
        call("fused_cuda", **inputs)
    lines = [line for launch in launches for line in launch.arena.lines]
    assert {line.width for line in lines if line.argument in ("x", "residual", "y")} == {16}


@pytest.mark.parametrize("name", IN_CUDA)
def test_what_is_refused(name):
    good = OP.inputs((2, 8), torch.float32, "cpu", seed=0)
    wrong = [
        ({"p": 1.5}, ValueError, "from 0 to 1"),
        ({"p": math.nan}, ValueError, "from 0 to 1"),
        ({"bias": torch.zeros(7)}, ValueError, r"bias has the shape \(7,\)"),
        ({"residual": torch.zeros(2, 7)}, ValueError, "residual has the shape"),
        ({"residual": torch.zeros(2, 8).half()}, TypeError, "must have the same"),
        ({"x": [1.0]}, TypeError, "x is a list"),
        ({"x": torch.zeros(2, 0)}, ValueError, "1 or more"),
        ({"seed_offset": torch.zeros(2)}, ValueError, "int64 tensor of shape"),
        ({"seed_offset": 3}, ValueError, "int64 tensor of shape"),
        ({"x": torch.zeros(2, 8, requires_grad=True)}, RuntimeError, "no backward pass"),
    ]
    for change, error, message in wrong:
        with pytest.raises(error, match=message):
            call(name, **{**good, **change})


def test_an_output_with_the_wrong_share_is_told():
    inputs = OP.inputs((50, 100), torch.float32, "cpu", seed=1)
    all_kept = OP.random.outcomes(**inputs)[0].float()
    with pytest.raises(ValueError, match="are kept where 90.00% should be"):
        correctness.relative_error(OP, (50, 100), inputs, all_kept, own_random=True)
    half = torch.where(torch.rand(50, 100) < 0.9, all_kept, inputs["residual"])
    assert correctness.relative_error(OP, (50, 100), inputs, half, own_random=True) < 1e-6
    assert correctness.relative_error(OP, (50, 100), inputs, half * 1.01, own_random=True) > 1e-3
