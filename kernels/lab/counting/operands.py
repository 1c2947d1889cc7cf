"""What a PyTorch operator reads and what it writes, in bytes: the rules and the exceptions.

By rule an operator reads the distinct bytes of each tensor it is given once, and writes those of
each that it returns. What it changes in place is both. The tables name what goes another way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from kernels.lab.counting.views import distinct_bytes

Tensor = torch.Tensor

# They allocate memory, or return what they were given: no bytes move.
_FREE = (
    *("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "set_"),
    *("_unsafe_view", "lift_fresh", "resize_", "record_stream"),
)
# They write their first argument without reading it.
_OVERWRITES = (
    *("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_"),
    *("exponential_", "geometric_", "log_normal_", "cauchy_"),
)
# Of their first argument they read as many bytes as they return, and not all of it.
_GATHERS = ("index", "index_select", "gather", "embedding", "take", "masked_select")
# Given for their shape, or for a case that they look up elsewhere: not read.
_UNREAD: dict[str, tuple[str, ...]] = {
    "nll_loss_backward": ("self",),
    "nll_loss2d_backward": ("self",),
    "native_layer_norm_backward": ("bias",),
    "max_pool2d_with_indices_backward": ("self",),
    "max_pool3d_with_indices_backward": ("self",),
    "upsample_nearest2d_backward": (),
}
_RUNNING = ("running_mean", "running_var")


@dataclass(frozen=True)
class Moved:
    """A tensor and how many of its bytes move."""

    tensor: Tensor
    size: int


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors anywhere inside an operator's arguments or results."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def on_gpu(values: Any) -> list[Tensor]:
    """Those of them that lie on the GPU: a number on the CPU is part of a launch."""
    return [tensor for tensor in tensors_in(values) if tensor.device.type == "cuda"]


def moves_bytes(func: Any, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    """Whether an operator reads or writes memory: views and allocations do not."""
    space, name = func._schema.name.split("::")
    if space == "prim" or name in _FREE or not (inputs or outputs):
        return False
    given = {tensor.untyped_storage()._cdata for tensor in inputs}
    shared = all(tensor.untyped_storage()._cdata in given for tensor in outputs)
    return func._schema.is_mutable or not outputs or not shared


def operands(func: Any, args: Any, kwargs: Any, result: Any) -> tuple[list[Moved], list[Moved]]:
    """What an operator reads and what it writes of the tensors on the GPU."""
    name = func._schema.name.split("::")[1]
    declared = func._schema.arguments
    given = dict(zip((argument.name for argument in declared), args, strict=False)) | kwargs
    unread = _unread(name, given)
    changed = [one.name for one in declared if one.alias_info and one.alias_info.is_write]
    if name in ("native_batch_norm", "cudnn_batch_norm") and given["training"]:
        changed += _RUNNING  # the schema doesn't say so
    reads, writes = [], []
    for argument in declared:
        tensors = on_gpu(given.get(argument.name))
        if argument.name in unread or argument.is_out:
            continue
        if argument.name in changed and name in _OVERWRITES:
            continue
        reads += [Moved(tensor, distinct_bytes(tensor)) for tensor in tensors]
    fresh = on_gpu(_written(name, given, result))
    if reads and name in _GATHERS:
        most = sum(distinct_bytes(tensor) for tensor in fresh)
        reads[0] = Moved(reads[0].tensor, min(reads[0].size, most))
    if name in ("nll_loss_forward", "nll_loss2d_forward"):
        picked = given["target"].numel() * given["self"].element_size()
        reads[0] = Moved(reads[0].tensor, min(reads[0].size, picked))
    seen = set()
    for tensor in (*fresh, *on_gpu([given.get(one) for one in changed])):
        place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape)
        if place not in seen:
            seen.add(place)
            writes.append(Moved(tensor, distinct_bytes(tensor)))
    if name in _SCATTERS:
        target = given["self"]
        size = min(distinct_bytes(target), _SCATTERS[name](given) * target.element_size())
        writes = [Moved(target, size)]
        adds = given.get("accumulate", "add" in name or "reduce" in name)
        reads = [one for one in reads if one.tensor is not target]
        reads += [Moved(target, size)] if adds else []
    return reads, writes


def _unread(name: str, given: dict[str, Any]) -> tuple[str, ...]:
    unread = _UNREAD.get(name, ())
    if name in ("native_batch_norm_backward", "cudnn_batch_norm_backward") and given.get(
        "train", True
    ):
        unread += _RUNNING  # the batch's own are kept
    if "scaled_dot_product" in name and name.endswith("_backward"):
        if not given["dropout_p"]:
            unread += ("philox_seed", "philox_offset")  # no dropout to draw again
        elif "flash" in name:
            unread += ("philox_offset",)  # the seed holds both
    return unread


def _written(name: str, given: dict[str, Any], result: Any) -> Any:
    """Of a fused attention's results those that are written: what it keeps, if it keeps it."""
    if "scaled_dot_product" not in name or name.endswith(("_backward", "_math")):
        return result
    random = {"flash": result[6:7], "cudnn": result[6:8]}.get(name.split("_")[4], result[2:4])
    kept = [result[1]] if given.get("compute_log_sumexp", True) else []
    return [result[0], *kept, *(random if given.get("dropout_p", 0.0) else [])]


def _indexed(given: dict[str, Any]) -> int:
    target, indices = given["self"], given["indices"]
    used = [one for one in indices if one is not None]
    whole = math.prod(torch.broadcast_shapes(*(one.shape for one in used)))
    rest = [
        size for dim, size in enumerate(target.shape) if dim >= len(indices) or indices[dim] is None
    ]
    return whole * math.prod(rest)


def _rows(given: dict[str, Any]) -> int:
    target, dim = given["self"], given["dim"]
    count: int = given["index"].numel() * (target.numel() // max(1, target.shape[dim]))
    return count


def _each(given: dict[str, Any]) -> int:
    count: int = given["index"].numel()
    return count


# They write into a part of their first argument: how many elements. They read it where they add.
_SCATTERS: dict[str, Callable[[dict[str, Any]], int]] = {
    "index_put_": _indexed,
    "_index_put_impl_": _indexed,
    **dict.fromkeys(("index_add_", "index_copy_", "index_fill_"), _rows),
    **dict.fromkeys(("scatter_", "scatter_add_", "scatter_reduce_"), _each),
}
