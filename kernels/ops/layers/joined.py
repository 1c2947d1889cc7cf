"""Steps of a layer in training whose gradients would meet in a launch of their own.

Autograd takes an operation at a time. Where a tensor was used twice it adds two gradients, and
where one was cut in three it puts three together, each by a launch that reads and writes all of
them again. Each function here is two operations with one way back, in which that is the last thing
that a kernel does anyway:

    projected   LayerNorm(x) · Wᵀ + b, and x once more   its two gradients meet in the norm's kernel
    attended    attention of rows of q, k and v          their gradients are written into such rows

Kept are the same tensors as without, and one more: what attention's dropout dropped, a bit a
weight, where its forward leaves that for its backward (`dropped_bits.left_by_forward`).
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.launch import capability
from kernels.launch.gluon import may_take_gluon
from kernels.ops.attention.backward_configurations import suits_hopper_backward
from kernels.ops.attention.dropped_bits import left_by_forward
from kernels.ops.attention.formula import Given, composed
from kernels.ops.attention.formula import gradients as attention_gradients
from kernels.ops.attention.forward import forward as attention_forward
from kernels.ops.attention.forward import output_like
from kernels.ops.attention.operators import backward_operator as attention_backward
from kernels.ops.attention.operators import check
from kernels.ops.layers.stochastic import back_adding
from kernels.ops.norms.operators import norm_backward, norm_train
from kernels.ops.products.linear import ways
from kernels.ops.products.operators import gradients
from kernels.ops.prologues.layernorm_linear import NAME as PROLOGUE
from kernels.ops.prologues.ways import two_kernels
from kernels.ops.shared.operators import (
    _ordinary,
    define,
    like,
    needs_gradient,
    refuse_second_derivative,
)

Tensor = torch.Tensor


def joins(x: Tensor) -> bool:
    """Whether the steps of a call with x are joined: in training on a GPU, where nobody looks on.

    Ledgers, compilers, transforms of `torch.func` and forward-mode differentiation see operations
    one by one, each of which knows what to do there.
    """
    return x.is_cuda and needs_gradient(x) and not torch.compiler.is_compiling() and _ordinary()


# ---------------------------------------------------------------------------- the norm, and QKV


class _Projected(torch.autograd.Function):
    """LayerNorm and a product, and their input; x alone is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        sums: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, norm_weight, norm_bias, weight, sums)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        return two_kernels(PROLOGUE, x, norm_weight, norm_bias, weight, bias, eps), x

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dx: Tensor | None) -> Any:
        x, norm_weight, norm_bias, weight, sums = ctx.saved_tensors
        for_x, for_weight, for_bias, *for_product = ctx.needs_input_grad[:5]
        found: tuple[Tensor | None, ...] = (dx, None, None)
        of_product: tuple[Tensor | None, ...] = (None, None)
        if dy is not None:
            # What was checked forward: a compiler takes no questions of a layout here.
            again = norm_train.operator if torch.compiler.is_compiling() else norm_train  # type: ignore[attr-defined]
            normed, _, mean, inv_std = again(x, None, norm_weight, norm_bias, ctx.eps, True)
            through, by = for_x or for_weight or for_bias, ways(x)
            wants = (through, *for_product)
            dh, dweight, dbias = gradients(dy, normed, weight, wants, by.grad_x, by.grad_weight)
            of_product = dweight, dbias
            if through:
                told = dh, dx, x, norm_weight, norm_bias, mean, inv_std
                if sums is None:
                    found = norm_backward(*told, for_weight, for_bias)
                else:
                    found = back_adding(*told, sums)
        of_norm = (
            one if wanted else None
            for wanted, one in zip((for_x, for_weight, for_bias), found, strict=True)
        )
        return *of_norm, *of_product, None, None


