"""LayerNorm and a product in FP8: the norm writes 8 bits and a scale a row (chapter 11).

    n = LayerNorm(x),   s_r = max_k |n[r, k]| / 448,   q[r, k] = e4m3(n[r, k] / s_r)
    y[r, c] = s_r · t_c · Σ_k q[r, k] · w8[c, k] + bias[c]

x has the shape (..., K), w8 (N, K) with a scale t_c for each output, y (..., N). e4m3 has 3 bits
behind the point and ends at 448: a number is off by up to 1/16 of itself, 2.6 % in the mean of the
squares, and so are x and the weights both, by chance. An output, a sum of K such products, is off
by some 3.7 % of its size whatever K is: the errors add up as the terms themselves do.

With M rows the norm reads 2·M·K bytes of 16 bits and writes M·K, where a 16-bit norm writes 2·M·K;
the product reads M·K + N·K bytes in place of twice that, and its tensor cores do twice as many
FLOPs a second. The product is PyTorch's scaled one, `torch._scaled_mm` with a scale for each row
and column, from capability 8.9 on. It wants K and N to be multiples of 16, and gives 16 bits: where
the output is wanted in FP8, one launch more reads y and writes its rows with a scale each, since a
row's largest number is known when all of its tiles are.

Source: Micikevicius and others, "FP8 formats for deep learning" (arXiv:2209.05433).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from kernels.hardware import WARP_THREADS
from kernels.launch import capability
from kernels.ops.chains.gelu_by_power import OF_NAN
from kernels.ops.products.operators import composed as product
from kernels.ops.shared.arguments import check_norm, check_tensor, refuse_gradients
from kernels.ops.shared.operators import device_guard
from kernels.ops.shared.rows import one_row_stride

Tensor = torch.Tensor

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0  # of e4m3
SMALLEST_SCALE = 2.0**-100  # of a row of zeros, which nothing must divide by 0
WIDEST = 16384  # columns of a row that a program holds
OF_SIZES = 16  # what K and N must be multiples of
FROM = (8, 9)  # the capability from which tensor cores multiply FP8


class Quantised(NamedTuple):
    """Rows in e4m3 and what each is to be multiplied by: values (..., K), scales (...,) in fp32."""

    values: Tensor
    scales: Tensor


@triton.jit
def quantise_row(
    x_ptr,
    weight_ptr,
    bias_ptr,
    values_ptr,
    scales_ptr,
    x_row_stride,
    n_cols,
    eps,
    NORM: tl.constexpr,
    LARGEST: tl.constexpr,
    SMALLEST_SCALE: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    # A program holds a row: its LayerNorm with NORM, its largest number, and the row in 8 bits.
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * x_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        mean = tl.sum(x, axis=0) / n_cols
        off = tl.where(mask, x - mean, 0.0)
        x = off * tl.rsqrt(tl.sum(off * off, axis=0) / n_cols + eps)
        if weight_ptr is not None:
            x *= tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            x += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x), axis=0)
    scale = tl.maximum(largest / LARGEST, SMALLEST_SCALE)
    # By the quotient it may be a little more than LARGEST, which e4m3 has no number for. NaN it
    # has, which these would take for a number unless told so.
    values = tl.maximum(x / scale, -LARGEST, propagate_nan=OF_NAN)
    values = tl.minimum(values, LARGEST, propagate_nan=OF_NAN)
    tl.store(values_ptr + row * n_cols + cols, values.to(values_ptr.dtype.element_ty), mask=mask)
    tl.store(scales_ptr + row, scale)


def _rows(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, norm: bool
) -> Quantised:
    values = torch.empty(x.shape, dtype=E4M3, device=x.device)
    scales = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    if values.numel() == 0:
        return Quantised(values, scales)
    n_cols = x.shape[-1]
    x, stride = one_row_stride(x)
    block = triton.next_power_of_2(n_cols)
    with device_guard(x):
        quantise_row[(x.numel() // n_cols,)](
            x,
            None if weight is None else weight.contiguous(),
            None if bias is None else bias.contiguous(),
            values,
            scales,
            stride,
            n_cols,
            eps,
            NORM=norm,
            LARGEST=LARGEST,
            SMALLEST_SCALE=SMALLEST_SCALE,
            BLOCK_COLS=block,
            num_warps=max(1, min(16, block // (16 * WARP_THREADS))),
        )
    return Quantised(values, scales)


def needs_fp8(device: torch.device) -> str | None:
    """Why products in FP8 can't run on a device, in one sentence; None if they can."""
    if device.type == "cuda" and capability(device) < FROM:
        have = ".".join(map(str, capability(device)))
        return f"products in FP8 need compute capability 8.9 or later; this GPU has {have}"
    return None


