"""What upstream's interpreter computes wrongly without a word, and the right values."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import KernelError

FP8 = torch.float8_e4m3fn, torch.float8_e5m2


@triton.jit
def truths(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i) > 0, tl.load(y_ptr + i) > 0
    tl.store(out_ptr + i, (x and y).to(tl.int32))
    tl.store(out_ptr + N + i, (x or y).to(tl.int32))
    tl.store(out_ptr + 2 * N + i, (not x).to(tl.int32))
    tl.store(out_ptr + 3 * N + i, ((x and not y) or (y and i == 2)).to(tl.int32))


def test_and_or_and_not_act_on_blocks():
    x, y = torch.tensor([0, 1, 0, 2]), torch.tensor([0, 0, 3, 2])
    out = torch.full((4, 4), -1, dtype=torch.int32)
    truths[(1,)](x, y, out, N=4)
    assert out.tolist() == [[0, 0, 0, 1], [0, 1, 1, 1], [1, 0, 1, 0], [0, 1, 1, 0]]


@triton.jit
def truths_of_constants(x_ptr, out_ptr, YES: tl.constexpr, NOTHING: tl.constexpr):
    x = tl.load(x_ptr)
    a = YES and x
    b = NOTHING is None or tl.load(x_ptr + 1000) > 0  # what decides needs no right side
    c = x > 5 and not YES
    tl.store(out_ptr, a)
    tl.store(out_ptr + 1, 1.0 if b else 0.0)
    tl.store(out_ptr + 2, 1.0 if c else 0.0)


def test_a_constant_decides_without_its_right_side():
    out = torch.full((3,), -1.0)
    truths_of_constants[(1,)](torch.tensor([7.0]), out, YES=True, NOTHING=None)
    assert out.tolist() == [7.0, 1.0, 0.0]


@triton.jit
def extremes(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, min(x, y))
    tl.store(out_ptr + N + i, max(x, y, 0.0))
    tl.store(out_ptr + 2 * N + i, x * (min(N, 2) + max(1, 2)))


@pytest.mark.filterwarnings("ignore:builtin m")
def test_pythons_min_and_max_act_on_blocks():
    x, y = torch.randn(8), torch.randn(8)
    out = torch.empty(3, 8)
    extremes[(1,)](x, y, out, N=8)
    assert torch.equal(out[0], torch.minimum(x, y))
    assert torch.equal(out[1], torch.maximum(x, y).clamp(min=0))
    assert torch.equal(out[2], x * 4)


@triton.jit
def convert(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out_ptr + i, tl.load(x_ptr + i).to(out_ptr.dtype.element_ty))


def numbers_for(dtype):
    """All numbers of an fp8, what lies between them and beyond them."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    finite = codes[codes.isfinite()].unique()
    between = (finite[1:] + finite[:-1]) / 2
    wild = torch.randn(1024) * torch.logspace(-8, 3, 1024)
    x = torch.cat([finite, between, wild])
    return x[x.abs() <= finite.max()]


@pytest.mark.parametrize("eight", FP8)
@pytest.mark.parametrize("other", [torch.float32, torch.float16, torch.bfloat16])
def test_fp8_is_converted_to_and_from(eight, other):
    x = numbers_for(eight).to(other)
    n = triton.next_power_of_2(x.numel())
    x = torch.nn.functional.pad(x, (0, n - x.numel()))
    out = torch.empty(n, dtype=eight)
    convert[(1,)](x, out, N=n)
    expected = x.float().to(eight)
    assert torch.equal(out.view(torch.uint8), expected.view(torch.uint8))
    back = torch.empty(n, dtype=other)
    convert[(1,)](out, back, N=n)
    assert torch.equal(back, expected.to(other))


@pytest.mark.parametrize(("eight", "largest"), [(FP8[0], 448.0), (FP8[1], 57344.0)])
def test_what_is_too_large_for_fp8_saturates_and_a_nan_stays(eight, largest):
    x = torch.tensor([1e6, -1e6, float("inf"), float("nan")])
    out = torch.empty(4, dtype=eight)
    convert[(1,)](x, out, N=4)
    assert out[:3].float().tolist() == [largest, -largest, largest]
    assert out[3].float().isnan()


