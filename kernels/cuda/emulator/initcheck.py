"""Which bytes of which tensors nobody has written yet, so that reading one can be named.

The bits of a tensor don't tell: what `torch.empty` gives may hold anything, zeros above all. So
while `initcheck()` lasts, the tensors that PyTorch makes without a value are remembered, a byte is
crossed off when an operator or an emulated kernel writes it, and the rest is what nobody wrote. It
is exact, and where it could not be it is silent: memory that something else changed, NumPy or a
Triton kernel, counts as written, all of it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

_MAKES_EMPTY = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_permuted",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
}


def _poison(size: int) -> np.ndarray:
    """Bytes to fill empty memory with: a NaN in every width of float, and no likely value."""
    return np.tile(np.array([0xFD, 0x7F], dtype=np.uint8), size // 2 + 1)[:size]


def bytes_of(storage: torch.UntypedStorage) -> np.ndarray:
    """The memory of a storage on the CPU as uint8, without an operator that a mode would see."""
    size = storage.nbytes()
    if not size:
        return np.zeros(0, dtype=np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(storage.data_ptr()))


@dataclass
class _Fresh:
    """A storage that PyTorch made empty; `unwritten` is 1 for each byte that nobody wrote."""

    reference: StorageWeakRef
    unwritten: np.ndarray

    def cross_off(self, view: torch.Tensor) -> None:
        """Note that all of `view` was written."""
        item = view.element_size()
        if view.numel():
            torch.from_numpy(self.unwritten).as_strided(
                (*view.shape, item),
                (*(step * item for step in view.stride()), 1),
                int(view.storage_offset()) * item,
            ).zero_()


class _Watch(TorchDispatchMode):
    """Remembers what is made empty, and what operators write of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fresh: dict[int, _Fresh] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # To keep the compiler out of this mode PyTorch would import it, which takes seconds.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func._schema.name in _MAKES_EMPTY and not func._schema.is_mutable:
            self._remember(result)
        elif func._schema.is_mutable:
            for place, one in enumerate(func._schema.arguments):
                if one.alias_info is not None and one.alias_info.is_write:
                    value = args[place] if place < len(args) else kwargs.get(one.name)
                    for tensor in value if isinstance(value, list | tuple) else [value]:
                        self._written(tensor)
        return result

    def _remember(self, tensor: Any) -> None:
        if type(tensor) is not torch.Tensor or tensor.device.type != "cpu":
            return
        storage = tensor.untyped_storage()
        memory = bytes_of(storage)
        memory[:] = _poison(memory.size)
        self.fresh = {key: one for key, one in self.fresh.items() if not one.reference.expired()}
        unwritten = np.ones(memory.size, dtype=np.uint8)
        self.fresh[storage._cdata] = _Fresh(StorageWeakRef(storage), unwritten)

    def _written(self, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            return
        if tensor.device.type != "cpu":
            return
        storage = tensor.untyped_storage()
        one = self.fresh.get(storage._cdata)
        if one is not None and storage.nbytes() != len(one.unwritten):
            del self.fresh[storage._cdata]  # it was resized: its new part is anybody's
        elif one is not None:
            one.cross_off(tensor)

    def unwritten(self, tensor: torch.Tensor) -> np.ndarray | None:
        """The flags of the bytes of a tensor's storage; None where all count as written."""
        storage = tensor.untyped_storage()
        one = self.fresh.get(storage._cdata)
        if one is None or one.reference.expired() or storage.nbytes() != len(one.unwritten):
            return None
        flags, memory = one.unwritten, bytes_of(storage)
        if np.any((memory != _poison(memory.size)) & (flags == 1)):
            del self.fresh[storage._cdata]
            return None
        return flags


_active: list[_Watch] = []


@contextlib.contextmanager
def initcheck() -> Iterator[None]:
    """Within it, an emulated kernel that reads what nobody wrote raises KernelError.

    It holds for tensors on the CPU that are made inside it, by `torch.empty`, `torch.empty_like`
    and their kin; their elements are filled with a NaN, so that what a kernel leaves out shows in
    the result too. On a GPU nothing is checked: there, `compute-sanitizer --tool initcheck` is the
    tool.

        with initcheck():
            out = torch.empty_like(x)
            module.add[blocks, threads](x, y, out, n)
    """
    if _active:  # the outer one watches already
        yield
        return
    with _Watch() as watch:
        _active.append(watch)
        try:
            yield
        finally:
            _active.remove(watch)


def unwritten_bytes(tensor: torch.Tensor) -> np.ndarray | None:
    """One flag for each byte of the tensor's storage, 1 where nobody wrote, to change in place.

    None where nothing is known to be unwritten.
    """
    return _active[-1].unwritten(tensor) if _active else None
