"""The launches of an encoder layer where products are PyTorch's own: every card but Hopper."""

from __future__ import annotations

import contextlib

import torch

from kernels.lab.counting import aten
from kernels.lab.counting.fake_cuda import replaced
from kernels.ops.epilogues import linear_bias_residual
from kernels.ops.layers import steps
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.products import linear
from kernels.ops.products.configurations import BY_TORCH

_BEGINS_WITH_A_NORM = "norm_row"


def launches_by_torch(norm_first: bool) -> tuple[str, ...]:
    """The names of what a layer with GELU launches in inference, in order.

    They are counted on a small layer. A product behind a norm runs inside of the norm's operator,
    where no ledger sees it: pre-LN its name, `addmm`, is put behind each norm.
    """
    layer = FusedEncoderLayer(
        16, 2, 24, activation="gelu", batch_first=True, norm_first=norm_first
    ).eval()
    with contextlib.ExitStack() as stack:
        for place in (linear, linear_bias_residual, steps):
            stack.enter_context(replaced(place, "ways", lambda _: BY_TORCH))
        counted = [step.name for step in aten.count(layer, torch.zeros(1, 4, 16))]
    found: list[str] = []
    for name in counted:
        found.append(name)
        if norm_first and name == _BEGINS_WITH_A_NORM:
            found.append("addmm")
    return tuple(found)