def _check_width(name: str, x: Tensor) -> None:
    if x.shape[-1] > WIDEST:
        raise ValueError(f"{name} has rows of {x.shape[-1]}; one may have {WIDEST} at most")
    why = needs_fp8(x.device)
    if why is not None:
        raise NotImplementedError(why)


def quantise(x: Tensor) -> Quantised:
    """Rows of x in e4m3, each with the scale that makes its largest number 448; one launch.

    x: (..., K) in fp16, bf16 or fp32, K from 1 to 16384. A layer's weight (N, K) is quantised so
    once, before. ValueError or TypeError names the argument, what it got and what it takes;
    NotImplementedError on a GPU before capability 8.9.
    """
    check_tensor("x", x)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x has the shape {tuple(x.shape)}; its last dimension must be 1 or more")
    _check_width("x", x)
    refuse_gradients("quantise", x, instead="the 16-bit way")
    return _rows(x, None, None, 0.0, norm=False)


def layernorm_fp8(
    x: Tensor, norm_weight: Tensor | None, norm_bias: Tensor | None, eps: float = 1e-5
) -> Quantised:
    """LayerNorm of x's rows in e4m3 with a scale a row, in one launch; arguments as below."""
    check_norm(x, norm_weight, norm_bias)
    _check_width("x", x)
    refuse_gradients("layernorm_fp8", x, norm_weight, norm_bias, instead="layer_norm")
    return _rows(x, norm_weight, norm_bias, eps, norm=True)


def layernorm_fp8_linear(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Quantised,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    fp8_output: bool = False,
) -> Tensor | Quantised:
    """LayerNorm(x) · weightᵀ + bias with both factors in FP8, for inference: two launches.

    x: (..., K) in bf16, K a multiple of 16 up to 16384. norm_weight, norm_bias: (K,) or None.
    weight: `quantise` of a layer's weight (N, K), N a multiple of 16. bias: (N,) in bf16 or None.
    Returns y (..., N) in bf16; with `fp8_output` y in e4m3 with a scale a row, by one launch more.
    ValueError or TypeError names the argument, what it got and what it takes; NotImplementedError
    on a GPU before capability 8.9. It has no gradients.
    """
    check_norm(x, norm_weight, norm_bias)
    n, k = weight.values.shape
    if x.dtype != torch.bfloat16:
        raise TypeError(f"x has dtype {x.dtype}; products in FP8 take and give bfloat16")
    if k != x.shape[-1]:
        raise ValueError(
            f"weight has rows of {k}; with x of shape {tuple(x.shape)} it takes {x.shape[-1]}"
        )
    if k % OF_SIZES or n % OF_SIZES:
        raise ValueError(
            f"weight has the shape {(n, k)}; products in FP8 take multiples of {OF_SIZES}"
        )
    refuse_gradients("layernorm_fp8_linear", x, norm_weight, norm_bias, bias, instead="layer_norm")
    rows = layernorm_fp8(x, norm_weight, norm_bias, eps)
    y = scaled_product(rows, weight, bias)
    return _rows(y, None, None, 0.0, norm=False) if fp8_output else y


def scaled_product(
    rows: Quantised, weight: Quantised, bias: Tensor | None, fast_sums: bool = True
) -> Tensor:
    """rows · weightᵀ + bias in bf16 by PyTorch's scaled product; rows (..., K), weight (N, K).

    With `fast_sums` the tensor cores add up by themselves, in 14 bits or so, and without it what
    they have is added to fp32 every few steps: slower, for an error far below that of e4m3.
    """
    n, k = weight.values.shape
    y = torch._scaled_mm(
        rows.values.view(-1, k),
        weight.values.t(),
        scale_a=rows.scales.view(-1, 1),
        scale_b=weight.scales.view(1, -1),
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=fast_sums,
    )
    return y.view(*rows.values.shape[:-1], n)


def reference(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float = 1e-5,
) -> Tensor:
    """LayerNorm and the product in float64, of a weight (N, K) that is not quantised."""
    gamma, beta, b = (
        None if one is None else one.double() for one in (norm_weight, norm_bias, bias)
    )
    normed = torch.nn.functional.layer_norm(x.double(), x.shape[-1:], gamma, beta, eps)
    return torch.nn.functional.linear(normed, weight.double(), b)


def torch_way(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float = 1e-5,
) -> Tensor:
    """The same in 16 bits by PyTorch's operators, which FP8 is compared with."""
    return product(
        torch.nn.functional.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps), weight, bias
    )


def dequantised(rows: Any) -> Tensor:
    """What quantised rows stand for, in float64."""
    return rows.values.double() * rows.scales.double().unsqueeze(-1)
