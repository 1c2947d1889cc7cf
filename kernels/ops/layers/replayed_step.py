"""A training step of an encoder by CUDA graphs: one replay forward, one going back.

What is captured runs between pieces of memory that stay where they are. So a call copies src to
where the graph reads it and y from where the graph leaves it, and going back does so with dy and
the gradients. In the graph the gradients of all parameters end in one piece of memory a dtype
(`prepared_step.Gradients`); what autograd is given are views of a copy of it, which no replay
writes. Seeds of dropouts are drawn in the graph from PyTorch's generator, whose state each replay
moves on.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.layers.prepared_step import Gradients, PreparedStep, captured
from kernels.ops.layers.replaying import (
    WARM_UPS,
    OneStream,
    check_encoder,
    key_of,
    not_prepared,
    put,
    refuse_elsewhere,
    tables,
    undisturbed,
)
from kernels.ops.layers.standing import Standing
from kernels.ops.shared.arguments import check_tensor

Tensor = torch.Tensor


class ReplayedStep:
    """A `FusedEncoder` or `FusedEncoderLayer` in training, replayed from two CUDA graphs a shape.

    A call is the encoder's own, connected to autograd: y, the gradient of src and those of the
    parameters are new tensors, which no later call writes. What lies between, activations, is in
    memory that all calls share: so each call goes back before the next one is made, or never.
    The parameters' gradients of a call are views of one piece of memory, which is free when the
    last of them is. Dropout draws other masks in each call. On a CPU nothing is captured, and all
    else is the same. TypeError for what is no encoder, ValueError for one in eval.
    """

    def __init__(self, encoder: FusedEncoder | FusedEncoderLayer) -> None:
        check_encoder(encoder)
        self._encoder = encoder
        self._refuse_eval()
        self._standing = Standing(encoder)
        self._prepared: dict[Any, PreparedStep] = {}
        self._gradients: Gradients | None = None
        self._pool: Any = None
        self._side: Any = None  # the stream that captures: memory is given out by stream
        self._stream = OneStream("ReplayedStep")
        self._turn = 0  # calls so far: the last one's activations are there

    def prepare(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> None:
        """Capture the step of these shapes and masks; arguments as of the encoder's forward.

        Whether src wants a gradient is part of what is captured. Parameters, their gradients,
        buffers and PyTorch's generators stay as they are. Call it again when a parameter has moved,
        or wants a gradient and did not. ValueError for a mask that wants one; else as a call.
        """
        check_tensor("src", src)
        self._refuse_eval()
        refuse_elsewhere(src.device)
        masks = (mask, src_key_padding_mask)
        for name, one in zip(("mask", "src_key_padding_mask"), masks, strict=True):
            if one is not None and not isinstance(one, torch.Tensor):
                raise TypeError(
                    f"{name} is a {type(one).__name__}; it takes a torch.Tensor or None"
                )
            if one is not None and one.requires_grad:
                raise ValueError(f"{name} wants a gradient; a replayed step has none for a mask")
        self._standing = Standing(self._encoder)
        key = (*key_of(src, *masks, is_causal), src.requires_grad)
        self._prepared.pop(key, None)  # its memory is free for this one
        with torch.inference_mode(False), undisturbed(self._encoder, src.device):
            told = self._standing.parameters(), self._standing.facts()
            ready = PreparedStep(self._encoder, *told, src, masks, is_causal, self._gradients)
            self._gradients = ready.gradients  # of all shapes
            if src.is_cuda:
                self._warm_up(ready)
            for_both = src.device, self._pool, self._side
            ready.forward = captured(ready.run, *for_both)
            if ready.goes_back:
                ready.backward = captured(ready.run_back, *for_both)
            ready.tables = tables()
        self._prepared[key] = ready

    def __call__(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """The encoder's output, a new tensor; going back, gradients are new tensors too.

        ValueError for a call that was not prepared, and for an encoder in eval. RuntimeError inside
        autocast, torch.compile, a transform of `torch.func` or a capture; on another stream than
        before; and where a parameter has moved since `prepare`, or a setting has changed, as a
        dropout. Going back, RuntimeError where a later call has overwritten the activations, the
        second time, and where a parameter was written to in between; NotImplementedError for
        create_graph=True. torch.compile without fullgraph leaves the call to Python.
        """
        self._refuse_eval()
        refuse_elsewhere(src.device)
        key = (*key_of(src, mask, src_key_padding_mask, is_causal), src.requires_grad)
        ready = self._prepared.get(key)
        if ready is None:
            wants = " that wants a gradient" if src.requires_grad else " that wants no gradient"
            raise not_prepared(src, mask, src_key_padding_mask, wants)
        now = self._standing.facts()
        if now != ready.facts:
            raise RuntimeError(f"{self._standing.changed(ready.facts, now)}; call prepare() again")
        if src.is_cuda:
            self._stream.refuse_others(src.device)
        put((ready.mask, ready.padding), (mask, src_key_padding_mask))
        y: Tensor = _Step.apply(self, ready, src, *ready.parameters)
        return y

    def _replayed(self, ctx: Any, ready: PreparedStep, src: Tensor) -> Tensor:
        put((ready.src,), (src,))
        self._turn += 1
        ctx.step, ctx.ready, ctx.turn, ctx.gone_back = self, ready, self._turn, False
        ctx.versions = self._standing.versions()
        ready.forward.replay()
        assert ready.y is not None
        return ready.y.clone()

    def _replayed_back(self, ctx: Any, dy: Tensor) -> list[Tensor | None]:
        ready: PreparedStep = ctx.ready
        if ctx.gone_back:
            raise RuntimeError(
                "this call has gone back before, and its activations are gone; call it again"
            )
        if ctx.turn != self._turn:
            raise RuntimeError(
                "a later call has overwritten the activations of this one; go back before the next "
                "call, or make a ReplayedStep for each call that is open at a time"
            )
        now = self._standing.facts()
        if now.tensors != ready.facts.tensors or ctx.versions != self._standing.versions():
            raise RuntimeError(
                "a parameter was written to or moved between this call and its backward, which "
                "reads it again; step the optimizer behind the backward"
            )
        ctx.gone_back = True
        put((ready.dy,), (dy,))
        ready.backward.replay()
        dsrc = None if ready.dsrc is None else ready.dsrc.clone()
        copies = zip(ready.gradients.copies(), ready.reached, strict=True)
        return [dsrc, *(one if reached else None for one, reached in copies)]

    def _refuse_eval(self) -> None:
        if not self._encoder.training:
            raise ValueError(
                "encoder is in eval; call train() first; ReplayedEncoder is for inference"
            )

    def _warm_up(self, ready: PreparedStep) -> None:
        """Run both ways on the stream that captures, so that a capture meets nothing new."""
        device = ready.src.device
        if self._side is None or self._side.device != device:
            self._side, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        self._side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._side):
            for _ in range(WARM_UPS):
                ready.run()
                if ready.goes_back:
                    ready.run_back()
        torch.cuda.current_stream(device).wait_stream(self._side)
        ready.begin_anew()


class _Step(torch.autograd.Function):
    """A call of a `ReplayedStep` as autograd sees it: of src and of the parameters."""

    @staticmethod
    def forward(
        ctx: Any, step: ReplayedStep, ready: PreparedStep, src: Tensor, *_parameters: Tensor
    ) -> Tensor:
        return step._replayed(ctx, ready, src)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "a replayed step has no second derivative; go back without create_graph=True, or "
                "call the encoder itself"
            )
        return None, None, *ctx.step._replayed_back(ctx, dy)
