"""The tilings of the products that `python -m kernels.lab tune linear` compares."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch

from kernels.ops.products.backward import grad_weight, grad_x
from kernels.ops.products.configurations import SMALLER, Tiling
from kernels.ops.products.forward import forward
from kernels.ops.products.peers import torch_linear
from kernels.registry import Case

Tensor = torch.Tensor


def forward_to_try(case: Case) -> dict[str, Tiling]:
    """The tilings of the forward worth timing, by name; of fp32 those by plain multiply-adds."""
    if case.dtype.itemsize == 4:
        found = [Tiling(64, 64, 16, 8, 2), Tiling(64, 64, 16, 4, 2), Tiling(128, 64, 16, 8, 2)]
        return {one.name: one for one in found}
    kept = functools.partial(Tiling, num_warps=8, persistent=True)
    found = [
        kept(128, 256, 64, num_stages=3, halves=True, flatten=True),
        kept(128, 256, 64, num_stages=3, halves=True, flatten=True, group=4),
        kept(128, 256, 64, num_stages=3, halves=True, flatten=True, group=16),
        kept(128, 256, 64, num_stages=4, halves=True, flatten=True),
        kept(128, 256, 64, num_stages=3, flatten=True),
        kept(128, 256, 64, num_stages=4, halves=True),
        kept(256, 128, 64, num_stages=4, halves=True, flatten=True),
        kept(128, 128, 128, num_stages=3, flatten=True),
        *(replace(one, flatten=flat) for one in SMALLER[9, 0] for flat in (True, False)),
        replace(kept(64, 128, 128, num_stages=3, flatten=True), num_warps=4),
        replace(kept(128, 64, 128, num_stages=4, flatten=True), num_warps=4),
        replace(kept(64, 128, 64, num_stages=6, flatten=True), num_warps=4),
        replace(kept(64, 64, 64, num_stages=8, flatten=True), num_warps=4),
        Tiling(128, 256, 64, num_warps=8, num_stages=3),
        Tiling(128, 128, 64, num_warps=8, num_stages=4),
    ]
    return {one.name: one for one in found}


def candidates(case: Case) -> dict[str, Any]:
    """The tilings of the forward in a case as functions of its inputs, and PyTorch's product."""
    tried = {
        name: functools.partial(forward, tiling=tiling)
        for name, tiling in forward_to_try(case).items()
    }
    return {"PyTorch": torch_linear, **tried}


def gradients_to_try(case: Case) -> dict[str, tuple[str, Tiling]]:
    """The tilings of either product of the backward, by name: which product, and the tiling."""
    kept = functools.partial(Tiling, num_warps=8, persistent=True)
    for_both = [
        kept(128, 256, 64, num_stages=3),
        kept(128, 256, 64, num_stages=4, halves=True),
        kept(128, 256, 64, num_stages=3, halves=True, flatten=True),
        kept(128, 256, 64, num_stages=3, halves=True, flatten=True, group=4),
        kept(128, 256, 64, num_stages=3, halves=True, flatten=True, group=16),
        kept(128, 128, 64, num_stages=4, flatten=True),
        kept(256, 128, 64, num_stages=3),
    ]
    shared = [kept(128, 256, 64, num_stages=3, splits=n) for n in (2, 3, 4)]
    found = {f"dX by {one.name}": ("x", one) for one in for_both}
    found |= {f"dW by {one.name}": ("weight", one) for one in (*for_both, *shared)}
    return found


class _Linear(torch.autograd.Function):
    """The product, one of whose gradients is computed in a tiling of your own, or PyTorch's way.

    The other gradient is left out, so that the time is one product's.
    """

    @staticmethod
    def forward(
        ctx: Any, of: str, tiling: Tiling | None, x: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.told = of, tiling
        return forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of, tiling = ctx.told
        dx, dweight, dbias = (torch.empty_like(one) for one in (x, weight, weight[:, 0]))
        if of == "x":
            dx = dy @ weight if tiling is None else grad_x(dy, weight, tiling)
        elif tiling is None:
            dweight, dbias = dy.T @ x, dy.sum(0)
        else:
            dweight, dbias = grad_weight(dy, x, True, tiling)  # type: ignore[assignment]
        return None, None, dx, dweight, dbias


def backward_candidates(case: Case) -> dict[str, Any]:
    """Each product of the backward by itself, beside PyTorch's, to go back through."""

    def run(of: str, tiling: Tiling | None, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        return _Linear.apply(of, tiling, x, weight, bias)

    found: dict[str, tuple[str, Tiling | None]] = {
        "dX by PyTorch": ("x", None),
        "dW by PyTorch": ("weight", None),
        **gradients_to_try(case),
    }
    return {name: functools.partial(run, *one) for name, one in found.items()}
