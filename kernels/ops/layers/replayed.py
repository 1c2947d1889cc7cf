"""Inference of an encoder by CUDA graphs: one workspace, nothing allocated from call to call.

What a layer launches depends on shapes and on which masks there are, and on nothing else. So each
such call is captured once, by `prepare`, in memory that was set aside before (`workspace`), and
then replayed: the inputs are copied to where the graph reads them, and one call of the driver
launches all kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.layers.replaying import (
    WARM_UPS,
    OneStream,
    check_encoder,
    key_of,
    not_prepared,
    put,
    tables,
)
from kernels.ops.layers.workspace import workspace_bytes

Tensor = torch.Tensor


@dataclass
class _Prepared:
    """A call that is ready: the tensors that its graph reads, and what it writes."""

    src: Tensor
    mask: Tensor | None
    padding: Tensor | None
    causal: bool
    graph: Any = None
    y: Tensor | None = None


@dataclass(frozen=True)
class _Place:
    """Where a graph leaves a tensor, by the CUDA array interface: a view of it owns no memory.

    `held` lives as long as such a view: the graph, and the pool that its memory is from.
    """

    address: int
    n_bytes: int
    held: tuple[Any, ...]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.n_bytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }


def _left_in_place(y: Tensor, *held: Any) -> Tensor:
    """A tensor where y is, which does not keep y's memory from the next capture."""
    if y.numel() == 0:
        return y
    last = sum((size - 1) * stride for size, stride in zip(y.shape, y.stride(), strict=True))
    place = _Place(y.data_ptr(), (last + 1) * y.element_size(), held)
    found = torch.as_tensor(place, device=y.device)
    return found.view(y.dtype).as_strided(y.shape, y.stride())


class ReplayedEncoder:
    """A `FusedEncoder` or `FusedEncoderLayer` in inference, replayed from a CUDA graph a shape.

    bytes_set_aside: the workspace, for the largest call that will be prepared; None sets it aside
    at the first `prepare`, as large as that call needs. On a CPU nothing is captured, and all else
    is the same. ValueError for an encoder in training.
    """

    def __init__(
        self, encoder: FusedEncoder | FusedEncoderLayer, bytes_set_aside: int | None = None
    ) -> None:
        check_encoder(encoder)
        if encoder.training:
            raise ValueError(
                "encoder is in training; call eval() first; ReplayedStep is for training"
            )
        self._encoder = encoder
        self._prepared: dict[Any, _Prepared] = {}
        self._pool: Any = None
        self._side: Any = None  # the stream that captures: memory is given out by stream
        self._stream = OneStream("ReplayedEncoder")
        self.bytes_set_aside = bytes_set_aside

    def prepare(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> None:
        """Capture the call of these shapes and masks; arguments as of the encoder's forward.

        Call it again when parameters have changed: weights that a norm was folded into are a copy.
        ValueError where the workspace is too small for it.
        """
        first = (
            self._encoder.layers[0] if isinstance(self._encoder, FusedEncoder) else self._encoder
        )
        assert isinstance(first, FusedEncoderLayer)
        x, _ = first.batched(src, src_key_padding_mask)
        batch, length, _ = x.shape
        needed = workspace_bytes(self._encoder, batch, length, src.element_size())
        if not first.self_attn.batch_first:
            needed += src.nbytes
        if self.bytes_set_aside is None:
            self.bytes_set_aside = needed
        if needed > self.bytes_set_aside:
            raise ValueError(
                f"the workspace has {self.bytes_set_aside} bytes; src of shape {tuple(src.shape)} "
                f"in {src.dtype} takes {needed}"
            )
        mine = [one if one is None else one.clone() for one in (mask, src_key_padding_mask)]
        ready = _Prepared(src.clone(), mine[0], mine[1], is_causal)
        if src.is_cuda:
            self._capture(ready)
        else:
            self._called(ready)  # what it doesn't take is told now
        self._prepared[key_of(src, mask, src_key_padding_mask, is_causal)] = ready

    def __call__(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """The encoder's output, in the workspace: the next call of whatever shape overwrites it.

        ValueError for a call that was not prepared. RuntimeError on another stream than before:
        both would write one workspace.
        """
        ready = self._prepared.get(key_of(src, mask, src_key_padding_mask, is_causal))
        if ready is None:
            raise not_prepared(src, mask, src_key_padding_mask)
        if src.is_cuda:
            self._stream.refuse_others(src.device)
        put((ready.src, ready.mask, ready.padding), (src, mask, src_key_padding_mask))
        if ready.graph is None:
            return self._called(ready)
        ready.graph.replay()
        assert ready.y is not None
        return ready.y

    @property
    def bytes_used(self) -> int:
        """Bytes that the graphs' memory has grown to on a GPU; 0 before the first capture."""
        return sum(one["total_size"] for one in self._pool.snapshot()) if self._pool else 0

    def _called(self, ready: _Prepared) -> Tensor:
        with torch.no_grad():
            y: Tensor = self._encoder(ready.src, ready.mask, ready.padding, ready.causal)
        return y

    def _capture(self, ready: _Prepared) -> None:
        device = ready.src.device
        if self._side is None:
            self._side = torch.cuda.Stream(device)
        self._side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._side):
            for _ in range(WARM_UPS):
                self._called(ready)
            if self._pool is None:
                self._pool = torch.cuda.MemPool()
                with torch.cuda.use_mem_pool(self._pool, device):
                    # One piece, given back at once: what is captured is cut from it.
                    torch.empty(self.bytes_set_aside or 0, dtype=torch.uint8, device=device)
        torch.cuda.current_stream(device).wait_stream(self._side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool.id, stream=self._side):
            y = self._called(ready)
        ready.y = _left_in_place(y, self._pool, graph, tables())
        ready.graph = graph
