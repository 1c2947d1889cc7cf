"""What a LayerNorm and an RMSNorm before a product have in common: inputs, costs, the `Op`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.launch.gluon import needs_hopper
from kernels.ops.norms import common as norms
from kernels.ops.products import linear as products
from kernels.ops.prologues import moves
from kernels.ops.prologues.tuning import candidates
from kernels.ops.prologues.ways import (
    ACTIVATED,
    CENTRED,
    folded,
    folding,
    one_kernel,
    two_kernels,
)
from kernels.ops.shared.available import needs_gpu
from kernels.ops.shared.compiled import compiled_each, max_autotuned_each
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
)

Tensor = torch.Tensor

# Products as a layer of 1024 wide makes them and as a large model does, and a few rows.
SHAPES: tuple[Shape, ...] = (
    (4096, 1024, 3072),
    (16384, 1024, 3072),
    (8192, 4096, 12288),
    (16, 1024, 3072),
)
# The first two run in every layout, and there they must be quick. N is K at least, or weights
# folded before would move fewer bytes than the norm's parameters alone.
SMALL: tuple[Shape, ...] = (
    (16, 24, 32),
    (5, 17, 19),
    (17, 70, 71),
    (3, 140, 141),
    (9, 1, 3),
    (0, 16, 16),
)
WIDE, FEW_ROWS = cases(SHAPES[:3], "bf16"), cases(SHAPES[3:], "bf16")
FIRST, LAST = WIDE[:1], WIDE[2:]
_CENTRED = CENTRED | ACTIVATED
# FLOPs of an element's GELU, forward and back, as in `epilogues.linear_bias_gelu`.
_GELU = (9, 17)


def inputs(
    name: str, shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int
) -> dict[str, Any]:
    """Fresh random x (M, K) off 0, the norm's parameters (K,), weight (N, K), bias (N,)."""
    m, k, _ = shape
    names = ("x", "weight", "bias") if _CENTRED[name] else ("x", "weight")
    norm = norms.inputs(names, (m, k), dtype, device, seed)
    product = products.inputs(shape, dtype, device, seed + 1)
    told = {"x": norm.pop("x"), **{f"norm_{one}": value for one, value in norm.items()}}
    return told | {one: product[one] for one in ("weight", "bias")}


def product_alone(x: Tensor, weight: Tensor, bias: Tensor, **_: Any) -> Tensor:
    """The product of x as it is, without its norm, by PyTorch: what no way does without."""
    return torch.nn.functional.linear(x, weight, bias)


def _parameters(name: str) -> int:
    return 2 if _CENTRED[name] else 1


def _norm_names(name: str) -> tuple[str, ...]:
    return ("x", "weight", "bias")[: 1 + _parameters(name)]


def forward_cost(name: str) -> Callable[[Case], Cost]:
    """Return what it must do at least: the norm's FLOPs and the product's, nothing in between.

    x, the norm's parameters, weight and bias in, y out.
    """
    after = _GELU[0] if name in ACTIVATED else 0

    def of(case: Case) -> Cost:
        m, k, n = case.shape
        size = case.dtype.itemsize
        norm = norms.forward_cost(_norm_names(name))(Case((m, k), case.dtype))
        return Cost(
            flops=norm.flops + products.forward_cost(case).flops + after * m * n,
            read_bytes=(m * k + _parameters(name) * k + n * k + n) * size,
            write_bytes=m * n * size,
        )

    return of


def backward_cost(name: str) -> Callable[[Case], Cost]:
    """Return what it must do at least, from x and dy: the norm again, both products, the norm back.

    dy, x, the norm's parameters and weight in, a gradient of each out; with GELU also what was kept
    of it.
    """
    kept = name in ACTIVATED

    def of(case: Case) -> Cost:
        m, k, n = case.shape
        size, few = case.dtype.itemsize, _parameters(name)
        rows = Case((m, k), case.dtype)
        names = _norm_names(name)
        flops = norms.forward_cost(names)(rows).flops + norms.backward_cost(names)(rows).flops
        return Cost(
            flops=flops + products.backward_cost(case).flops + kept * _GELU[1] * m * n,
            read_bytes=((1 + kept) * m * n + m * k + few * k + n * k) * size,
            write_bytes=(m * k + few * k + n * k + n) * size,
        )

    return of


def _tolerance(dtype: torch.dtype, roundings: int, terms: int, columns: int) -> Tolerance:
    """So many roundings to `dtype`, and fp32 sums: a product's of `terms`, a norm's of `columns`.

    Tensor cores cut off where they add; see `products.linear`.
    """
    unit = torch.finfo(dtype).eps / 2
    sums = 2.0**-22 * (2 + math.sqrt(terms)) + 8 * 2.0**-24 * (2 + math.log2(max(columns, 2)))
    return Tolerance(roundings * unit + 2 * sums, 2 * roundings * unit + 4 * sums)


