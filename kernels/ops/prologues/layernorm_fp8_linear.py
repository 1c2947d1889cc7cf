"""LayerNorm and a product in FP8 as an operation of the suite, for inference (chapter 11).

`epilogues.fp8` has the equations, the kernels and the public function, whose weights are quantised
before. Here they are kept from call to call, as folded weights are, so that the bench can time it
beside the way in 16 bits. It is held to the error that 3 bits allow, which the rows tell.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from kernels.ops.epilogues import fp8
from kernels.ops.prologues import common, layernorm_linear
from kernels.ops.shared.available import needs_gpu
from kernels.ops.shared.compiled import compiled_each
from kernels.registry import Case, Cost, Op, Pass, Shape, Tolerance, Variant, cases, named, register

Tensor = torch.Tensor

NAME = "layernorm_fp8_linear"
SHAPES: tuple[Shape, ...] = ((4096, 1024, 3072), (8192, 4096, 12288))
_FP32 = 4  # bytes of a scale
# A number of e4m3 is off by 2.6 % of itself in the mean of the squares, and a sum of products of
# two such by 3.7 % of its size; sums kept in 14 bits or so come to it.
ERROR = 0.045

_kept: WeakIdKeyDictionary = WeakIdKeyDictionary()


def kept_quantised(weight: Tensor) -> fp8.Quantised:
    """Return `fp8.quantise` of a weight (N, K), made anew only where PyTorch saw it written into.

    What is written through `.data`, or by the replay of a CUDA graph, is not seen.
    """
    stamp = weight.data_ptr(), weight._version
    known = _kept.get(weight)
    if known is not None and known[0]() is weight and known[1] == stamp:
        found: fp8.Quantised = known[2]
        return found
    quantised = fp8.quantise(weight.detach())
    if not (weight.is_cuda and torch.cuda.is_current_stream_capturing()):
        _kept[weight] = weakref.ref(weight), stamp, quantised
    return quantised


def fused_fp8(
    x: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The norm in e4m3 with a scale a row, and PyTorch's scaled product: two launches.

    x (..., K) and weight (N, K) in bf16, quantised at the first call; all as in
    `fp8.layernorm_fp8_linear`.
    """
    known = kept_quantised(weight)
    y = fp8.layernorm_fp8_linear(x, norm_weight, norm_bias, known, bias, eps)
    assert isinstance(y, Tensor)
    return y


def unavailable(device: torch.device) -> str | None:
    """Why it is not timed on a device, in one sentence; None if it is."""
    return needs_gpu(device) or fp8.needs_fp8(device)


def inputs(
    shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int
) -> dict[str, Any]:
    """Fresh random inputs as of `layernorm_linear`, in bf16; the weight is not quantised."""
    return common.inputs("layernorm_linear", shape, dtype, device, seed)


def forward_cost(case: Case) -> Cost:
    """What it must do at least: x, the norm's parameters and bias in 16 bits, the weight in 8."""
    m, k, n = case.shape
    size = case.dtype.itemsize
    return Cost(
        flops=common.forward_cost("layernorm_linear")(case).flops,
        read_bytes=(m * k + 2 * k + n) * size + n * k + n * _FP32,
        write_bytes=m * n * size,
    )


def tolerance(_case: Case, _name: str) -> Tolerance:
    """The bound on y: two factors in e4m3, whatever K is; an element may be off by more."""
    return Tolerance(relative_norm=ERROR, largest=2 * ERROR)


OP = register(
    Op(
        name=NAME,
        suite="matmul",
        dims="MKN",
        tensors={"x": "MK", "norm_weight": "K", "norm_bias": "K", "weight": "NK", "bias": "N"},
        outputs={"y": "MN"},
        independent="M",
        inputs=inputs,
        reference=layernorm_linear.reference,
        variants=named(
            Variant("eager", layernorm_linear.eager, counted="aten", cases=()),
            Variant("torch", layernorm_linear.torch_layernorm_linear, counted="aten"),
            Variant(
                "compile",
                compiled_each(layernorm_linear.torch_layernorm_linear),
                unavailable=needs_gpu,
            ),
            Variant("fused_fp8", fused_fp8, unavailable=unavailable),
        ),
        shapes=SHAPES,
        small=((16, 32, 48), (5, 16, 16), (1, 64, 32), (0, 16, 16)),
        dtypes=(torch.bfloat16,),
        forward=Pass(cost=forward_cost, tolerance=tolerance, cases=cases(SHAPES, "bf16")),
    )
)
