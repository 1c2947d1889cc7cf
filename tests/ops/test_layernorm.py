"""LayerNorm against float64, on every dtype, width and layout, and what it refuses."""

import re
import sys

import pytest
import torch

from kernels.launch import assume_capability, recording
from kernels.launch.triton_compile import compile_launch
from kernels.ops.norms.configurations import FORWARD, forward_block
from kernels.ops.norms.layernorm import eager, layer_norm, reference
from kernels.ops.shared.blocks import Block
from kernels.registry import DTYPES, Case, get

OP = get("layernorm")
# Pairwise: each dtype with each width once, each layout with most of them.


def assert_close(out, exact, dtype, shape):
    tolerance = OP.tolerance(dtype, shape)
    assert out.dtype == dtype
    # A row of a few elements can lie close together: its 1/std magnifies the mean's rounding.
    near = 16 * 2.0**-24 if shape[-1] < 100 else 0.0
    error = (out.double() - exact).norm()
    assert error <= (tolerance.relative_norm + near) * exact.norm(), (error / exact.norm()).item()
    assert (out.double() - exact).abs().max() <= (tolerance.largest + near) * exact.abs().max()


def make(rows, cols, dtype, **options):
    return OP.inputs((rows, cols), dtype, "cpu", seed=torch.seed() % 2**31, **options)


def layouts():
    base = torch.randn(6, 4, 48)
    yield "one dimension", base[0, 0]
    yield "four dimensions", base.view(2, 3, 4, 48)
    yield "sliced columns", base[..., 5:38]
    yield "every second column", base[..., ::2]
    yield "every second row", base[:, ::2]
    yield "transposed", base[0].t()
    yield "batch and sequence swapped", base.transpose(0, 1)
    yield "expanded rows", base[0, 0].expand(5, 48)
    yield "expanded columns", base[0, :, :1].expand(4, 48)
    yield "three strides", base.view(2, 3, 4, 48)[:, :2, ::2]
    yield "offset by one element", base.flatten()[1:481].view(10, 48)


@pytest.mark.parametrize(("name", "x"), list(layouts()), ids=[name for name, _ in layouts()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_every_layout(name, x, dtype):
    if dtype != x.dtype:  # a cast that keeps the strides, which `x.to(dtype)` may not
        x = torch.empty_strided(x.shape, x.stride(), dtype=dtype).copy_(x) if 0 not in x.stride() \
            else x  # fmt: skip
    width = x.shape[-1]
    weight, bias = torch.randn(width).to(x.dtype), torch.randn(width).to(x.dtype)
    # With a large eps, since rows of equal elements would magnify rounding by 1/√eps.
    out = layer_norm(x, weight, bias, eps=1.0)
    assert out.is_contiguous()
    assert_close(out, reference(x, weight, bias, eps=1.0), x.dtype, (1, width))


def test_parameters_may_be_missing_strided_or_of_another_dtype():
    inputs = make(5, 48, torch.bfloat16)
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    wide = torch.randn(96)[::2]
    for w, b in ((None, None), (weight, None), (None, bias), (wide, bias), (weight.float(), None)):
        assert_close(layer_norm(x, w, b), reference(x, w, b), torch.bfloat16, (5, 48))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8)])
def test_no_rows_give_no_rows(shape):
    assert layer_norm(torch.empty(shape)).shape == shape


def rounding_of_the_mean(x, eps=1e-5):
    """What a few roundings of the mean in fp32 may do to the output, over its own spread."""
    x = x.double()
    spread = torch.sqrt(x.var(-1, correction=0) + eps)
    return (8 * 2.0**-24 * x.abs().amax(-1) / spread).max().item()


@pytest.mark.parametrize("width", [3, 17, 1536, 20_000])
def test_masked_lanes_stay_out_of_the_variance(width):
    inputs = make(2, width, torch.float32, mean=100.0)
    out, exact = layer_norm(**inputs), reference(**inputs)
    bound = OP.tolerance(torch.float32, (2, width)).relative_norm + rounding_of_the_mean(
        inputs["x"]
    )
    assert (out - exact).norm() <= bound * exact.norm()


@pytest.mark.parametrize("width", [1000, 40_000])
def test_a_large_mean_does_not_cancel(width):
    x = (1e3 + 1e-3 * torch.randn(2, width, dtype=torch.float64)).float()
    exact = reference(x, eps=1e-12)
    error = (layer_norm(x, eps=1e-12).double() - exact).norm() / exact.norm()
    # x itself is known to 2^-24 · 1000 only; the mean in fp32 to about as much.
    assert error < 2**-24 * 1e3 / 1e-3


