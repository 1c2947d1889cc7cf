"""A product with bias and GELU behind it, y = gelu(x · wᵀ + b), forward and backward (chapter 11).

    h = x · wᵀ + b,   y = gelu(h),   dh = dy · gelu'(h)
    dx = dh · w,      dw = dhᵀ · x,  db = Σ dh over the rows

x has the shape (..., K), w (N, K) as `torch.nn.Linear` keeps it, b (N,), y (..., N). With M rows
and elements of s bytes, forward must move (M·K + N·K + N + M·N)·s bytes. In two launches h is
written and read again, 2·M·N·s bytes more. Here GELU is taken of the sums in fp32 before they leave
their registers: h is never rounded, and never leaves. What a backward needs of it is told in
`gelu_operators`.

Source: Hendrycks, Gimpel, "Gaussian Error Linear Units" (arXiv:1606.08415).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from kernels.launch.gluon import needs_hopper
from kernels.ops.chains.bias_gelu import gelu_by_operators
from kernels.ops.epilogues import common
from kernels.ops.epilogues.configurations import Finish, finishes_to_try
from kernels.ops.epilogues.forward import launch, launch_simple, with_gelu
from kernels.ops.epilogues.gelu_operators import NAME, composed, launched
from kernels.ops.epilogues.moves import Followed, activation_step, back_through_product
from kernels.ops.epilogues.operators import gelu_form, ways
from kernels.ops.epilogues.peers import (
    compiled_bias_gelu,
    max_autotuned_bias_gelu,
    torch_bias_gelu,
)
from kernels.ops.products.configurations import BY_TORCH, EVERYWHERE, HOPPER, TORCH, Tiling, Ways
from kernels.ops.products.operators import check
from kernels.ops.products.tuning import forward_to_try
from kernels.ops.shared.arguments import refuse_gradients
from kernels.ops.shared.available import needs_gpu
from kernels.registry import (
    Backward,
    Case,
    Cost,
    Moves,
    Op,
    Pass,
    Tolerance,
    Variant,
    cases,
    named,
    register,
)

Tensor = torch.Tensor


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "tanh"
) -> Tensor:
    """The product and GELU in float64, straight from the equations; returns float64 (..., N)."""
    h = x.double() @ weight.double().T
    h = h if bias is None else h + bias.double()
    if approximate == "none":
        return 0.5 * h * (1 + torch.erf(h * 0.5**0.5))
    return gelu_by_operators(h)


def eager(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "tanh"
) -> Tensor:
    """The maths, one PyTorch operator after the other; GELU in fp32."""
    h = x @ weight.T
    h = (h if bias is None else h + bias).float()
    if approximate == "none":
        return (0.5 * h * (1 + torch.erf(h * 0.5**0.5))).to(x.dtype)
    return gelu_by_operators(h).to(x.dtype)


def fused_simple(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "tanh"
) -> Tensor:
    """The kernel of the page: a tile a program by plain pointers; arguments as below."""
    activation = gelu_form(approximate)
    check(x, weight, bias)
    refuse_gradients(NAME, x, weight, bias, instead="the variant fused")
    given, (y, _) = with_gelu(x, weight, bias, activation, keeps=False)
    launch_simple(given)
    return y


def fused(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "tanh"
) -> Tensor:
    """The fastest in Triton, forward and back, on any card; arguments as of the public one."""
    return launched(x, weight, bias, gelu_form(approximate), EVERYWHERE)


def fused_hopper(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "tanh"
) -> Tensor:
    """The kernel written for Hopper, where `suits_hopper` takes it; elsewhere `fused`."""
    return launched(x, weight, bias, gelu_form(approximate), Ways(HOPPER, TORCH, TORCH))


def linear_bias_gelu(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "tanh"
) -> Tensor:
    """gelu(x · weightᵀ + bias) in one launch; its backward is one for GELU, one for each product.

    x: (..., K) in fp16, bf16 or fp32, any strides, K at least 1. weight: (N, K); bias: (N,) or
    None; all of one dtype. `approximate` is as in `torch.nn.functional.gelu`: "tanh", or "none" for
    the form with the error function. Sums and GELU are in fp32, and fp32 is multiplied in full.
    Returns a new contiguous tensor (..., N) of x's dtype. It takes the faster kernels on the card
    at hand by one rule, `configurations.WAYS`; on a CPU the kernels are interpreted. ValueError or
    TypeError names the argument, what it got and what it takes; NotImplementedError if a gradient
    that our backward made is differentiated again. Inside a transform of `torch.func` and in
    forward-mode differentiation PyTorch's operators compute it. Rows are copied first where
    `kernels.ops.products.linear.linear` copies them.
    """
    by, activation = ways(x), gelu_form(approximate)
    if by == BY_TORCH:
        check(x, weight, bias)
        return composed(x, weight, bias, activation)
    return launched(x, weight, bias, activation, by)


# An element costs 9 FLOPs forward behind its bias: 5 for u, 1 to scale it, 1 for exp, 2 for the
# quotient; back 17: those 9, 7 for the slope, 1 for dy.
def forward_cost(case: Case) -> Cost:
    """What it must do at least: x, weight and bias in, y out; an FMA a term."""
    (m, k, n), size = case.shape, case.dtype.itemsize
    return Cost(2 * m * n * k + 10 * m * n, (m * k + n * k + n) * size, m * n * size)


def backward_cost(case: Case) -> Cost:
    """What both products back must do at least: dy, what was kept, x and weight in, three out."""
    (m, k, n), size = case.shape, case.dtype.itemsize
    return Cost(
        flops=4 * m * n * k + 18 * m * n,
        read_bytes=(2 * m * n + m * k + n * k) * size,
        write_bytes=(m * k + n * k + n) * size,
    )


def gradient_tolerance(case: Case, name: str) -> Tolerance:
    """h is rounded, dh and the gradient; sums of N terms for x, of M for weight and bias."""
    return common.gradient_bound(case.shape, case.dtype, name, roundings=3)


def moves(case: Case, pass_: str) -> Moves:
    """What `fused` moves, forward or back."""
    (m, k, n), size = case.shape, case.dtype.itemsize
    if pass_ == "bwd":
        back = back_through_product(m, k, n, case.dtype, sums=True)
        return Moves.of(activation_step(m, n, size), *back)
    return Moves.of(_followed(case).step())


def _followed(case: Case) -> Followed:
    return Followed(case.shape, case.dtype.itemsize, biased=True, activated=True)


def simple_moves(case: Case, _pass: str) -> Moves:
    """What the kernel of the page moves."""
    return _followed(case).by_simple()


def hopper_moves(case: Case, _pass: str) -> Moves:
    """What the kernel written for Hopper moves."""
    return _followed(case).by_hopper()


def suits(case: Case) -> bool:
    """Whether that kernel takes a case, rows side by side."""
    return _followed(case).suits()


def candidates(case: Case) -> dict[str, Any]:
    """The tilings of the forward in a case, and how the kernel for Hopper may finish: functions."""

    def run(tiling: Tiling, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        given, (y, _) = with_gelu(x, weight, bias, gelu_form("tanh"), keeps=False)
        launch(given, tiling)
        return y

    def by_hand(finish: Finish, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        given, (y, _) = with_gelu(x, weight, bias, gelu_form("tanh"), keeps=False)
        launch(given, hopper=True, finish=finish)
        return y

    tried = {name: functools.partial(run, one) for name, one in forward_to_try(case).items()}
    if suits(case):
        ways = finishes_to_try(gelu_form("tanh"))
        tried |= {one.name: functools.partial(by_hand, one) for one in ways}
    return {"PyTorch": torch_bias_gelu, **tried}


_BOTH = ("fwd", "bwd")
OP = register(
    Op(
        name=NAME,
        suite="matmul",
        dims="MKN",
        tensors={"x": "MK", "weight": "NK", "bias": "N"},
        outputs={"y": "MN"},
        independent="M",
        inputs=common.given,
        reference=reference,
        variants=named(
            Variant("eager", eager, _BOTH, counted="aten", cases=common.FIRST),
            Variant("torch", torch_bias_gelu, _BOTH, counted="aten"),
            Variant("compile", compiled_bias_gelu, _BOTH, unavailable=needs_gpu),
            Variant(
                "compile_max_autotune",
                max_autotuned_bias_gelu,
                unavailable=needs_gpu,
                cases=common.FIRST,
            ),
            Variant("fused_simple", fused_simple, counted="triton", moves=simple_moves),
            Variant("fused", fused, _BOTH, counted="triton", moves=moves),
            Variant(
                "fused_hopper",
                fused_hopper,
                counted="formula",
                moves=hopper_moves,
                unavailable=needs_hopper,
                fits=suits,
            ),
        ),
        shapes=common.SHAPES,
        beyond=common.BEYOND,
        small=common.SMALL,
        forward=Pass(
            cost=forward_cost,
            tolerance=common.tolerance,
            cases=cases(common.SHAPES, "bf16"),
            candidates=candidates,
        ),
        backward=Backward(
            cost=backward_cost,
            tolerance=gradient_tolerance,
            cases=common.FIRST,
            differentiates=("x", "weight", "bias"),
            train_cases=common.FIRST,
        ),
    )
)
