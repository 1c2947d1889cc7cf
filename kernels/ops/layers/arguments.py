"""What a layer asks of the words that it is made with, in one sentence each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from kernels.ops.chains.dropped import RELU
from kernels.ops.chains.gated import GELU_ERF, GELU_TANH
from kernels.philox import threshold

WIDEST_HEAD = 256


def activation_form(activation: object) -> str:
    """The name of an activation in this package; TypeError or ValueError with one sentence."""
    names = {"relu": RELU, "gelu": GELU_ERF}
    if isinstance(activation, str):
        if activation not in names:
            raise ValueError(f"activation is {activation!r}; it takes 'relu' or 'gelu'")
        return names[activation]
    if activation in (F.relu, torch.relu) or isinstance(activation, nn.ReLU):
        return RELU
    if isinstance(activation, nn.GELU):
        return GELU_TANH if activation.approximate == "tanh" else GELU_ERF
    if activation is F.gelu:
        return GELU_ERF
    told = getattr(activation, "__name__", type(activation).__name__)
    raise TypeError(
        f"activation is {told}; it takes 'relu', 'gelu', torch's functions of these names, "
        "nn.ReLU() or nn.GELU(), in either form"
    )


def check_sizes(d_model: int, nhead: int, dim_feedforward: int, dropout: float) -> None:
    """Raise ValueError with one sentence unless a layer may have these sizes."""
    for name, size in (
        ("d_model", d_model),
        ("nhead", nhead),
        ("dim_feedforward", dim_feedforward),
    ):
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} is {size!r}; it takes a whole number, 1 or more")
    if d_model % nhead or d_model // nhead > WIDEST_HEAD:
        raise ValueError(
            f"d_model is {d_model} and nhead {nhead}; nhead must divide d_model into heads of "
            f"{WIDEST_HEAD} numbers at most"
        )
    try:
        threshold(dropout)
    except (TypeError, ValueError):
        raise ValueError(f"dropout is {dropout!r}; it takes a number from 0 to 1") from None
