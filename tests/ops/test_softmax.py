"""Softmax and its gradient against float64, on every dtype, width and layout; what it refuses."""

import re

import pytest
import torch

from kernels.launch import assume_capability, interpreting, recording
from kernels.launch.triton_compile import compile_launch
from kernels.ops.shared.blocks import Block
from kernels.ops.softmax.backward import softmax_backward
from kernels.ops.softmax.configurations import FORWARD, TILES, forward_block
from kernels.ops.softmax.forward import softmax_forward
from kernels.ops.softmax.softmax import reference, softmax
from kernels.registry import DTYPES, Case, get, operators_of
from tests.ops.test_layernorm import layouts

OP = get("softmax")
# The kernels that hold a row, and those that walk along it: the narrow blocks of the second make a
# row of any width a wide one, so that a few tiles are enough to test the loops.
BLOCKS = {"row": Block(64, 1), "tiles": Block(16, 1)}


def make(rows, cols, dtype, **options):
    return OP.inputs((rows, cols), dtype, "cpu", seed=torch.seed() % 2**31, **options)["x"]


def differentiate(fn, x, dy):
    """The output and the gradient of x, which keeps its strides."""
    x = x.detach().requires_grad_()
    y = fn(x)
    return y.detach(), torch.autograd.grad(y, x, dy)[0]


def assert_within(out, exact, tolerance, dtype):
    assert out.dtype == dtype
    error = (out.double() - exact).norm()
    assert error <= tolerance.relative_norm * exact.norm(), (error / exact.norm()).item()
    assert (out.double() - exact).abs().max() <= tolerance.largest * exact.abs().max()


def assert_no_worse_than_torch(ours, torchs, exact, terms=None):
    """At most twice PyTorch's distance from the truth, and a rounding to the dtype beside it.

    Where a result is a small difference of large `terms`, a few roundings of those are in it. Of
    few elements PyTorch's can all be right by chance, and of few rows the statistic of each: then
    a few roundings in fp32 are allowed.
    """
    unit = torch.finfo(ours.dtype).eps / 2
    allowed = 2 * (torchs.double() - exact).norm() + unit * exact.norm()
    if exact.numel() < 1000:
        allowed += 16 * 2.0**-24 * exact.norm()
    elif exact.shape[0] < 100:
        allowed += 2 * 2.0**-24 * exact.norm()
    if terms is not None:
        allowed += 4 * 2.0**-24 * terms.double().norm()
    assert (ours.double() - exact).norm() <= allowed


def cast(x, dtype):
    """`x` in another dtype and in the strides it has, which `x.to(dtype)` may not keep."""
    steps = zip(x.shape, x.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in steps)
    memory = x.as_strided((span,), (1,)).to(dtype)
    return memory.as_strided(x.shape, x.stride())


