"""A chain of element-wise steps: y = residual + dropout(gelu(x + bias)) (chapters 05, 08).

    h = x + bias,   g = h / (1 + exp(−2u)) with u = √(2/π) (h + 0.044715 h³)   (GELU, tanh form)
    d = g · 65536 / (65536 − T) where the element is kept, else 0,   y = residual + d

    dx = dropout(dy) · gelu'(h),   dbias = Σ dx over all rows,   dresidual = dy

x, residual and y have the shape (..., N), bias has N elements. One pass over memory reads x and
residual and writes y: 3 times R·N·s bytes for elements of s bytes. Step by step, each of the four
reads and writes a tensor: 9 times. Which elements are kept is Philox's (see `kernels/philox.py`):
the backward makes the mask again from the seed and the offset, so it reads dy and x and writes dx.

Sources: Hendrycks, Gimpel, "Gaussian Error Linear Units" (arXiv:1606.08415); Srivastava et al.,
"Dropout" (JMLR 15, 2014).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from kernels.ops.chains import bias_gelu_dropout_residual_cuda as in_cuda
from kernels.ops.chains.bias_gelu import NAME, operator, simple, strips_over
from kernels.ops.chains.tuning import bias_gelu_backward_candidates, bias_gelu_candidates
from kernels.ops.shared.available import needs_cuda, needs_gpu
from kernels.ops.shared.compiled import compiled_each
from kernels.philox import kept_elements, scale
from kernels.registry import (
    Backward,
    Case,
    Cost,
    Moves,
    Op,
    Pass,
    Random,
    Shape,
    Tolerance,
    Variant,
    cases,
    named,
    register,
)

Tensor = torch.Tensor

_ROOT = math.sqrt(2 / math.pi)


def _gelu(h: Tensor) -> Tensor:
    return 0.5 * h * (1 + torch.tanh(_ROOT * (h + 0.044715 * h**3)))


def outcomes(
    x: Tensor, bias: Tensor, residual: Tensor, p: float, seed_offset: Tensor
) -> tuple[Tensor, Tensor]:
    """What y is where an element is kept, and where it is dropped, in float64.

    A generator of another kind keeps a share of exactly 1 − p, and scales by its inverse.
    """
    dropped = residual.double()
    return dropped + _gelu(x.double() + bias.double()) / (1 - p if p < 1 else math.inf), dropped


def reference(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    p: float,
    seed_offset: Tensor,
    first_row: int = 0,
) -> Tensor:
    """The chain in float64; `first_row` is the place of x's first row in the whole tensor."""
    kept = kept_elements(tuple(x.shape), p, seed_offset, first_row * x.shape[-1])
    return residual.double() + _gelu(x.double() + bias.double()) * scale(p) * kept


def eager(x: Tensor, bias: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> Tensor:
    """The maths, one PyTorch operator after the other, in fp32; a mask of PyTorch's own."""
    h = x.float() + bias.float()
    u = _ROOT * (h + 0.044715 * h * h * h)
    g = 0.5 * h * (1 + torch.tanh(u))
    kept = torch.rand_like(g) >= p
    d = g * kept / (1 - p)
    return (residual.float() + d).to(x.dtype)


def torch_chain(x: Tensor, bias: Tensor, residual: Tensor, p: float, seed_offset: Tensor) -> Tensor:
    """PyTorch's operator for each step; a mask of PyTorch's own."""
    return residual + F.dropout(F.gelu(x + bias, approximate="tanh"), p)


compiled = compiled_each(torch_chain)


def bias_gelu_dropout_residual(
    x: Tensor, bias: Tensor, residual: Tensor, p: float, seed_offset: Tensor
) -> Tensor:
    """residual + dropout(gelu(x + bias), p), in one launch of a kernel in Triton.

    x, residual: (..., N) in fp16, bf16 or fp32, any strides, N at least 1. bias: (N,) in the same
    dtype. p: the probability to drop, 0 to 1; at 0 no random numbers are drawn. seed_offset: int64
    (2,), the seed and the number of the call, in the memory of x's device: a captured graph draws
    another mask when it is given other numbers there. GELU in its tanh form; arithmetic in fp32.
    Returns a new contiguous tensor of x's shape and dtype.

    The backward makes the mask again from seed_offset as it stands then: change it between steps,
    not between a forward and its backward (PyTorch raises RuntimeError where it sees that). Rows
    of a width that is no multiple of 8 take a call of Philox for each element. Tensors with gaps
    between their columns, or with more than one distance between their rows, are copied first.
    ValueError or TypeError names the argument, what it got and what it takes; NotImplementedError
    if a gradient that backward() made is differentiated again. Inside a transform of `torch.func`
    and in forward-mode differentiation PyTorch's operators compute it, with the same mask.
    """
    result: Tensor = operator(x, bias, residual, p, seed_offset)
    return result


def inputs(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    *,
    p: float = 0.1,
) -> dict[str, Any]:
    """Fresh random x, residual (rows, N), bias (N,), a seed, and the probability to drop."""
    rows, n_cols = shape
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device).to(dtype)

    return {
        "x": normal(rows, n_cols),
        "bias": normal(n_cols),
        "residual": normal(rows, n_cols),
        "p": p,
        "seed_offset": torch.tensor([seed + 2**40, 3], device=device),
    }