@triton.jit
def toward_zero(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i).to(out_ptr.dtype.element_ty, fp_downcast_rounding="rtz")
    tl.store(out_ptr + i, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_a_cast_toward_zero_never_grows(dtype):
    x = torch.randn(512) * 100
    out = torch.empty(512, dtype=dtype)
    toward_zero[(1,)](x, out, N=512)
    kept = out.float()
    assert (kept.abs() <= x.abs()).all()
    step = torch.finfo(dtype).eps * x.abs()
    assert ((x - kept).abs() < step).all()
    assert ((x - kept).abs() > step / 2).any()


@triton.jit
def padded_by_descriptor(x_ptr, out_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    desc = tl.make_tensor_descriptor(x_ptr, [rows, cols], [cols, 1], [R, C], padding_option="nan")
    x = desc.load([0, 0])
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out_ptr + at, x.to(tl.float32))


@triton.jit
def padded_by_block_pointer(x_ptr, out_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    block = tl.make_block_ptr(x_ptr, (rows, cols), (cols, 1), (0, 0), (R, C), (1, 0))
    x = tl.load(block, boundary_check=(0, 1), padding_option="nan")
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out_ptr + at, x.to(tl.float32))


@pytest.mark.filterwarnings("ignore:.*make_block_ptr")
@pytest.mark.parametrize("kernel", [padded_by_descriptor, padded_by_block_pointer])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, FP8[0]])
def test_padding_with_nan_is_nan(kernel, dtype):
    columns = 16  # rows of 16 bytes and more, as a descriptor wants them
    x = torch.randn(3, columns).to(dtype)
    out = torch.zeros(4, 32)
    kernel[(1,)](x, out, 3, columns, R=4, C=32)
    assert torch.equal(out[:3, :columns], x.float())
    assert out[3].isnan().all()
    assert out[:, columns:].isnan().all()


