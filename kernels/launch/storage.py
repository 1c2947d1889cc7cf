"""The memory behind a launch's arguments, and which program read and wrote each piece of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

Offsets = np.ndarray[Any, np.dtype[np.int64]]


class Storage:
    """The memory behind one or more arguments, and who touched it, per element."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device_storage = tensor.untyped_storage()
        on_cpu = self.device_storage.device.type == "cpu"
        self.host_storage = self.device_storage if on_cpu else self.device_storage.cpu()
        self.address = self.host_storage.data_ptr()
        self.granule = tensor.element_size()
        self.written = False
        self._read_by: np.ndarray[Any, np.dtype[np.int32]] | None = None
        self._written_by: np.ndarray[Any, np.dtype[np.int32]] | None = None

    def _empty(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        return np.zeros(-(-self.host_storage.nbytes() // self.granule), dtype=np.int32)

    @property
    def read_by(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Which program read each piece, by its number from 1 on."""
        if self._read_by is None:
            self._read_by = self._empty()
        return self._read_by

    @property
    def written_by(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Which program wrote each piece, by its number from 1 on."""
        if self._written_by is None:
            self._written_by = self._empty()
        return self._written_by

    def refine(self, size: int) -> None:
        """Keep account in pieces of `size` bytes or less from now on."""
        finer = math.gcd(self.granule, size)
        times, self.granule = self.granule // finer, finer
        if times > 1 and self._read_by is not None:
            self._read_by = np.repeat(self._read_by, times)
        if times > 1 and self._written_by is not None:
            self._written_by = np.repeat(self._written_by, times)

    def unique(self, start: int, stop: int) -> tuple[int, int]:
        """Distinct bytes read and written between two byte offsets of the storage."""
        cut = slice(start // self.granule, -(-stop // self.granule))
        counts = [
            0 if users is None else int(np.count_nonzero(users[cut])) * self.granule
            for users in (self._read_by, self._written_by)
        ]
        return counts[0], counts[1]

    def bytes_at(self, offsets: Offsets, itemsize: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """What lies at byte offsets of the storage now: an array of (offsets, itemsize)."""
        whole = torch.empty(0, dtype=torch.uint8).set_(self.host_storage).numpy()
        return whole[offsets[:, None] + np.arange(itemsize)]

    def copy_back(self) -> None:
        """Bring what was stored back to the device."""
        if self.written and self.host_storage is not self.device_storage:
            self.device_storage.copy_(self.host_storage)


def as_slice(places: Offsets) -> slice | None:
    """The slice that equals `places`, if they are consecutive; slices are many times faster."""
    first, count = int(places[0]), places.size
    if int(places[-1]) - first != count - 1:
        return None
    if count > 2 and not bool((np.diff(places) == 1).all()):
        return None
    return slice(first, first + count)
