"""What replays of an encoder share, those of inference and those of a training step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kernels.launch import tape
from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.shared.operators import in_forward_mode

Tensor = torch.Tensor

WARM_UPS = 3  # calls that compile kernels, fold weights and keep launches, before a capture


def check_encoder(encoder: object) -> None:
    """TypeError for what is no encoder of this package."""
    if not isinstance(encoder, FusedEncoder | FusedEncoderLayer):
        raise TypeError(
            f"encoder is a {type(encoder).__name__}; it takes a FusedEncoder or a FusedEncoderLayer"
        )


def key_of(
    src: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
) -> tuple[Any, ...]:
    """What tells a prepared call from others: shapes, dtypes, devices, and the masks there are."""

    def of(one: Tensor | None) -> Any:
        return None if one is None else (tuple(one.shape), one.dtype, one.device)

    return of(src), of(mask), of(padding), is_causal


def not_prepared(
    src: Tensor, mask: Tensor | None, padding: Tensor | None, more: str = ""
) -> ValueError:
    """The error of a call that was not prepared; `more` stands behind the device."""
    masks = "" if mask is None and padding is None else " with these masks"
    return ValueError(
        f"src of shape {tuple(src.shape)} in {src.dtype} on {src.device}{more}{masks} is not "
        "prepared; call prepare() with such tensors first"
    )


def put(places: Sequence[Tensor | None], given: Sequence[Tensor | None]) -> None:
    """Copy what is given to where a graph reads it."""
    with torch.no_grad():
        for place, value in zip(places, given, strict=True):
            if place is not None and value is not None:
                place.copy_(value)


def tables() -> tuple[Tensor, ...]:
    """The tables that launches read, made on the host: a graph is kept with those of its capture.

    A graph holds their addresses alone, and the caches behind them let go of the eldest.
    """
    return tuple(tape._lasting.values())


class OneStream:
    """The stream that calls come on: the first call's. `whose` is told where another is refused."""

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._stream: int | None = None

    def refuse_others(self, device: torch.device) -> None:
        """RuntimeError on another stream than before."""
        stream = torch.cuda.current_stream(device).cuda_stream
        if self._stream is None:
            self._stream = stream
        if stream != self._stream:
            raise RuntimeError(
                "this encoder was called on another stream before, and both would write one "
                f"workspace; make a {self._whose} for each stream"
            )


def refuse_elsewhere(device: torch.device) -> None:
    """RuntimeError where a step can't be replayed: a graph is of one dtype, and no compiler's."""
    where = None
    if torch.is_autocast_enabled(device.type):
        where = "autocast"
    elif torch.compiler.is_compiling():
        where = "torch.compile"
    elif torch._C._are_functorch_transforms_active():
        where = "a transform of torch.func"
    elif in_forward_mode():
        where = "forward-mode differentiation"
    elif device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        where = "the capture of a graph"
    if where is not None:
        raise RuntimeError(f"no step is replayed inside {where}; call the encoder itself there")


@contextlib.contextmanager
def undisturbed(encoder: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """A block behind which buffers and PyTorch's generators are as before."""
    cards = [device] if device.type == "cuda" else []
    kept = [(one, one.clone()) for one in encoder.buffers()]
    try:
        with torch.random.fork_rng(cards):
            yield
    finally:
        with torch.no_grad():
            for one, before in kept:
                one.copy_(before)
