"""The loss over a large vocabulary, its logits never whole, forward and backward (chapter 13).

    l = x · wᵀ,   lse = log Σ exp(l),   loss = lse − l[target],
    dl = (softmax(l) − onehot(target)) / n,      dx = dl · w,      dw = dlᵀ · x

x has the shape (T, K), w (V, K) as `torch.nn.Linear` keeps it, targets (T,). n is how many targets
there are beside `ignore_index`, for the mean. Forward must move (T·K + V·K)·size bytes and does
2·T·K·V FLOPs, backward twice as many. The logits are T·V numbers, for 8192 tokens and 131,072 words
4.3 GB in fp32: far more than all that the loss depends on. Here C tokens at a time have theirs, in
one buffer of C·V numbers, in which their gradient takes the place of the logits before the buffer
goes to the next C tokens. Each chunk reads w twice and adds to dw, so that fewer chunks move fewer
bytes, in a larger buffer.

Keeping the logits for the backward costs T·V numbers, computing them again a third product more
than the two of the backward. Neither is needed where the gradient of the loss is one number: the
forward has all that dx and dw are made of at hand, computes them for an upstream gradient of 1, and
the backward multiplies (`configurations.at_once`).

Sources: Hsu et al., "Liger Kernel" (arXiv:2410.10989); Wijmans et al., "Cut your losses in
large-vocabulary language models" (arXiv:2411.09009).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kernels.ops.losses import chunks
from kernels.ops.losses.moves import moves, simple_moves
from kernels.ops.losses.operators import check, check_words, loss_of_logits, operator
from kernels.ops.losses.peers import compiled, liger, needs_liger_loss, torch_loss
from kernels.ops.losses.tuning import candidates, train_candidates
from kernels.ops.shared.arguments import refuse_gradients
from kernels.ops.shared.available import needs_gpu
from kernels.ops.shared.operators import needs_gradient
from kernels.registry import (
    Backward,
    Case,
    Cost,
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

IGNORED = -100  # as PyTorch has it
# A small model's, and two of the sizes of large ones.
SHAPES: tuple[Shape, ...] = ((2048, 512, 16384), (8192, 2048, 32768), (8192, 4096, 131_072))


def reference(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The loss in float64, straight from the equation; arguments as of `linear_cross_entropy`."""
    logits = x.double() @ weight.double().T
    return loss_of_logits(logits, targets, ignore_index, label_smoothing, reduction)


