"""One tensor's values in many places of memory, by the letters of its dimensions."""

from __future__ import annotations

import math

import torch

from kernels.registry import Op, operators_of

Tensor = torch.Tensor


def contiguous(tensor: Tensor) -> Tensor:
    return tensor.contiguous()


def _room(tensor: Tensor, n_cols: int) -> Tensor:
    """A tensor of so many columns, full of what no result may hold."""
    real = tensor.is_floating_point()
    filler = math.nan if real else torch.iinfo(tensor.dtype).min
    return tensor.new_full((*tensor.shape[:-1], n_cols), filler)


def every_second(tensor: Tensor) -> Tensor:
    """The last dimension with a gap behind each element."""
    room = _room(tensor, 2 * tensor.shape[-1])
    view = room[..., ::2]
    return view.copy_(tensor)


def apart(tensor: Tensor) -> Tensor:
    """Rows with a gap between them, the first an element behind the storage's begin."""
    room = _room(tensor, tensor.shape[-1] + 4)
    view = room[..., 1 : 1 + tensor.shape[-1]]
    return view.copy_(tensor)


def transposed(tensor: Tensor) -> Tensor:
    """The two last dimensions in the other order of memory."""
    if tensor.dim() < 2:
        return every_second(tensor)
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


LAYOUTS = {f.__name__: f for f in (contiguous, every_second, apart, transposed)}


def expanded(tensor: Tensor, dims: str, letter: str) -> Tensor:
    """All parts along a letter's dimension are the first one's memory."""
    if letter not in dims or tensor.shape[dims.index(letter)] == 0:
        return tensor
    place = dims.index(letter)
    return tensor.narrow(place, 0, 1).expand(tensor.shape)


def takes_leading_dimensions(op: Op) -> bool:
    """Whether rows may be any leading dimensions, as its operators say by a `*`."""
    return any("*" in "".join(one.tensors.values()) for one in operators_of(op.name))


def leading(tensor: Tensor, dims: str) -> Tensor:
    """A tensor of rows as one of batches of rows, the two leading dimensions swapped in memory."""
    if dims[0] not in "RM" or tensor.shape[0] % 2:
        return tensor
    split = tensor.view(2, -1, *tensor.shape[1:])
    return split.transpose(0, 1).contiguous().transpose(0, 1)