def projected(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    sums: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(LayerNorm(x) · weightᵀ + bias, x): what goes on from x goes back through the norm's launch.

    x (..., K), the norm's weight and bias (K,) or None, weight (N, K), bias (N,) or None. With
    `sums` the norm goes back by atomics (`stochastic`).
    """
    told = x, norm_weight, norm_bias, weight, bias, eps, sums
    result: tuple[Tensor, Tensor] = _Projected.apply(*told)
    return result


# ------------------------------------------------------------------------------------ attention


def heads_of(qkv: Tensor, n_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v (B, H, S, D) where they stand in rows (B, S, 3·H·D)."""
    parts = qkv.unflatten(-1, (3, n_heads, qkv.shape[-1] // (3 * n_heads)))
    # Not by unbind(), after which a call could not be made again from its record.
    q, k, v = (parts[:, :, one].transpose(1, 2) for one in range(3))
    return q, k, v


def _given(
    qkv: Tensor, seed_offset: Tensor | None, n_heads: int, causal: bool, p: float, scale: float
) -> Given:
    return Given(
        *(*heads_of(qkv, n_heads), None, None, None, None, seed_offset),
        *(causal, False, None, scale, p, True, True),
    )


def _check_rows(qkv: Tensor, seed_offset: Tensor | None, *told: Any) -> None:
    check(*_given(qkv, seed_offset, *told[:-1]))


def _rows(
    qkv: Tensor,
    seed_offset: Tensor | None,
    n_heads: int,
    causal: bool,
    p: float,
    scale: float,
    keeps_bits: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    given = _given(qkv, seed_offset, n_heads, causal, p, scale)
    bits = left_by_forward(given) if keeps_bits else None
    return *attention_forward(*given, bits=bits), bits


def _rows_fake(
    qkv: Tensor, _seed_offset: Tensor | None, n_heads: int, *_: Any
) -> tuple[Tensor, Tensor, None]:
    q = heads_of(qkv, n_heads)[0]
    return output_like(q), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device), None


def _rows_composed(
    qkv: Tensor, seed_offset: Tensor | None, *told: Any
) -> tuple[Tensor, Tensor | None, None]:
    return *composed(*_given(qkv, seed_offset, *told[:-1])), None


_DIMS = {"qkv": "BSP", "seed_offset": ""}
rows_forward = define(
    "attention_rows(Tensor qkv, Tensor? seed_offset, int n_heads, bool causal, float p, "
    "float scale, bool keeps_bits) -> (Tensor, Tensor, Tensor)",
    _rows,
    _rows_fake,
    _rows_composed,
    of=("attention",),
    tensors=_DIMS,
    checks=_check_rows,
)


def _rows_back(
    d_out: Tensor,
    out: Tensor,
    lse: Tensor,
    bits: Tensor | None,
    qkv: Tensor,
    seed_offset: Tensor | None,
    n_heads: int,
    causal: bool,
    p: float,
    scale: float,
) -> Tensor:
    given = _given(qkv, seed_offset, n_heads, causal, p, scale)
    takes = suits_hopper_backward(given, d_out, capability(qkv.device))
    if not (may_take_gluon(qkv) and takes):
        found = attention_backward(d_out, None, out, lse, *given, False)[:3]
        return torch.stack([one.transpose(1, 2) for one in found], 2).view(qkv.shape)
    from kernels.ops.attention import hopper_backward  # which imports Gluon

    dqkv = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    hopper_backward.launch(
        *(*given[:3], out, lse, d_out, None, *heads_of(dqkv, n_heads)),
        scale=scale, causal=causal, dropout_p=p, seed_offset=seed_offset, bits=bits,
    )  # fmt: skip
    return dqkv


def _rows_back_composed(
    d_out: Tensor,
    _out: Tensor,
    _lse: Tensor,
    _bits: Tensor | None,
    qkv: Tensor,
    seed_offset: Tensor | None,
    *told: Any,
) -> Tensor:
    found = attention_gradients(_given(qkv, seed_offset, *told), d_out, None, False)[:3]
    return torch.stack([one.transpose(1, 2) for one in found], 2).view(qkv.shape)


rows_back = define(
    "attention_rows_backward(Tensor d_out, Tensor out, Tensor lse, Tensor? bits, Tensor qkv, "
    "Tensor? seed_offset, int n_heads, bool causal, float p, float scale) -> Tensor",
    _rows_back,
    lambda _d_out, _out, _lse, _bits, qkv, *_: like(qkv),
    _rows_back_composed,
    of=("attention",),
    tensors={"d_out": "BHSD", "out": "BHSD", "lse": "BHS", "bits": "NWR", **_DIMS},
)
refuse_second_derivative(
    "attention_rows_backward", "attention has here", "kernels.ops.attention.attention.attention"
)


class _Attended(torch.autograd.Function):
    """Attention of rows; they and o are kept, a number a row of scores, and a dropout's bits."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        seed_offset: Tensor | None,
        n_heads: int,
        causal: bool,
        p: float,
        keeps_bits: bool,
    ) -> Tensor:
        scale = (qkv.shape[-1] // (3 * n_heads)) ** -0.5
        ctx.told = n_heads, causal, p, scale
        out, lse, bits = rows_forward(qkv, seed_offset, *ctx.told, keeps_bits)
        if bits is not None and bits.dim() != 3:  # one element: none are there
            bits = None
        ctx.save_for_backward(qkv, out, lse, bits, seed_offset)
        rows: Tensor = out.transpose(1, 2).flatten(2)
        return rows

    @staticmethod
    def backward(ctx: Any, d_rows: Tensor) -> Any:
        qkv, out, lse, bits, seed_offset = ctx.saved_tensors
        # Not by unflatten(), which several gradients at once (`is_grads_batched`) can't pass.
        d_out = d_rows.reshape(*d_rows.shape[:-1], ctx.told[0], -1).transpose(1, 2)
        dqkv = rows_back(d_out, out, lse, bits, qkv, seed_offset, *ctx.told)
        return dqkv, None, None, None, None, None


def attended(
    qkv: Tensor,
    n_heads: int,
    causal: bool,
    p: float,
    seed_offset: Tensor | None,
    keeps_bits: bool = True,
) -> Tensor:
    """Attention of the heads in rows qkv (B, S, 3·E), rows (B, S, E); no mask but a causal one.

    Unless `keeps_bits`, the backward makes anew which weights were dropped.
    """
    result: Tensor = _Attended.apply(qkv, seed_offset, n_heads, causal, p, keeps_bits)
    return result
