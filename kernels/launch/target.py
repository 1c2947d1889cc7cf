"""The card that an operation chooses its configuration for: its capability, its number of SMs.

On a GPU it is the card's own. Where a launch is recorded to be compiled for another card, a block
of `assume_capability` names that card's, so that the configuration is the one it would get there.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch

from kernels.launch.again import forget

# A CPU tensor is interpreted or recorded, not timed: it gets the configuration of this one.
_WITHOUT_GPU = (9, 0)
_SMS_WITHOUT_GPU = 132  # an H100's, in its SXM form

T = TypeVar("T")

_assumed: tuple[int, int] | None = None


@contextlib.contextmanager
def assume_capability(capability: int) -> Iterator[None]:
    """Let operations inside the block choose their configuration for a capability such as 75."""
    global _assumed
    before, _assumed = _assumed, divmod(capability, 10)
    forget()
    try:
        yield
    finally:
        _assumed = before
        forget()


def capability(device: torch.device) -> tuple[int, int]:
    """Return the capability to choose for: the assumed one, else the device's, as (7, 5)."""
    return _own(device) if _assumed is None else _assumed


def for_card(table: Mapping[tuple[int, int], T], capability: tuple[int, int]) -> T:
    """Return a card's entry of a table by capability, or that of the nearest older card.

    A card older than all of the table takes the oldest entry.
    """
    known = [card for card in table if card <= capability]
    return table[max(known, default=min(table))]


@functools.cache
def _own(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else _WITHOUT_GPU


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Return how many SMs the device has; a CPU stands for an H100's 132."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return _SMS_WITHOUT_GPU
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