def eager(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The maths, one PyTorch operator after the other; the logits in fp32. The mean."""
    logits = (x @ weight.T).float()
    return loss_of_logits(logits, targets, IGNORED, 0.0, "mean").to(x.dtype)


def fused_simple(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The kernel of the page: the mean loss alone, forward, no logit in memory."""
    check(x, weight, targets)
    refuse_gradients("linear_cross_entropy", x, weight, instead="torch.nn.functional.cross_entropy")
    if len(x) == 0:
        raise ValueError(f"x has the shape {tuple(x.shape)}; this kernel takes 1 token or more")
    return chunks.simple(x, weight, targets, IGNORED, mean=True)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`F.cross_entropy(F.linear(x, weight), targets)`, a chunk of tokens' logits at a time.

    x: (T, K) in fp16, bf16 or fp32, K at least 1. weight: (V, K) of x's dtype, V at least 1. Any
    strides; where rows' elements don't lie side by side a tensor is copied first. targets: int64
    (T,), words from 0 to V − 1 or `ignore_index`, whose tokens have the loss 0 and exactly zero
    gradients. reduction: "mean" over the targets that there are, "sum", or "none". label_smoothing:
    0 to 1, as PyTorch's. Returns x's dtype, () or for "none" (T,); the sums are in fp32. The mean
    of no targets is NaN, and its gradients 0.

    A target that is no word raises ValueError on a CPU. On a GPU that would make every call wait:
    there its loss and its gradients are NaN, and so is what they are summed into.

    With gradients, in bf16 and fp32, "mean" and "sum" compute those in the forward, three products,
    and keep them; the backward multiplies them by its upstream gradient. "none" and fp16 compute
    the logits again going back, four products. Logits and their gradients are rounded to x's dtype,
    as PyTorch's, and dw once a chunk, of which there are 8 at most. On a GPU the products are
    PyTorch's, in fp32 as `torch.backends.cuda.matmul` says; on a CPU all is interpreted. Inside a
    transform of `torch.func` and in forward-mode differentiation PyTorch's operators compute it,
    with all logits. ValueError or TypeError names the argument, what it got and what it takes;
    NotImplementedError if a gradient that backward() made is differentiated again.
    """
    check(x, weight, targets, ignore_index, label_smoothing, reduction)
    check_words(targets, len(weight), ignore_index)
    wants = needs_gradient(x), needs_gradient(weight)
    found = operator(x, weight, targets, ignore_index, float(label_smoothing), reduction, *wants)
    loss: Tensor = found[0] if isinstance(found, tuple) else found
    return loss


def inputs(
    shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int
) -> dict[str, Any]:
    """Fresh random x (T, K), weight (V, K) scaled by 1/√K, and targets; one of seven is ignored."""
    tokens, width, n_words = shape
    generator = torch.Generator(device=device).manual_seed(seed)

    def random(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, device=device)

    targets = torch.randint(n_words, (tokens,), generator=generator, device=device)
    ignored = torch.arange(tokens, device=device) % 7 == 3
    return {
        "x": random(tokens, width).to(dtype),
        "weight": (random(n_words, width) * width**-0.5).to(dtype),
        "targets": targets.masked_fill(ignored, IGNORED),
    }


def forward_cost(case: Case) -> Cost:
    """What the loss must do at least: x, weight and targets in, a number out.

    The product is an FMA a term; a logit costs 4 FLOPs more: 1 into the largest, 1 to subtract it,
    1 for exp, 1 into the sum.
    """
    tokens, width, n_words = case.shape
    size = case.dtype.itemsize
    return Cost(
        flops=2 * tokens * n_words * width + 4 * tokens * n_words,
        read_bytes=(tokens * width + n_words * width) * size + 8 * tokens,
        write_bytes=size,
    )


def backward_cost(case: Case) -> Cost:
    """What both products back must do at least, with logits at hand: x, weight in, two out.

    A logit's gradient costs 2 FLOPs, to divide its exponential and to scale it.
    """
    tokens, width, n_words = case.shape
    both = (tokens * width + n_words * width) * case.dtype.itemsize
    return Cost(
        flops=4 * tokens * n_words * width + 2 * tokens * n_words,
        read_bytes=both + 8 * tokens + case.dtype.itemsize,
        write_bytes=both,
    )


def _tolerance(dtype: torch.dtype, terms: int, roundings: int) -> Tolerance:
    """Roundings to the dtype, and sums of so many terms in fp32, as of `linear`."""
    unit = torch.finfo(dtype).eps / 2
    sums = 2.0**-22 * (2 + math.sqrt(terms))
    return Tolerance(relative_norm=roundings * unit + sums, largest=4 * roundings * unit + 4 * sums)


def tolerance(case: Case, _name: str) -> Tolerance:
    """The roundings of the target's logit, of the losses' mean and of the output."""
    return _tolerance(case.dtype, case.shape[1] + case.shape[2], 4)


def gradient_tolerance(case: Case, name: str) -> Tolerance:
    """The roundings of a logit, which changes its weight by |l| units, of its gradient, of the sum.

    dw is rounded once a chunk, its sum so far.
    """
    tokens, _, n_words = case.shape
    return _tolerance(case.dtype, n_words if name == "x" else tokens, 4)


_BOTH, _STEP = ("fwd", "bwd"), ("fwd", "train")
OP = register(
    Op(
        name="linear_cross_entropy",
        suite="losses",
        dims="TKV",
        tensors={"x": "TK", "weight": "VK", "targets": "T"},
        outputs={"loss": ""},
        inputs=inputs,
        reference=reference,
        variants=named(
            Variant("eager", eager, _BOTH, counted="aten"),
            Variant("torch", torch_loss, _BOTH, counted="aten"),
            Variant("compile", compiled, _BOTH, unavailable=needs_gpu),
            Variant("fused_simple", fused_simple, counted="triton", moves=simple_moves),
            Variant("fused", linear_cross_entropy, _STEP, counted="triton", moves=moves),
            Variant("liger", liger, _STEP, unavailable=needs_liger_loss, waits=True),
        ),
        shapes=SHAPES,
        beyond=((1, 1024, 50_257), (1000, 1001, 1003), (8192, 4096, 128_256)),
        small=(
            (64, 48, 32),
            (33, 70, 17),
            (150, 64, 264),
            (1, 17, 5),
            (16, 24, 2500),
            (5, 1, 3),
            (3, 1, 1),
        ),
        forward=Pass(
            cost=forward_cost,
            tolerance=tolerance,
            cases=cases(SHAPES, "bf16"),
            candidates=candidates,
        ),
        backward=Backward(
            cost=backward_cost,
            tolerance=gradient_tolerance,
            cases=(),
            candidates=train_candidates,
            differentiates=("x", "weight"),
            train_cases=cases(SHAPES, "bf16"),
        ),
    )
)