def cost(case: Case) -> Cost:
    """What the chain must do at least.

    An element costs 12 FLOPs: 1 for bias, 5 for u, 1 exp, 1 to scale its argument, 2 for the
    quotient, 1 for dropout's factor, 1 for the residual. Random numbers are integer work, and
    counted nowhere here. The seed's 16 bytes are read once.
    """
    rows, n_cols = case.shape
    return Cost(
        flops=12 * rows * n_cols,
        read_bytes=(2 * rows + 1) * n_cols * case.dtype.itemsize + 16,
        write_bytes=rows * n_cols * case.dtype.itemsize,
    )


def tolerance(case: Case, _name: str) -> Tolerance:
    """A rounding to the dtype at each of four steps, and fp32's own in between."""
    unit = torch.finfo(case.dtype).eps / 2
    return Tolerance(relative_norm=4 * unit + 2.0**-20, largest=8 * unit + 2.0**-20)


def backward_cost(case: Case) -> Cost:
    """What its backward must do at least: dy, x and bias in, dx and dbias out.

    An element costs 22 FLOPs: 1 for bias, 8 for σ, 9 for the slope, 2 for dropout's factor and the
    product, 1 into dbias, 1 to compare. The residual's gradient is dy, and no bytes.
    """
    rows, n_cols = case.shape
    return Cost(
        flops=22 * rows * n_cols,
        read_bytes=(2 * rows + 1) * n_cols * case.dtype.itemsize + 16,
        write_bytes=(rows + 1) * n_cols * case.dtype.itemsize,
    )


def gradient_tolerance(case: Case, _name: str) -> Tolerance:
    """A gradient's rounding, and fp32's own: a dozen on the way, and a sum over all rows."""
    unit = torch.finfo(case.dtype).eps / 2
    sums = 2.0**-20 + 4 * 2.0**-24 * math.log2(max(case.shape[0], 2))
    return Tolerance(relative_norm=unit + sums, largest=2 * unit + 2 * sums)


def fused_moves(case: Case, pass_: str) -> Moves:
    """Forward each tensor once; back the sums of bias too, which are written and read again."""
    n_cols = case.shape[1]
    _, _n_strips, chunks, _ = strips_over(torch.empty(case.shape, dtype=case.dtype), None)
    if pass_ == "fwd":
        return Moves(1, unique=cost(case).bytes_ideal)
    return Moves(2, unique=backward_cost(case).bytes_ideal + 2 * chunks * n_cols * 4)


def one_launch_moves(case: Case, _pass: str) -> Moves:
    """Each tensor once."""
    return Moves(1, unique=cost(case).bytes_ideal)


def four_launch_moves(case: Case, _pass: str) -> Moves:
    """A tensor in and a tensor out at each step; bias, the seed and the residual beside them."""
    rows, n_cols = case.shape
    return Moves(4, unique=(9 * rows + 1) * n_cols * case.dtype.itemsize + 16)


_BOTH = ("fwd", "bwd")
OP = register(
    Op(
        name=NAME,
        suite="pointwise",
        dims="RN",
        tensors={"x": "RN", "bias": "N", "residual": "RN"},
        outputs={"y": "RN"},
        independent="R",
        inputs=inputs,
        reference=reference,
        variants=named(
            Variant("eager", eager, _BOTH, counted="aten", own_random=True),
            Variant("torch", torch_chain, _BOTH, counted="aten", own_random=True),
            Variant("compile", compiled, _BOTH, unavailable=needs_gpu, own_random=True),
            Variant(
                "fused_simple",
                simple,
                counted="triton",
                moves=one_launch_moves,
                own_random=True,
            ),
            Variant(
                "fused",
                bias_gelu_dropout_residual,
                _BOTH,
                counted="triton",
                moves=fused_moves,
            ),
            *(
                Variant(name, fn, counted="cuda", unavailable=needs_cuda, moves=moves)
                for name, fn, moves in (
                    ("unfused_cuda", in_cuda.unfused, four_launch_moves),
                    ("cuda_1", in_cuda.one_launch, one_launch_moves),
                    ("fused_cuda", in_cuda.fused, one_launch_moves),
                )
            ),
            Variant(
                "stateful_cuda",
                in_cuda.stateful,
                unavailable=in_cuda.needs_curand,
                cases=in_cuda.STATEFUL_CASES,
                own_random=True,
            ),
        ),
        shapes=((2048, 4096), (4096, 4096), (16384, 8192)),
        beyond=((33, 1000), (7, 20001)),
        forward=Pass(cost=cost, tolerance=tolerance, candidates=bias_gelu_candidates),
        backward=Backward(
            cost=backward_cost,
            tolerance=gradient_tolerance,
            cases=cases([(4096, 4096), (16384, 8192)], "bf16"),
            candidates=bias_gelu_backward_candidates,
            differentiates=("x", "bias", "residual"),
        ),
        random=Random(outcomes),
    )
)