def test_fp16_squares_do_not_overflow():
    x = (300 * torch.randn(2, 4096)).half()
    assert_close(layer_norm(x), reference(x), torch.float16, (2, 4096))


def test_eps_is_used():
    x = torch.randn(3, 64) * 1e-3
    for eps in (0.0, 1e-5, 1.0):
        assert_close(layer_norm(x, eps=eps), reference(x, eps=eps), torch.float32, (3, 64))


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda x, w: layer_norm(x.double()), TypeError, "x has dtype torch.float64; it takes"),
        (lambda x, w: layer_norm(x.int()), TypeError, "x has dtype torch.int32"),
        (lambda x, w: layer_norm([1.0]), TypeError, "x is a list; it takes a torch.Tensor"),
        (lambda x, w: layer_norm(x[:, :0]), ValueError, r"shape \(4, 0\); its last dimension"),
        (lambda x, w: layer_norm(x[0, 0]), ValueError, r"shape \(\); its last dimension"),
        (lambda x, w: layer_norm(x, w[:3]), ValueError, r"weight has the shape \(3,\).*\(8,\)"),
        (lambda x, w: layer_norm(x, None, w[None]), ValueError, r"bias has the shape \(1, 8\)"),
        (lambda x, w: layer_norm(x, w.double()), TypeError, "weight has dtype torch.float64"),
        (lambda x, w: layer_norm(x, w.to("meta")), ValueError, "weight lies on meta and x on cpu"),
    ],
)
def test_bad_input_gets_one_sentence(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call(torch.randn(4, 8), torch.randn(8))


@pytest.mark.parametrize("name", ["tutorial", "fused_simple", "fused_cuda"])
def test_variants_without_a_backward_refuse_gradients_with_a_sentence(name):
    fn = OP.variant(name).fn
    x = torch.randn(4, 8, requires_grad=True)
    weight = torch.randn(8, requires_grad=True)
    for arguments in ((x,), (x.detach(), weight)):
        with pytest.raises(RuntimeError, match="no backward pass"):
            fn(*arguments)
    with torch.no_grad():
        assert fn(x, weight).shape == x.shape


def test_the_cost_is_each_tensor_once():
    for dtype in DTYPES.values():
        inputs = make(6, 50, dtype)
        size = sum(t.numel() * t.element_size() for t in inputs.values())
        cost = OP.cost((6, 50), dtype, "fwd")
        assert (cost.read_bytes, cost.write_bytes) == (size, 6 * 50 * dtype.itemsize)


def test_a_graph_keeps_it_whole():
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("eager")
    inputs = make(4, 64, torch.float32)
    compiled = torch.compile(lambda x, w: layer_norm(x, w) * 2, fullgraph=True, backend=counter)
    out = compiled(inputs["x"], inputs["weight"])
    torch.testing.assert_close(out, 2 * layer_norm(inputs["x"], inputs["weight"]))
    assert counter.frame_count == 1


def test_the_operator_passes_pytorchs_own_check():
    inputs = make(4, 64, torch.float32)
    torch.library.opcheck(
        torch.ops.fusing_kernels.layer_norm.default,
        (inputs["x"], inputs["weight"], None, 1e-5),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_a_wide_row_takes_the_loop_and_one_in_32_bits_sooner():
    block = forward_block(2**20, (9, 0)).cols
    with recording() as launches:
        for n_cols, dtype in ((block, torch.float16), (block + 1, torch.float16)):
            layer_norm(torch.empty(1, n_cols, dtype=dtype))
        for n_cols in (block // 2, block):
            layer_norm(torch.empty(1, n_cols))
    assert [launch.name for launch in launches] == ["norm_row", "norm_tiles"] * 2


def test_a_wide_row_that_cannot_be_loaded_16_bytes_at_a_time_takes_smaller_tiles():
    def blocks(*tensors):
        with assume_capability(90), recording() as launches:
            for x in tensors:
                layer_norm(x)
        told = [launch.arguments for launch in launches]
        return [one["BLOCK_COLS"] + one.get("REST_COLS", 0) for one in told]

    wide = torch.empty(4, 20_008, dtype=torch.bfloat16)
    ragged = (wide[:, :20_001], wide[:, 1:20_001], wide.t().contiguous().t(), wide[:, :20_004])
    assert blocks(wide, wide[:, :20_000], wide[:, :16_384]) == [20480, 20480, 16384]
    assert blocks(*ragged) == [8192, 20480, 8192, 8192]


@pytest.mark.parametrize(
    ("n_cols", "two"),
    [(5000, (4096, 1024)), (6144, (4096, 2048)), (6145, (8192, 0)), (4096, (4096, 0)), (3, (2, 1))],
)
def test_a_row_a_little_wider_than_a_power_of_two_is_held_in_two_blocks(n_cols, two):
    x = torch.empty(2, n_cols, dtype=torch.bfloat16)
    with assume_capability(90), recording() as launches:
        layer_norm(x)
    (launch,) = launches
    assert (launch.arguments["BLOCK_COLS"], launch.arguments["REST_COLS"]) == two
    x = torch.randn(2, n_cols)
    torch.testing.assert_close(layer_norm(x).double(), reference(x), rtol=1e-5, atol=1e-5)


def test_the_simple_variant_refuses_a_row_that_no_block_holds():
    with pytest.raises(ValueError, match="x has 32769 columns; one block holds 32768"):
        OP.variant("fused_simple").fn(torch.empty(1, 32769))


def test_a_card_without_a_table_takes_the_nearest_older_ones():
    assert forward_block(2**20, (8, 6)) == FORWARD[8, 0][-1]
    assert forward_block(2**20, (10, 0)) == FORWARD[9, 0][-1]
    assert forward_block(2**20, (12, 1)) == FORWARD[12, 0][-1]
    assert forward_block(2**20, (7, 0)) == FORWARD[7, 5][-1]
    assert forward_block(1000, (9, 0)) == Block(1024, 4)


def test_a_ragged_row_is_loaded_16_bytes_at_a_time():
    def loads(width, dtype):
        with recording() as launches:
            layer_norm(torch.empty(4, width, dtype=dtype))
        return set(re.findall(r"ld\.global\S*", compile_launch(launches.seen[0], 90).ptx))

    assert loads(5000, torch.bfloat16) == loads(8192, torch.bfloat16) == {"ld.global.v4.b32"}
    assert loads(5001, torch.bfloat16) == {"ld.global.b16"}


def test_eager_and_fused_agree_through_their_ledgers_names():
    assert list(OP.variants) == [
        *("eager", "torch", "compile", "compile_max_autotune"),
        *("cuda_1", "cuda_2", "unfused_cuda", "cuda_3", "cuda_4", "fused_cuda"),
        *("tutorial", "fused_simple", "fused", "liger", "helion"),
    ]
    assert OP.variant("eager").fn is eager


def test_peers_that_are_absent_or_need_a_gpu_say_so():
    cpu = torch.device("cpu")
    assert "GPU" in OP.variant("compile").unavailable(cpu)
    assert "GPU" in OP.variant("compile_max_autotune").unavailable(cpu)
    assert "iger" in OP.variant("liger").unavailable(cpu)
    assert "elion" in OP.variant("helion").unavailable(cpu)
    assert OP.variant("fused").unavailable(cpu) is None


def test_a_helion_that_cannot_be_imported_is_absent_and_says_why(tmp_path, monkeypatch):
    gpu = torch.device("cuda")
    monkeypatch.delitem(sys.modules, "kernels.ops.shared.helion_rows", raising=False)
    monkeypatch.delitem(sys.modules, "helion", raising=False)
    (tmp_path / "helion.py").write_text("raise ImportError('no such name in torch')")
    monkeypatch.syspath_prepend(tmp_path)
    told = OP.variant("helion").unavailable(gpu)
    assert "no such name in torch" in told
    assert torch.__version__ in told
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert OP.variant("helion").unavailable(gpu) == "helion is not installed"
    assert OP.variant("liger").unavailable(gpu) == "liger-kernel is not installed"


def test_helion_without_weight_or_bias_is_one_sentence():
    with pytest.raises(ValueError, match="takes weight and bias"):
        OP.variant("helion").fn(torch.zeros(2, 8))
    with pytest.raises(ValueError, match="takes a weight"):
        get("rmsnorm").variant("helion").fn(torch.zeros(2, 8))


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "softmax"])
def test_the_slow_compilation_belongs_to_named_cells_of_the_suite(name):
    op = get(name)
    variant = op.variant("compile_max_autotune")
    assert variant.cases
    for case in variant.cases:
        assert case in op.cases_of("fwd")
        assert variant.belongs(case)
    assert not variant.belongs(Case((512, 1024), torch.float32))
    assert op.variant("fused").belongs(Case((3, 5), torch.float32))