@triton.jit
def count_values(x_ptr, out_ptr, N: tl.constexpr, BINS: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + tl.arange(0, BINS), tl.histogram(x, BINS))
    tl.store(out_ptr + BINS + tl.arange(0, BINS), tl.histogram(x, BINS, mask=i < N // 2))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_a_histogram_counts_in_int32(dtype):
    x = (torch.arange(1024) % 3).to(dtype)
    x[:700] = 1
    out = torch.zeros(2, 4, dtype=torch.int32)
    count_values[(1,)](x, out, N=1024, BINS=4)
    assert torch.equal(out[0], torch.bincount(x.long(), minlength=4).int())
    assert torch.equal(out[1], torch.bincount(x[:512].long(), minlength=4).int())


@triton.jit
def integer_sums(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr, tl.sum(x))
    tl.store(out_ptr + 1, tl.sum(tl.reshape(x, (N // 2, 2)), axis=None))
    tl.store(out_ptr + 2 + tl.arange(0, N), tl.cumsum(x))


def test_integer_sums_wrap():
    x = torch.full((8,), 2**30, dtype=torch.int32)
    out = torch.ones(10, dtype=torch.int32)
    integer_sums[(1,)](x, out, N=8)
    sums = np.cumsum(np.full(8, 2**30, dtype=np.int32), dtype=np.int32)
    assert out.tolist() == [0, 0, *sums.tolist()]


@triton.jit
def with_nan(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    all_nans: tl.constexpr = tl.PropagateNan.ALL
    tl.store(out_ptr + i, tl.maximum(x, y))
    tl.store(out_ptr + N + i, tl.minimum(x, y))
    tl.store(out_ptr + 2 * N + i, tl.maximum(x, y, propagate_nan=all_nans))
    tl.store(out_ptr + 3 * N + i, tl.clamp(x, -1.0, 1.0))
    tl.store(out_ptr + 4 * N + i, tl.max(x, axis=0) + tl.zeros((N,), tl.float32))


def test_a_number_wins_over_a_nan_unless_the_kernel_asks_for_nans():
    nan = float("nan")
    out = torch.zeros(5, 2)
    with_nan[(1,)](torch.tensor([nan, 2.0]), torch.tensor([1.0, nan]), out, N=2)
    assert out[0].tolist() == [1, 2]
    assert out[1].tolist() == [1, 2]
    assert out[2].isnan().all()
    assert out[3].tolist() == [-1, 1]
    assert out[4].tolist() == [2, 2]


@triton.jit
def bits(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    high = tl.umulhi(x.to(tl.int32, bitcast=True), tl.full((N,), 16, tl.int32))
    tl.store(out_ptr + i, ~x)
    tl.store(out_ptr + N + i, high.to(tl.uint32, bitcast=True))


def test_unsigned_numbers_stay_unsigned():
    x = torch.tensor([0, 1, 2**31, 2**32 - 1], dtype=torch.uint32)
    out = torch.zeros(2, 4, dtype=torch.uint32)
    bits[(1,)](x, out, N=4)
    assert out[0].tolist() == [2**32 - 1 - v for v in x.tolist()]
    assert out[1].tolist() == [v * 16 >> 32 for v in x.tolist()]


@triton.jit
def high_words(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, tl.umulhi(x.to(tl.uint64, bitcast=True), y.to(tl.uint64, bitcast=True)))


def test_the_high_word_of_a_product_of_64_bits():
    x, y = (torch.randint(-(2**63), 2**63 - 1, (64,)) for _ in range(2))
    out = torch.zeros(64, dtype=torch.uint64)
    high_words[(1,)](x, y, out, N=64)
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    assert out.tolist() == [(a % 2**64) * (b % 2**64) >> 64 for a, b in pairs]


@triton.jit
def truths_added(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i) > 0, tl.load(y_ptr + i) > 0
    tl.store(out_ptr + i, (x + y).to(tl.int32))
    tl.store(out_ptr + N + i, (x * y).to(tl.int32))
    tl.store(out_ptr + 2 * N + i, (x - y).to(tl.int32))


def test_truth_values_add_up_in_one_bit():
    x, y = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    out = torch.zeros(3, 4, dtype=torch.int32)
    truths_added[(1,)](x, y, out, N=4)
    assert out.tolist() == [[0, 1, 1, 0], [0, 0, 0, 1], [0, 1, 1, 0]]


@triton.jit
def by_fp8e4b15(x_ptr, codes_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    y = tl.load(x_ptr + i).to(tl.float8e4b15)
    tl.store(codes_ptr + i, y.to(tl.uint8, bitcast=True))
    tl.store(out_ptr + i, y.to(tl.float16))


def test_fp8e4b15_is_converted_as_tritons_assembly_does():
    # Its largest number is 1.75; a half is rounded away from zero.
    x = torch.tensor([1.0, -1.0, 1.75, 100.0, 2.0**-10, 1.0625, 1.05, 0.0]).half()
    codes, out = torch.zeros(8, dtype=torch.uint8), torch.zeros(8).half()
    by_fp8e4b15[(1,)](x, codes, out, N=8)
    assert codes.tolist() == [0x78, 0xF8, 0x7E, 0x7E, 0x28, 0x79, 0x78, 0]
    assert out.tolist() == [1, -1, 1.75, 1.75, 2.0**-10, 1.125, 1, 0]


@triton.jit
def fused(x_ptr, y_ptr, z_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y, z = tl.load(x_ptr + i), tl.load(y_ptr + i), tl.load(z_ptr + i)
    tl.store(out_ptr + i, tl.fma(x, y, z))


def test_fma_rounds_once():
    x = 1 + torch.rand(256)
    y = 1 + torch.rand(256)
    out = torch.empty(256)
    fused[(1,)](x, y, -(x * y), out, N=256)
    assert torch.equal(out, (x.double() * y.double() - (x * y).double()).float())
    assert out.count_nonzero() > 100


@triton.jit
def branch_on_a_block(x_ptr, N: tl.constexpr):
    if tl.load(x_ptr + tl.arange(0, N)) > 0:
        tl.store(x_ptr, 1.0)


def test_a_branch_on_a_block_is_refused_as_by_the_compiler():
    with pytest.raises(KernelError, match=r"a block of shape \(4,\); use tl.where"):
        branch_on_a_block[(1,)](torch.zeros(4), N=4)


@triton.jit
def chained(x_ptr, n):
    if 0 < n < 8:
        tl.store(x_ptr, 1.0)


def test_a_chain_of_comparisons_is_refused_as_by_the_compiler():
    with pytest.raises(KernelError, match="one comparison at a time"):
        chained[(1,)](torch.zeros(4), 4)


def zero_output(arguments):
    arguments["out_ptr"].zero_()


@triton.autotune([triton.Config({"N": 8}, pre_hook=zero_output)], key=[])
@triton.jit
def accumulate(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + i)))


def test_the_hook_of_a_configuration_runs_before_each_launch():
    x, out = torch.rand(32), torch.full((1,), 5.0)
    for _ in range(2):
        accumulate[lambda meta: (32 // meta["N"],)](x, out)
        torch.testing.assert_close(out[0], x.sum())


def set_blocks(arguments):
    for name in ("x", "out"):
        arguments[name].block_shape = [arguments["R"], arguments["C"]]


@triton.autotune(
    [triton.Config({"R": r, "C": 16}, pre_hook=set_blocks) for r in (4, 8)], key=["rows"]
)
@triton.jit
def doubled_by_descriptors(x, out, rows, R: tl.constexpr, C: tl.constexpr):
    at = [tl.program_id(0) * R, 0]
    out.store(at, x.load(at) * 2)


def test_host_descriptors_of_a_tuned_kernel_get_their_blocks():
    x, out = torch.randn(10, 16), torch.zeros(10, 16)
    blocks = [TensorDescriptor.from_tensor(t, [1, 1]) for t in (x, out)]
    doubled_by_descriptors[lambda meta: (triton.cdiv(10, meta["R"]),)](*blocks, 10)
    assert torch.equal(out, 2 * x)
