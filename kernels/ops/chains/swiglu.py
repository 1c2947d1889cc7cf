"""SwiGLU: a product of two tensors, one of them through SiLU (chapters 08, 09).

    y = gate · σ(gate) · up with σ(g) = 1 / (1 + exp(−g))
    dgate = dy · up · (s + gate · s · (1 − s)) with s = σ(gate),   dup = dy · gate · s

gate, up, y and all gradients have the shape (..., N). With R rows and elements of s bytes, forward
reads 2 and writes 1 times R·N·s bytes, backward reads 3 and writes 2. In two steps, SiLU and a
product, forward moves 5 and backward 8 or more.

Source: Shazeer, "GLU variants improve Transformer" (arXiv:2002.05202).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.ops.chains.gated import SILU
from kernels.ops.chains.gated_common import moves, registered
from kernels.ops.chains.gated_operators import gated_product, product_of_halves
from kernels.ops.chains.peers import liger_swiglu, needs_liger_gated
from kernels.ops.shared.available import MAX_AUTOTUNE_CASES, needs_gpu
from kernels.ops.shared.compiled import compiled_each, max_autotuned_each
from kernels.registry import Variant, named

Tensor = torch.Tensor


def reference(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU in float64, straight from the equation; all (..., N)."""
    gate = gate.double()
    return gate * torch.sigmoid(gate) * up.double()


def eager(gate: Tensor, up: Tensor) -> Tensor:
    """The maths, one PyTorch operator after the other, in fp32; returns gate's dtype."""
    gate32 = gate.float()
    share = 1 / (1 + torch.exp(-gate32))
    return (gate32 * share * up.float()).to(gate.dtype)


def torch_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """PyTorch's own operators: SiLU, rounded to the dtype, and a product."""
    return F.silu(gate) * up


compiled = compiled_each(torch_swiglu)
max_autotuned = max_autotuned_each(torch_swiglu)


def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """silu(gate) · up in one launch; its backward, of both gradients, is one more.

    gate, up: (..., N) of one shape and dtype, fp16, bf16 or fp32, any strides, N at least 1.
    Without up, gate is (..., 2N): its first half is the gate, the second what the gate is for, and
    its gradient is one tensor, as it is. Arithmetic is in fp32. Returns a new contiguous tensor
    (..., N) of gate's dtype. Tensors with gaps between their columns, or with more than one
    distance between their rows, are copied first. ValueError or TypeError names the argument, what
    it got and what it takes; NotImplementedError if a gradient that backward() made is
    differentiated again. Inside a transform of `torch.func` and in forward-mode differentiation
    PyTorch's operators compute it.
    """
    result: Tensor = product_of_halves(gate, SILU) if up is None else gated_product(gate, up, SILU)
    return result


_BOTH = ("fwd", "bwd")
# An element costs 5 FLOPs forward: 1 for exp, 1 to add, 1 for the quotient, 1 for its argument, 1
# for up; back 11: those of s and its product with gate, 4 for the slope, 3 for the two gradients.
OP = registered(
    "swiglu",
    SILU,
    reference,
    named(
        Variant("eager", eager, _BOTH, counted="aten"),
        Variant("torch", torch_swiglu, _BOTH, counted="aten"),
        Variant("compile", compiled, _BOTH, unavailable=needs_gpu),
        Variant(
            "compile_max_autotune", max_autotuned, unavailable=needs_gpu, cases=MAX_AUTOTUNE_CASES
        ),
        Variant("fused", swiglu, _BOTH, counted="triton", moves=moves),
        Variant("liger", liger_swiglu, _BOTH, unavailable=needs_liger_gated),
    ),
    flops=(5, 11),
)