@pytest.mark.parametrize(("name", "x"), list(layouts()), ids=[name for name, _ in layouts()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kernel", ["row", "tiles"])
def test_every_layout_of_x_and_of_the_upstream_gradient(name, x, dtype, kernel):
    x = cast(x, dtype)
    exact = reference(x)
    y = softmax_forward(x, BLOCKS[kernel])
    assert y.is_contiguous()
    assert y.dtype == dtype
    assert_no_worse_than_torch(y, torch.softmax(x, -1), exact)

    # The same tensor once more, as the gradient of what another input gave.
    dy, y = x, softmax(make(max(1, x.numel() // x.shape[-1]), x.shape[-1], dtype)).view(x.shape)
    dx = softmax_backward(dy, y, BLOCKS[kernel])
    assert dx.is_contiguous()
    assert dx.dtype == dtype
    exact = y.double() * (dy.double() - (dy.double() * y.double()).sum(-1, keepdim=True))
    torchs = torch.ops.aten._softmax_backward_data(dy.contiguous(), y, -1, dtype)
    assert_no_worse_than_torch(dx, torchs, exact, terms=y * dy)


@pytest.mark.parametrize(("name", "x"), list(layouts()), ids=[name for name, _ in layouts()])
def test_gradients_reach_every_layout(name, x):
    dy = torch.randn(x.shape)
    y, dx = differentiate(softmax, x, dy)
    exact_y, exact_dx = differentiate(reference, x.double(), dy.double())
    torch_y, torch_dx = differentiate(lambda x: torch.softmax(x, -1), x, dy)
    assert_no_worse_than_torch(y, torch_y, exact_y)
    assert_no_worse_than_torch(dx, torch_dx, exact_dx)


def test_an_upstream_gradient_that_is_one_number_everywhere():
    x = make(5, 48, torch.float32).requires_grad_()
    softmax(x).sum().backward()  # autograd expands a single 1.0
    # The sum of a row is 1 whatever x is.
    assert x.grad.abs().max() <= 1e-6
    x.grad = None
    (3 * softmax(x)[:, ::2]).sum().backward()
    exact = torch.autograd.functional.jacobian(
        lambda x: (3 * reference(x)[:, ::2]).sum(), x.detach().double()
    )
    assert (x.grad - exact).norm() <= 1e-6 * exact.norm()


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8)])
def test_no_rows_give_no_rows(shape):
    x = torch.empty(shape, requires_grad=True)
    y = softmax(x)
    y.backward(torch.empty(shape))
    assert y.shape == x.grad.shape == shape


@pytest.mark.parametrize("kernel", BLOCKS)
def test_rows_sum_to_one_and_a_shift_changes_nothing(kernel):
    # Whole numbers, so that the shift loses nothing.
    x = torch.randint(-8, 8, (6, 50)).float()
    y = softmax_forward(x, BLOCKS[kernel])
    assert (y.double().sum(-1) - 1).abs().max() <= 2.0**-22
    torch.testing.assert_close(softmax_forward(x + 1000, BLOCKS[kernel]), y, rtol=0, atol=0)
    order = torch.randperm(50)
    torch.testing.assert_close(
        softmax_forward(x[:, order], BLOCKS[kernel]), y[:, order], rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("kernel", BLOCKS)
def test_large_numbers_neither_overflow_nor_cancel(kernel):
    half = (torch.randn(4, 50) * 1e4).clamp(-6e4, 6e4).half()
    near = (1000 + torch.randn(4, 50)).float()
    edge = torch.tensor([[3.0e38, -3.4e38, 3.0e38, 0.0] * 10])
    for x in (half, near, near.half(), near.bfloat16(), edge):
        y = softmax_forward(x, BLOCKS[kernel])
        assert y.isfinite().all()
        assert_no_worse_than_torch(y, torch.softmax(x, -1), reference(x))


@pytest.mark.parametrize("kernel", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_minus_infinity_is_zero_and_a_row_of_it_is_nan(kernel, dtype):
    infinity, nan = float("inf"), float("nan")
    x = torch.randn(7, 50).to(dtype)
    x[0, ::3] = -infinity
    x[1, :33] = -infinity  # two whole tiles before the first number
    x[2, 17:] = -infinity  # and after the last
    x[3] = -infinity
    x[4, 20] = infinity
    x[5, 20] = nan
    x[6, :49] = -infinity  # all that is left gets 1
    y = softmax_forward(x, BLOCKS[kernel])
    torch.testing.assert_close(y, torch.softmax(x, -1), equal_nan=True, rtol=0.01, atol=0)
    assert y[3:6].isnan().all()
    assert y[6, 49] == 1
    assert (y[:3] == 0).sum() == (x[:3] == -infinity).sum()


@pytest.mark.parametrize("kernel", BLOCKS)
def test_the_lowest_number_of_fp32_is_not_minus_infinity(kernel):
    lowest = torch.finfo(torch.float32).min
    x = torch.full((1, 50), float("-inf"))
    x[0, [3, 40]] = lowest
    y = softmax_forward(x, BLOCKS[kernel])
    assert (y[0, 3], y[0, 40], y.sum()) == (0.5, 0.5, 1.0)


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda x: softmax(x.double()), TypeError, "x has dtype torch.float64; it takes"),
        (lambda x: softmax(x.int()), TypeError, "x has dtype torch.int32; it takes"),
        (lambda x: softmax([1.0]), TypeError, "x is a list; it takes a torch.Tensor"),
        (lambda x: softmax(x[:, :0]), ValueError, r"shape \(4, 0\); its last dimension"),
        (lambda x: softmax(x[0, 0]), ValueError, r"shape \(\); its last dimension"),
        (lambda x: OP.cost((4, 8), x.dtype, "no"), ValueError, "takes 'fwd', 'bwd' or 'train'"),
    ],
)
def test_bad_input_gets_one_sentence(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call(torch.randn(4, 8))


def test_a_second_derivative_is_refused_with_a_sentence():
    x = torch.randn(4, 8, requires_grad=True)
    (dx,) = torch.autograd.grad(softmax(x), x, torch.randn(4, 8), create_graph=True)
    with pytest.raises(NotImplementedError, match="softmax has no second derivative here: call"):
        dx.square().sum().backward()


def operators_called(fn):
    seen = []

    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "fusing_kernels":
                seen.append(func._schema.name.split("::")[1])
            return func(*args, **(kwargs or {}))

    with Names():
        fn()
    return seen


def test_without_gradients_no_autograd_formula_is_asked():
    x = torch.randn(4, 8, requires_grad=True)
    assert operators_called(lambda: softmax(x.detach())) == ["softmax"]
    with torch.no_grad():
        assert operators_called(lambda: softmax(x)) == ["softmax"]
    assert operators_called(lambda: softmax(x).sum().backward()) == [
        "softmax_with_grad",
        "softmax_backward",
    ]
    own = {one.name for one in operators_of("softmax")}
    assert own == {"softmax", "softmax_with_grad", "softmax_backward"}
    assert softmax(x).requires_grad
    assert not softmax(x.detach()).requires_grad


def test_it_saves_the_output_and_nothing_else():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = softmax(torch.randn(4, 8, requires_grad=True))
    assert [t.data_ptr() for t in saved] == [y.data_ptr()]


@pytest.mark.parametrize("pass_", ["fwd", "bwd"])
def test_the_cost_is_each_tensor_once(pass_):
    for dtype in DTYPES.values():
        size = 6 * 50 * dtype.itemsize
        cost = OP.cost((6, 50), dtype, pass_)
        reads = {"fwd": 1, "bwd": 2}[pass_]
        assert (cost.read_bytes, cost.write_bytes) == (reads * size, size)


def test_a_graph_keeps_it_whole_forward_and_backward():
    x, dy = make(4, 64, torch.float32), torch.randn(4, 64)
    compiled = torch.compile(lambda x: softmax(2 * x), fullgraph=True, backend="aot_eager")
    y, dx = differentiate(compiled, x, dy)
    plain_y, plain_dx = differentiate(lambda x: softmax(2 * x), x, dy)
    torch.testing.assert_close(y, plain_y)
    torch.testing.assert_close(dx, plain_dx)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), plain_y)


