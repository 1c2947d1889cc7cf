"""Chains of chapter 08 for the fusion explorer: element by element, and behind a norm.

Bytes are those of the operation of the same name, FLOPs those of its `Cost`.
"""

from __future__ import annotations

from kernels.lab.drawing.explorers.fusion.chain import Chain, Preset, Step, Terms

SIZES = ("rows", "cols")


def _chain(key: str, label: str, first: Step, parameters: dict[str, Terms], size: int) -> Chain:
    whole: Terms = ((size, "rows", "cols"),)
    each: Terms = ((1, "rows", "cols"),)
    steps = (
        first,
        Step("GELU", ["h"], ["g"], ((9, "rows", "cols"),)),
        Step("dropout", ["g", "seed"], ["d"], each),
        Step("residual", ["d", "residual"], ["y"], each),
    )
    tensors = dict.fromkeys(("x", "h", "g", "d", "residual", "y"), whole)
    together = tuple(step.name for step in steps[:-1])
    return Chain(
        key,
        label,
        steps,
        {**tensors, **parameters, "seed": ((16,),)},
        presets=(
            Preset("open", "eager: every step a launch"),
            Preset("everything", "everything: this book's kernel", together),
        ),
    )


def bias_gelu_dropout_residual(size: int) -> Chain:
    """y = residual + dropout(gelu(x + bias)), of numbers of `size` bytes."""
    first = Step("bias", ["x", "bias"], ["h"], ((1, "rows", "cols"),))
    label = "Bias, GELU, dropout, residual"
    parameters: dict[str, Terms] = {"bias": ((size, "cols"),)}
    return _chain("bias_gelu_dropout_residual", label, first, parameters, size)


def layernorm_gelu_dropout_residual(size: int) -> Chain:
    """y = residual + dropout(gelu(LayerNorm(x))), of numbers of `size` bytes."""
    flops: Terms = ((7, "rows", "cols"), (4, "rows"))
    first = Step("LayerNorm", ["x", "weight", "bias"], ["h"], flops)
    label = "LayerNorm, GELU, dropout, residual"
    parameters: dict[str, Terms] = dict.fromkeys(("weight", "bias"), ((size, "cols"),))
    return _chain("layernorm_gelu_dropout_residual", label, first, parameters, size)
