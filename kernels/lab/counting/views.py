"""The bytes of several views of one memory, each byte counted once.

A view is a set of runs: neighbouring elements are one run, and the dimensions outside it tell where
the runs begin. What views have in common is found from the runs, sorted.
"""

from __future__ import annotations

import math

import numpy as np
import torch

Tensor = torch.Tensor
MOST_RUNS = 1 << 22  # of one view that are looked at: an array of 32 MB

Dimensions = list[tuple[int, int]]  # stride in bytes and size, the largest stride first


def _dimensions(view: Tensor) -> Dimensions:
    """The dimensions that reach other bytes; those that step evenly together are one."""
    found: Dimensions = []
    item = view.element_size()  # the innermost dimension: an element's own bytes
    sizes = [(int(s) * item, int(n)) for s, n in zip(view.stride(), view.shape, strict=True)]
    for stride, size in sorted([*sizes, (1, item)], reverse=True):
        if stride == 0 or size == 1:
            continue
        if found and found[-1][0] == stride * size:
            found[-1] = (stride, found[-1][1] * size)
        else:
            found.append((stride, size))
    return found


def _apart(dimensions: Dimensions) -> bool:
    """Whether no two indices reach one byte, since each stride steps over what is inside."""
    inside = 1
    for stride, size in reversed(dimensions):
        if stride < inside:
            return False
        inside = stride * (size - 1) + inside
    return True


def _runs(view: Tensor, dimensions: Dimensions) -> tuple[np.ndarray, int]:
    """Where the runs of a view begin in its memory, and how long each is, in bytes."""
    *outer, (_, length) = dimensions or [(1, 1)]
    begins = np.zeros(1, dtype=np.int64) + _offset(view)
    for stride, size in outer:
        begins = (begins[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return begins, length


def _offset(view: Tensor) -> int:
    return int(view.storage_offset()) * view.element_size()


def _size(dimensions: Dimensions) -> int:
    return math.prod(size for _, size in dimensions)


def _span(dimensions: Dimensions) -> int:
    return sum(stride * (size - 1) for stride, size in dimensions) + 1


def distinct_bytes(*views: Tensor) -> int:
    """How many bytes of one memory the views reach together.

    An expanded dimension counts once, as does what views or windows of one have in common. Exact
    for up to 4 million runs a view; beyond that no less than it is: the bytes of each view, or all
    between the first and the last if these are fewer.
    """
    several = {(_offset(one), tuple(_dimensions(one))): one for one in views if one.numel()}
    told = [(view, list(dimensions)) for (_, dimensions), view in several.items()]
    if not told:
        return 0
    if len(told) == 1 and _apart(told[0][1]):
        return _size(told[0][1])
    if any(_size(dimensions[:-1]) > MOST_RUNS for _, dimensions in told):
        end = max(_offset(view) + _span(dimensions) for view, dimensions in told)
        least = min(_offset(view) for view, _ in told)
        return min(end - least, sum(_size(dimensions) for _, dimensions in told))
    runs = [_runs(view, dimensions) for view, dimensions in told]
    begins = np.concatenate([one for one, _ in runs])
    ends = begins + np.repeat([length for _, length in runs], [len(one) for one, _ in runs])
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], ends[order]
    reached = np.maximum.accumulate(ends)
    before = np.concatenate([begins[:1], reached[:-1]])  # where the runs so far end
    return int(np.maximum(ends - np.maximum(begins, before), 0).sum())