def test_the_operators_pass_pytorchs_own_checks():
    x, y = make(4, 64, torch.float32), torch.rand(4, 64)
    for operator, arguments in (
        (torch.ops.fusing_kernels.softmax.default, (x,)),
        (torch.ops.fusing_kernels.softmax_with_grad.default, (x.clone().requires_grad_(),)),
        (torch.ops.fusing_kernels.softmax_backward.default, (x, y)),
    ):
        torch.library.opcheck(operator, arguments)


def launches_of(width, dtype, capability):
    x = torch.empty(1, width, dtype=dtype, requires_grad=True)
    with assume_capability(capability), recording() as launches:
        softmax(x).backward(x.detach())
    return launches.seen


def test_a_wide_row_takes_the_loop():
    def names(width, capability):
        return [launch.name for launch in launches_of(width, torch.bfloat16, capability)]

    rows, tiles = "softmax_row softmax_backward_row", "softmax_tiles softmax_backward_tiles"
    assert names(16_384, 80) == names(16_384, 90) == rows.split()
    assert names(16_385, 80) == names(16_385, 90) == names(32_776, 90) == tiles.split()
    # Two rows of 32768 don't fit an SM's registers, one does where it is loaded 16 bytes at a time.
    assert names(32_768, 90) == ["softmax_row", "softmax_backward_tiles"]