def tolerance(case: Case, _name: str, activated: bool = False) -> Tolerance:
    """The bound on y: what is normalised is rounded, or the folded weights are, and y is.

    Operator by operator (`eager`) the product is rounded too before the bias is added, and before
    GELU, whose slope is 1.13 at most.
    """
    _, k, _ = case.shape
    return _tolerance(case.dtype, 3 + 2 * activated, k, k)


def gradient_tolerance(case: Case, name: str, activated: bool = False) -> Tolerance:
    """The bound on a gradient's error: that of the normalised rows is rounded on the way back.

    It is a sum of N terms; weight's and bias's are sums over M rows, of rounded terms. With GELU
    what is kept of it is rounded, and the gradient of that.
    """
    m, k, n = case.shape
    terms = m if name in ("weight", "bias") else n
    return _tolerance(case.dtype, 4 + 3 * activated, terms, max(k, m))


def op_of(
    name: str,
    reference: Callable[..., Tensor],
    public: Callable[..., Callable[..., Tensor]],
    eager: Callable[..., Tensor],
    torch_: Callable[..., Tensor],
) -> Op:
    """Return the `Op` of a norm and a product; `public(way)` gives a way the norm's arguments."""
    centred, activated = _CENTRED[name], name in ACTIVATED
    both, folds = ("fwd", "bwd"), ("fwd",) if activated else ("fwd", "train")
    plain = name == "layernorm_linear"  # the others in fewer cells: they differ from it by little
    few: Sequence[str] = ("norm_weight", "norm_bias")[: _parameters(name)]
    told = {"x": "MK", **dict.fromkeys(few, "K"), "weight": "NK", "bias": "N"}

    def moved(by: Callable[..., Moves]) -> Callable[[Case, str], Moves]:
        return functools.partial(by, centred=centred)

    in_two = moves.activated_moves if activated else moved(moves.two_kernels_moves)

    return Op(
        name=name,
        suite="matmul",
        dims="MKN",
        tensors=told,
        outputs={"y": "MN"},
        independent="M",
        inputs=functools.partial(inputs, name),
        reference=reference,
        variants=named(
            Variant("eager", eager, both, counted="aten", cases=FIRST),
            # What F.rms_norm launches is decided on the card.
            Variant("torch", torch_, both, counted="aten" if centred else ""),
            Variant("product_alone", product_alone, counted="aten", part=True),
            Variant("compile", compiled_each(torch_), both, unavailable=needs_gpu),
            Variant(
                "compile_max_autotune",
                max_autotuned_each(torch_),
                unavailable=needs_gpu,
                cases=FIRST if centred else (),  # setting it up takes long
            ),
            Variant(
                "one_kernel",
                public(one_kernel),
                counted="triton",
                cases=FIRST + FEW_ROWS,
                moves=moved(moves.one_kernel_moves),
            ),
            Variant(
                "one_kernel_folding",
                public(folding),
                folds,
                counted="triton",
                cases=FIRST,
                fits=moves.in_16_bits,
                moves=moved(moves.folding_moves),
            ),
            Variant(
                "one_kernel_folded",
                public(folded),
                counted="triton",
                fits=moves.in_16_bits,
                moves=moved(moves.folded_moves),
            ),
            Variant("two_kernels", public(two_kernels), both, counted="triton", moves=in_two),
            Variant(
                "fused_hopper_folding",
                public(functools.partial(folding, hopper=True)),
                folds,
                counted="formula",
                cases=WIDE,
                moves=moved(moves.hopper_folding_moves),
                unavailable=needs_hopper,
                fits=moves.suits,
            ),
            Variant(
                "fused_hopper",
                public(functools.partial(folded, hopper=True)),
                counted="formula",
                moves=moved(moves.hopper_moves),
                unavailable=needs_hopper,
                fits=moves.suits,
            ),
        ),
        shapes=SHAPES,
        small=SMALL,
        forward=Pass(
            cost=forward_cost(name),
            tolerance=functools.partial(tolerance, activated=activated),
            cases=WIDE + FEW_ROWS + cases(SHAPES[:1], "fp16") if plain else FIRST + LAST + FEW_ROWS,
            candidates=candidates(torch_, centred, activated),
        ),
        backward=Backward(
            cost=backward_cost(name),
            tolerance=functools.partial(gradient_tolerance, activated=activated),
            cases=FIRST,
            differentiates=("x", *few, "weight", "bias"),
            train_cases=WIDE if plain else FIRST,
        ),
    )
