"""A recorded call as the data of a page: its tensors, its source, and its requests in order.

A request is one load, store or atomic of one program in Triton, or of one warp in CUDA C++. The
elements that it wants are told as runs, `[first, count, step]`, one behind the other in one list;
many requests want the same elements, so these lists stand in a table.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import torch

from kernels.cuda.cuda_launch import CudaLaunch
from kernels.cuda.emulator.results import KINDS, WarpAccess
from kernels.hardware import WARP_THREADS
from kernels.lab.counting.traffic import told_names
from kernels.launch import Access, Launch, interpreting
from kernels.registry import dtype_name

MOST_REQUESTS = 4000
MOST_ELEMENTS = 16_384
LONGEST, FOLD = 128, 64  # elements of one dimension in one line; those of more are folded

Elements = npt.NDArray[np.int64]


class Panel(TypedDict):
    """One tensor as it lies in memory: lines of `width` elements, `itemsize` bytes each.

    From its first element to its last there are `elements` places, of which `own` are its own: a
    view may have gaps. `rank` is 1 where an element is told by its index alone.
    """

    name: str
    shape: list[int]
    dtype: str
    itemsize: int
    elements: int
    own: int
    width: int
    rank: int


class Recorded(TypedDict):
    """One call, recorded. A request is [launch, program, warp, tensor, kind, line, bytes, place].

    `warp` is -1 in Triton, `kind` counts in `KINDS`, `line` in `source` (-1 where it isn't known),
    `bytes` are those that its lanes ask for, and `place` counts in `places`. `ideal` are the bytes
    of each tensor that is read before a launch has written it, and of each that is written and
    that no later launch reads.
    """

    key: str
    label: str
    group: str
    look: str
    language: str
    launches: list[dict[str, Any]]
    source: list[str]
    tensors: list[Panel]
    places: list[list[int]]
    requests: list[list[int]]
    ideal: int


def runs(elements: Elements) -> list[int]:
    """Return sorted, distinct elements as runs: first, count and step of each, in one list."""
    told: list[int] = []
    at = 0
    while at < elements.size:
        step = int(elements[at + 1] - elements[at]) if at + 1 < elements.size else 1
        others = np.flatnonzero(np.diff(elements[at:]) != step)
        count = int(others[0]) + 1 if others.size else elements.size - at
        told += [int(elements[at]), count, step]
        at += count
    return told


def recorded(
    call: Callable[[], object], key: str, label: str = "", group: str = "", look: str = ""
) -> Recorded:
    """Call `call`, interpret or emulate every launch in it, and return what a replay shows.

    `label` names it, `group` is where it belongs, `look` says in a sentence what to look at.
    ValueError if it launches nothing or asks for nothing, if it is too large to be shown, or if an
    access does not take whole elements.
    """
    with interpreting(trace=True) as launches:
        call()
    seen = [launch for launch in launches if launch.trace]
    if not seen:
        raise ValueError("the call launched no kernel that loads or stores; a replay needs one")
    count = sum(len(launch.trace) for launch in seen)
    if count > MOST_REQUESTS:
        raise ValueError(
            f"the call makes {count:,} requests, and a replay shows at most {MOST_REQUESTS:,}: "
            f"take fewer rows or programs"
        )
    panels, where = _panels(seen)
    source, lines = _sources(seen)
    places: dict[tuple[int, ...], int] = {}
    requests = []
    for number, launch in enumerate(seen):
        for access in launch.trace:
            tensor = where[number, access.argument]
            place = tuple(runs(_wanted(access, panels[tensor])))
            requests.append(
                [
                    number,
                    access.program,
                    _warp(access),
                    tensor,
                    KINDS.index(access.kind),
                    lines.get((number, access.line), -1),
                    int(access.offsets.size) * access.itemsize,
                    places.setdefault(place, len(places)),
                ]
            )
    return Recorded(
        key=key,
        label=label or " → ".join(launch.name for launch in seen),
        group=group,
        look=look,
        language="CUDA C++" if isinstance(seen[0], CudaLaunch) else "Triton",
        launches=[{"name": launch.name, "grid": list(launch.grid)} for launch in seen],
        source=source,
        tensors=panels,
        places=[list(place) for place in places],
        requests=requests,
        ideal=_ideal(panels, requests),
    )


def _warp(access: Access) -> int:
    return int(access.threads[0]) // WARP_THREADS if isinstance(access, WarpAccess) else -1


def _wanted(access: Access, panel: Panel) -> Elements:
    """The distinct elements of the tensor that a request wants, sorted."""
    wide, rest = divmod(access.itemsize, panel["itemsize"])
    if rest:
        raise ValueError(
            f"a {access.kind} takes {access.itemsize} bytes of {panel['name']!r}, whose elements "
            f"have {panel['itemsize']}; a replay shows whole elements"
        )
    first = np.unique(access.offsets.astype(np.int64)) * wide
    return np.unique(first[:, None] + np.arange(wide))


def _panels(launches: Sequence[Launch]) -> tuple[list[Panel], dict[tuple[int, str], int]]:
    """The tensors that are touched, each once, and which one a launch's argument is."""
    panels: list[Panel] = []
    found: dict[tuple[Any, ...], int] = {}
    where: dict[tuple[int, str], int] = {}
    for number, launch in enumerate(launches):
        names = told_names(launch.arguments)
        for argument in dict.fromkeys(access.argument for access in launch.trace):
            tensor = launch.arguments[argument]
            view = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
            if view not in found:
                found[view] = len(panels)
                panels.append(_panel(names[argument], tensor))
            where[number, argument] = found[view]
    elements = sum(panel["elements"] for panel in panels)
    if elements > MOST_ELEMENTS:
        raise ValueError(
            f"the call's tensors have {elements:,} elements, and a replay shows at most "
            f"{MOST_ELEMENTS:,}: take smaller ones"
        )
    told: dict[str, int] = {}
    for panel in panels:  # two tensors of one name, from two launches
        name = panel["name"]
        told[name] = told.get(name, 0) + 1
        if told[name] > 1:
            panel["name"] = f"{name} ({told[name]})"
    return panels, where


def _panel(name: str, tensor: torch.Tensor) -> Panel:
    steps = [
        (stride, size)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        if size > 1 and stride
    ]
    elements = sum((size - 1) * stride for stride, size in steps) + 1
    # A line is as long as the second smallest stride: a row, or a column if it is columns that lie
    # side by side.
    strides = sorted(stride for stride, _ in steps)
    rank = 2 if len(strides) > 1 or (tensor.dim() > 1 and tensor.shape[-1] == 1) else 1
    if len(strides) > 1:
        width = strides[1]
    else:
        width = 1 if rank == 2 else elements if elements <= LONGEST else FOLD
    return Panel(
        name=name,
        shape=list(tensor.shape),
        dtype=dtype_name(tensor.dtype),
        itemsize=tensor.element_size(),
        elements=elements,
        own=math.prod(size for _, size in steps),
        width=min(width, elements),
        rank=rank,
    )


def _ideal(panels: Sequence[Panel], requests: Iterable[Sequence[int]]) -> int:
    """Bytes of what comes in and of what goes out, each tensor once."""
    written: dict[int, int] = {}  # by which launch last
    read: set[int] = set()
    handed_over: set[int] = set()
    for launch, _, _, tensor, kind, *_ in requests:
        if KINDS[kind] != "store":
            if written.get(tensor, launch) < launch:
                handed_over.add(tensor)
            elif tensor not in written or KINDS[kind] == "atomic":
                read.add(tensor)
        if KINDS[kind] != "load":
            written[tensor] = launch
            handed_over.discard(tensor)
    moved = [*read, *(tensor for tensor in written if tensor not in handed_over)]
    return sum(panels[one]["own"] * panels[one]["itemsize"] for one in moved)


def _sources(launches: Sequence[Launch]) -> tuple[list[str], dict[tuple[int, int | None], int]]:
    """The kernels' text, each once, and where in it a line of a launch stands."""
    source: list[str] = []
    lines: dict[tuple[int, int | None], int] = {}
    begun: dict[tuple[str, int], int] = {}  # the first place of a part that is there already
    for number, launch in enumerate(launches):
        for first, part in _parts(launch):
            known = ("".join(part), first)
            if known not in begun:
                source += [""] * bool(source)
                begun[known] = len(source)
                source += part
            for offset in range(len(part)):
                lines[number, first + offset] = begun[known] + offset
    return source, lines


def _parts(launch: Launch) -> list[tuple[int, list[str]]]:
    """The text that a launch runs, in parts, each with the number of its first line."""
    if not isinstance(launch, CudaLaunch):
        text, first = inspect.getsourcelines(launch.kernel.fn)
        return [(first, [line.rstrip() for line in text])]
    wanted = {access.line for access in launch.trace}
    head = re.compile(rf"__global__[^;{{]*\b{launch.name.split('<')[0]}\(")
    parts, part = [], list[str]()
    for number, line in enumerate([*launch.kernel.module.source.splitlines(), ""], 1):
        if line.strip():
            part.append(line.rstrip())
            continue
        first = number - len(part)
        if head.search("\n".join(part)) or wanted & set(range(first, number)):
            parts.append((first, part))
        part = []
    return parts