def test_columns_far_apart_take_64_bit_offsets():
    # 4 GB that nobody touches: a recorded launch reads nothing.
    far = torch.empty_strided((1, 3), (1, 2**30), dtype=torch.float16)
    near = torch.empty_strided((1, 3), (1, 7), dtype=torch.float16)
    with recording() as launches:
        for x in (far, near):
            softmax_forward(x, Block(4, 1))
            softmax_backward(x, torch.empty(x.shape, dtype=x.dtype), Block(4, 1))
    wide = [launch.arguments["WIDE_OFFSETS"] for launch in launches]
    assert wide == [True, True, False, False]
    products = [compile_launch(launch, 90).ptx.count("mul.lo.s64") for launch in launches]
    # A row's place is 64 bits wide in both, a column's in those only.
    assert products[0] > products[2]
    assert products[1] > products[3]


def test_a_card_without_a_table_takes_the_nearest_older_ones():
    assert forward_block(32_768, (10, 0)) == FORWARD[9, 0][-1]
    assert forward_block(16_384, (8, 6)) == FORWARD[8, 0][-1]
    assert forward_block(16_384, (7, 0)) == FORWARD[7, 5][-1]
    assert forward_block(32_768, (12, 1)) == TILES
    assert forward_block(1000, (9, 0)) == Block(1024, 4)


def test_a_ragged_row_is_loaded_16_bytes_at_a_time():
    def loads(width):
        launches = launches_of(width, torch.bfloat16, 90)
        ptx = "".join(compile_launch(launch, 90).ptx for launch in launches)
        return set(re.findall(r"ld\.global\S*", ptx))

    assert loads(5000) == loads(8192) == {"ld.global.v4.b32"}
    assert loads(5001) == {"ld.global.b16"}


def test_a_candidate_computes_softmax_or_its_gradient():
    x, dy = make(1, 9000, torch.float32), torch.randn(1, 9000)
    case = Case(x.shape, x.dtype)
    forward, backward = (p.candidates(case) for p in (OP.forward, OP.backward))
    assert {"row, 16 warps", "tiles of 4096, 8 warps"} <= set(forward)
    assert set(forward) == set(backward)
    exact_y, exact_dx = differentiate(reference, x.double(), dy.double())
    for name, kernel in (("row, 16 warps", "row"), ("tiles of 8192, 8 warps", "tiles")):
        assert_within(forward[name](x=x), exact_y, OP.tolerance(x.dtype, x.shape), x.dtype)
        with interpreting() as launches:
            _, dx = differentiate(lambda x, name=name: backward[name](x=x), x, dy)
        assert launches.seen[-1].name == f"softmax_backward_{kernel}"
        assert_within(dx, exact_dx, OP.gradient_tolerance("x", x.dtype, x.shape), x.dtype)


def test_peers_that_are_absent_or_need_a_gpu_say_so(monkeypatch):
    assert list(OP.variants) == [
        *("eager", "torch", "compile", "compile_max_autotune", "fused", "liger", "helion")
    ]
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert "GPU" in OP.variant("compile").unavailable(cpu)
    assert "iger" in OP.variant("liger").unavailable(cpu)
    assert "elion" in OP.variant("helion").unavailable(cpu)
    assert OP.variant("fused").unavailable(cpu) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert OP.variant("liger").unavailable(gpu) == "liger-kernel is not installed"


def test_a_liger_without_softmax_is_absent_and_says_why(tmp_path, monkeypatch):
    (tmp_path / "liger_kernel").mkdir()
    (tmp_path / "liger_kernel" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    told = OP.variant("liger").unavailable(torch.device("cuda"))
    assert told.startswith("this release of liger-kernel has no softmax that can be imported: ")
