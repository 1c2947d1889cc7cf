"""Softmax over the last dimension, forward and backward (chapters 06, 07, 11).

    y = exp(x − max x) / Σ exp(x − max x),      dx = y · (dy − Σ dy · y)

x, y, dy and dx have the shape (..., N). With R rows and elements of s bytes, the forward pass reads
R·N·s bytes and writes as many; the backward pass reads y and dy and writes dx: 3·R·N·s. Both read a
row once while it fits the registers, and a wider one twice.

A row seen in part has the state (m, s): its largest element so far, and Σ exp(x − m). Two states
merge into M = max(m₁, m₂) and s₁ exp(m₁ − M) + s₂ exp(m₂ − M), in any order.

Source: Milakov, Gimelshein, "Online normalizer calculation for softmax" (arXiv:1805.02867).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from kernels.launch import capability
from kernels.ops.norms.common import BEYOND, SHAPES, STEPS
from kernels.ops.shared.arguments import check_norm
from kernels.ops.shared.available import MAX_AUTOTUNE_CASES, needs_gpu, needs_helion
from kernels.ops.shared.operators import (
    Gradient,
    define,
    like,
    refuse_second_derivative,
)
from kernels.ops.shared.rows import collapse_rows
from kernels.ops.softmax.backward import softmax_backward
from kernels.ops.softmax.configurations import backward_block, forward_block_of
from kernels.ops.softmax.forward import softmax_forward
from kernels.ops.softmax.peers import (
    compiled,
    helion,
    liger,
    max_autotuned,
    needs_liger_softmax,
    torch_softmax,
)
from kernels.ops.softmax.tuning import backward_candidates, candidates
from kernels.registry import (
    Backward,
    Case,
    Cost,
    Moves,
    Op,
    Pass,
    Shape,
    Tolerance,
    Variant,
    cases,
    named,
    register,
)

Tensor = torch.Tensor


def reference(x: Tensor) -> Tensor:
    """Softmax in float64, straight from the equation; x (..., N), returns float64 (..., N)."""
    x = x.double()
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def eager(x: Tensor) -> Tensor:
    """The maths, one PyTorch operator after the other, in fp32; returns x's dtype."""
    x32 = x.float()
    e = torch.exp(x32 - x32.amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def eager_backward(dy: Tensor, y: Tensor) -> Tensor:
    """The gradient of x by the equation above, in fp32; returns y's dtype."""
    dy32, y32 = dy.float(), y.float()
    return (y32 * (dy32 - (dy32 * y32).sum(-1, keepdim=True))).to(y.dtype)


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _formula(ctx: Any, dy: Tensor) -> Any:
    return _backward_operator(dy, *ctx.saved_tensors)


_define = functools.partial(
    define,
    launch=softmax_forward,
    fake=like,
    composed=eager,
    of=["softmax"],
    tensors={"x": "*N"},
    independent="*",
    checks=lambda x: check_norm(x, None, None),
)
# One operator for each case: the second keeps nothing, and answers where no gradient is asked for.
_operator_with_grad = _define(
    "softmax_with_grad(Tensor x) -> Tensor", gradient=Gradient(_save, _formula)
)
_operator = _define("softmax(Tensor x) -> Tensor", trained=_operator_with_grad)
_backward_operator = define(
    "softmax_backward(Tensor dy, Tensor y) -> Tensor",
    softmax_backward,
    lambda dy, y: like(y),
    eager_backward,
    of=["softmax"],
    tensors={"dy": "*N", "y": "*N"},
    independent="*",
)
refuse_second_derivative("softmax_backward", "softmax has", "torch.softmax")


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension of `x`, in one launch; its backward pass is one more.

    x: (..., N) in fp16, bf16 or fp32, any strides, N at least 1. The sum is in fp32. Returns a new
    contiguous tensor of x's shape and dtype, which the backward pass reads instead of x. An element
    of −inf gives 0; a row of nothing else gives NaN, as does a row that holds NaN or +inf: PyTorch
    does the same. On a GPU the kernels are compiled; on a CPU they are interpreted. ValueError or
    TypeError names the argument, what it got and what it takes; NotImplementedError if a gradient
    that backward() made is differentiated again. Inside a transform of `torch.func` and in
    forward-mode differentiation PyTorch's operators compute it, as in `eager`.

    A row of up to 16384 columns is read once, a wider one twice; going forward on Hopper and B200
    one of up to 32768 is read once too, if all rows start at multiples of 16 bytes. Leading
    dimensions that don't collapse to two strides are copied first, which is one more launch.
    """
    result: Tensor = _operator(x)
    return result


def inputs(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    *,
    mean: float = 0.5,
    spread: float = 1.5,
) -> dict[str, Any]:
    """Fresh random x (rows, N), not centred on 0."""
    generator = torch.Generator(device=device).manual_seed(seed)
    x = torch.randn(*shape, generator=generator, device=device)
    return {"x": (mean + spread * x).to(dtype)}


def forward_cost(case: Case) -> Cost:
    """What softmax must do at least: x in, y out.

    An element costs 5 FLOPs: 1 into the largest, 1 to subtract it, 1 for exp, 1 into the sum, 1 to
    divide.
    """
    rows, n_cols = case.shape
    size = rows * n_cols * case.dtype.itemsize
    return Cost(flops=5 * rows * n_cols, read_bytes=size, write_bytes=size)


def backward_cost(case: Case) -> Cost:
    """What its backward must do at least: dy and y in, dx out.

    An element costs 4 FLOPs: 2 into Σ dy · y, 1 to subtract it, 1 to multiply by y.
    """
    rows, n_cols = case.shape
    size = rows * n_cols * case.dtype.itemsize
    return Cost(flops=4 * rows * n_cols, read_bytes=2 * size, write_bytes=size)


def tolerance(case: Case, _name: str) -> Tolerance:
    """The output's rounding, and fp32 sums of N terms in a tree: log2(N) roundings, some twice.

    An element below the normal numbers is off by up to half their smallest step, whatever its own
    size; as the elements add up to 1, ‖y‖ ≥ 1/√N and max y ≥ 1/N. That decides in wide fp16 rows.
    """
    info, n_cols = torch.finfo(case.dtype), case.shape[-1]
    unit = info.eps / 2
    sums = 4 * 2.0**-24 * (2 + math.log2(max(n_cols, 2)))
    small = n_cols * unit * info.smallest_normal
    return Tolerance(relative_norm=unit + sums + small, largest=2 * unit + sums + small)


def gradient_tolerance(case: Case, name: str) -> Tolerance:
    """The roundings of y, of Σ dy · y that comes from it, and of dx: three outputs' worth.

    For gradients dy of any sign and no element of y near 1, where dy − Σ dy · y would cancel.
    """
    one = tolerance(case, name)
    return Tolerance(relative_norm=3 * one.relative_norm, largest=3 * one.largest)


def moves(case: Case, pass_: str) -> Moves:
    """One launch each way. What a block holds is asked for once, the input of a row in tiles twice.

    Forward that is x, back dy and y.
    """
    n_cols = case.shape[-1]
    if pass_ == "bwd":
        ideal, n_read, block = backward_cost(case), 2, backward_block(n_cols)
    else:
        ideal, n_read = forward_cost(case), 1
        x = torch.empty(case.shape, dtype=case.dtype)
        block = forward_block_of(collapse_rows(x), capability(x.device))
    again = n_read * ideal.write_bytes if n_cols > block.cols else 0
    return Moves(1, unique=ideal.bytes_ideal, requested=ideal.bytes_ideal + again)


_BOTH = ("fwd", "bwd")
OP = register(
    Op(
        name="softmax",
        suite="norms",
        dims="RN",
        tensors={"x": "RN"},
        outputs={"y": "RN"},
        independent="R",
        inputs=inputs,
        reference=reference,
        variants=named(
            Variant("eager", eager, _BOTH, counted="aten"),
            Variant("torch", torch_softmax, _BOTH, counted="aten"),
            Variant("compile", compiled, _BOTH, unavailable=needs_gpu),
            Variant(
                "compile_max_autotune",
                max_autotuned,
                unavailable=needs_gpu,
                cases=MAX_AUTOTUNE_CASES,
            ),
            Variant("fused", softmax, _BOTH, counted="triton", moves=moves),
            Variant("liger", liger, _BOTH, unavailable=needs_liger_softmax),
            Variant("helion", helion, unavailable=needs_helion),
        ),
        shapes=SHAPES,
        beyond=(*BEYOND, (7, 20_001), (1, 131_072)),
        forward=Pass(
            cost=forward_cost,
            tolerance=tolerance,
            cases=cases(SHAPES, "bf16") + cases([(4096, 4096), (8192, 16384)], "fp32"),
            candidates=candidates,
        ),
        backward=Backward(
            cost=backward_cost,
            tolerance=gradient_tolerance,
            cases=STEPS + cases([(4096, 4096), (16384, 8192), (8192, 16384)], "bf16"),
            candidates=backward_candidates,
            differentiates=("x",),
            train_cases=STEPS,
        ),
    )
)
