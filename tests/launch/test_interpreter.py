"""The interpreter computes what a GPU does, and leaves Triton and the kernel's module alone."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as upstream
from triton.runtime.jit import JITFunction

from kernels import KernelError
from tests.launch import kernels_under_test as k


def bf16(*values):
    return torch.tensor(values, dtype=torch.float32).bfloat16()


def test_bf16_arithmetic_rounds_like_pytorch():
    x, y = torch.randn(256).bfloat16(), torch.randn(256).bfloat16()
    out = torch.empty_like(x)
    k.bf16_arithmetic[(1,)](x, y, out, BLOCK=256)
    z = (x * y + x) - y
    assert torch.equal(out, torch.where(z > y, z, torch.maximum(x, y)))


def test_casts_to_bf16_round_to_nearest_even():
    x = torch.cat([torch.randn(251), torch.tensor([float("inf"), -0.0, 1 + 2**-8, 1 + 3 * 2**-8])])
    x = torch.cat([x, torch.tensor([3.4e38])])
    out = torch.empty(256, dtype=torch.bfloat16)
    k.to_bf16[(1,)](x, out, N=256)
    assert torch.equal(out, x.bfloat16())


def test_a_nan_stays_a_nan():
    out = torch.empty(2, dtype=torch.bfloat16)
    k.to_bf16[(1,)](torch.tensor([float("nan"), 1.0]), out, N=2)
    assert out[0].isnan()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_dot_of_16_bit_numbers_adds_up_in_fp32(dtype):
    x, y = (torch.randn(32, 32).to(dtype) for _ in range(2))
    out = torch.empty(32, 32)
    k.bf16_dot[(1,)](x, y, out, N=32)
    torch.testing.assert_close(out, x.float() @ y.float(), rtol=1e-5, atol=1e-5)


def test_a_dot_in_fp32_is_rounded_once_whatever_adds_it_up():
    """So its bits are no BLAS's, and no tile's: a wider one is added up in another order there."""
    x, y = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(0))
    for n in (16, 32, 64):
        left, right = x[:n, :n].contiguous(), y[:n, :n].contiguous()
        out = torch.empty(n, n)
        k.bf16_dot[(1,)](left, right, out, N=n)
        assert torch.equal(out, (left.double() @ right.double()).float())
    k.bf16_dot[(1,)](torch.full((16, 16), 3e38), torch.ones(16, 16), out, N=16)
    assert out.flatten()[:256].isinf().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_in_16_bits_loses_what_16_bits_lose(dtype):
    x = (1 + torch.rand(4096)).to(dtype)
    out = torch.empty(1, dtype=dtype)
    k.sum_in_its_dtype[(1,)](x, out, N=4096)
    exact = x.double().sum()
    unit = torch.finfo(dtype).eps / 2
    assert 0 < abs(out.double() - exact) / exact < 12 * unit


def test_reduce_with_a_combine_function_of_ones_own():
    x, out = torch.randn(1000) + 1000, torch.zeros(2)
    k.welford[(1,)](x, out, 1000, BLOCK=1024)
    torch.testing.assert_close(out[0], x.mean())
    torch.testing.assert_close(out[1], x.var(unbiased=False), rtol=1e-4, atol=0)


@pytest.mark.parametrize("keep", [False, True])
def test_a_reduction_over_all_axes(keep):
    x, out = 0.5 + torch.rand(4, 4), torch.zeros(1)
    k.product_of_all[(1,)](x, out, N=4, KEEP=keep)
    torch.testing.assert_close(out[0], x.prod())


def test_a_loop_with_a_run_time_bound():
    x, out = torch.rand(37), torch.zeros(1)
    k.run_time_loop[(1,)](x, out, 37)
    torch.testing.assert_close(out[0], x.sum() + 19 + 3)


def test_descriptors_are_held_to_their_tensor():
    x, y = torch.randn(10, 64), torch.zeros(10, 64)
    k.rows_by_descriptor[(3,)](x, y, 10, 64, ROWS=4, COLS=64)
    assert torch.equal(x, y)
    with pytest.raises(KernelError, match="y_ptr"):
        k.rows_by_descriptor[(3,)](x, torch.zeros(8, 64), 10, 64, ROWS=4, COLS=64)


def test_a_kernel_defined_in_a_function_sees_its_closure():
    factor = tl.constexpr(3)

    @triton.jit
    def scale(x_ptr):
        tl.store(x_ptr, tl.load(x_ptr) * factor)

    x = torch.ones(1)
    scale[(1,)](x)
    assert x.item() == 3.0


def test_arrays_among_the_globals_do_no_harm():
    k.SOME_ARRAY = np.arange(4)
    try:
        x = torch.zeros(16)
        k.add_in_place[(1,)](x, BLOCK=16)
    finally:
        del k.SOME_ARRAY
    assert x.sum() == 16


def test_nothing_stays_patched_and_no_name_is_left_behind():
    def attributes():
        owners = (tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.block_type, JITFunction)
        owners += (upstream, type(upstream.interpreter_semantic))
        told = [{name: id(value) for name, value in vars(owner).items()} for owner in owners]
        return [*told, upstream.interpreter_builder.options]

    names = set(vars(k))
    before = attributes()
    k.bf16_arithmetic[(1,)](bf16(1, 2), bf16(1, 2), bf16(0, 0), BLOCK=2)
    with pytest.raises(KernelError):
        k.missing_name[(1,)](torch.zeros(1))
    assert attributes() == before
    assert set(vars(k)) == names


def test_whole_numbers_wrap_as_on_a_gpu():
    x = torch.tensor([2**31 - 1, 5], dtype=torch.int32)
    k.add_in_place[(1,)](x, BLOCK=2)
    assert x.tolist() == [-(2**31), 6]
