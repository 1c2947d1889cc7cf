"""GEGLU: a product of two tensors, one of them through GELU (chapters 08, 09).

    y = gelu(gate) · up,   dgate = dy · up · gelu'(gate),   dup = dy · gelu(gate)
    gelu(h) = h · σ(2u) with u = √(2/π) (h + 0.044715 h³)   (tanh form), or h · Φ(h)   (erf form)

gate, up, y and all gradients have the shape (..., N). With R rows and elements of s bytes, forward
reads 2 and writes 1 times R·N·s bytes, backward reads 3 and writes 2, as in SwiGLU.

Sources: Shazeer, "GLU variants improve Transformer" (arXiv:2002.05202); Hendrycks, Gimpel,
"Gaussian Error Linear Units" (arXiv:1606.08415).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from kernels.ops.chains.gated import GELU_ERF, GELU_TANH
from kernels.ops.chains.gated_common import moves, registered
from kernels.ops.chains.gated_operators import gated_product, product_of_halves
from kernels.ops.chains.peers import liger_geglu, needs_liger_gated
from kernels.ops.shared.available import needs_gpu
from kernels.ops.shared.compiled import compiled_each
from kernels.registry import Variant, named

Tensor = torch.Tensor

_ROOT = math.sqrt(2 / math.pi)
_FORMS = {"tanh": GELU_TANH, "none": GELU_ERF}


def reference(gate: Tensor, up: Tensor, approximate: str = "tanh") -> Tensor:
    """GEGLU in float64, straight from the equation; all (..., N)."""
    gate = gate.double()
    if approximate == "none":
        return 0.5 * gate * (1 + torch.erf(gate / math.sqrt(2))) * up.double()
    return 0.5 * gate * (1 + torch.tanh(_ROOT * (gate + 0.044715 * gate**3))) * up.double()


def eager(gate: Tensor, up: Tensor) -> Tensor:
    """The maths, one PyTorch operator after the other, in fp32; returns gate's dtype."""
    h = gate.float()
    u = _ROOT * (h + 0.044715 * h * h * h)
    return (0.5 * h * (1 + torch.tanh(u)) * up.float()).to(gate.dtype)


def torch_geglu(gate: Tensor, up: Tensor) -> Tensor:
    """PyTorch's own operators: GELU, rounded to the dtype, and a product."""
    return F.gelu(gate, approximate="tanh") * up


compiled = compiled_each(torch_geglu)


def geglu(gate: Tensor, up: Tensor | None = None, approximate: str = "tanh") -> Tensor:
    """gelu(gate) · up in one launch; its backward, of both gradients, is one more.

    All else is as in `swiglu`, gate's halves without up included. `approximate` is as in
    `torch.nn.functional.gelu`: "tanh", or "none" for the form with the error function. ValueError
    for another.
    """
    if approximate not in _FORMS:
        raise ValueError(f"approximate is {approximate!r}; GELU takes 'tanh' or 'none'")
    form = _FORMS[approximate]
    result: Tensor = product_of_halves(gate, form) if up is None else gated_product(gate, up, form)
    return result


_BOTH = ("fwd", "bwd")
# An element costs 10 FLOPs forward: 5 for u, 1 to scale it, 1 for exp, 2 for the quotient, 1 for
# up; back 19: those 9, 7 for the slope, 3 for the two gradients.
OP = registered(
    "geglu",
    GELU_TANH,
    reference,
    named(
        Variant("eager", eager, _BOTH, counted="aten"),
        Variant("torch", torch_geglu, _BOTH, counted="aten"),
        Variant("compile", compiled, _BOTH, unavailable=needs_gpu),
        Variant("fused", geglu, _BOTH, counted="triton", moves=moves),
        Variant("liger", liger_geglu, _BOTH, unavailable=needs_liger_gated),
    ),
    flops=(10, 19),
)
