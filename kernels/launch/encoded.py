"""Descriptors as a compiled kernel's launcher takes them, encoded once for each address.

Triton's launcher encodes each descriptor of a launch anew: a call of the driver, which fills 128
bytes with address, shape, strides and tile, and lists around it. A record (`kernels.launch.plan`)
knows all but the address, and PyTorch's allocator gives a loop the same addresses again: so what
was encoded is kept, and the launcher beneath is called with it. Held to Triton 3.6; where a
launcher is made in another way, it encodes for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from triton.backends.nvidia import driver

MOST_ADDRESSES = 64  # of one descriptor; then they are thrown away, all at once

_HELD = {"launcher", "tensordesc_indices", "tensordesc_meta"}


def beneath(launch: Any) -> tuple[Callable[..., Any], Mapping[int, Any]] | None:
    """The launcher under the one that encodes, and what is known of each descriptor, by place.

    None where `launch` isn't such, or encodes in a way that is not known.
    """
    names = getattr(getattr(launch, "__code__", None), "co_freevars", ())
    if set(names) != _HELD or not hasattr(driver, "make_tensordesc_arg"):
        return None
    held = {name: cell.cell_contents for name, cell in zip(names, launch.__closure__, strict=True)}
    places, metas = sorted(held["tensordesc_indices"]), list(held["tensordesc_meta"])
    if len(places) != len(metas) or None in metas:
        return None
    return held["launcher"], dict(zip(places, metas, strict=True))


def encoded(descriptor: Any, meta: Any) -> tuple[Any, ...]:
    """What a launcher takes for a descriptor, `meta` what its kernel knows of it."""
    return tuple(driver.make_tensordesc_arg(descriptor, meta))


class Encoded(dict[int, tuple[Any, ...]]):
    """What a launcher takes for a descriptor, by the address of its base.

    `at(address)` is the descriptor with that base, `meta` what its kernel knows of it.
    """

    def __init__(self, at: Callable[[int], Any], meta: Any) -> None:
        super().__init__()
        self.at, self.meta = at, meta

    def __missing__(self, address: int) -> tuple[Any, ...]:
        if len(self) >= MOST_ADDRESSES:
            self.clear()
        found = self[address] = encoded(self.at(address), self.meta)
        return found
