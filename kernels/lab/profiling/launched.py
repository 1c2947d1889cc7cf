"""What a GPU launches for the three models of `kernels.lab.counting.models`, operator by operator.

    python -m kernels.lab models

runs a training step of each under PyTorch's profiler and writes `<gpu>/models.json`: for the
forward and the backward each operator that the device worked for, in order, with its kernels by
name and its copies. An operator is the outermost of PyTorch's that is not made of others, the one
that a ledger on fake tensors has a step for, so that the two can be held against each other.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.lab.cards import devices
from kernels.lab.counting import models
from kernels.lab.counting.ledger import Ledger
from kernels.lab.records import provenance
from kernels.lab.records.data import write_provenance
from kernels.lab.selection import NO_GPU, RefusalError
from kernels.launch import assume_capability
from kernels.paths import DATA_DIR

FILE = "models.json"
_COPIES = ("Memcpy", "Memset")
# Events of CUDA and its tools within an operator, or between operators.
_TOOLS = re.compile(r"cu(da)?[A-Z]|Activity Buffer|Lazy Function|Instrumentation|Resource$")
# These launch what they are made of, though PyTorch doesn't call them composite.
_MADE_OF_OTHERS = ("_transformer_encoder_layer_fwd", "_native_multi_head_attention")

# Operators that launch more kernels than one, or none, on some card, and why. The only place.
NOT_ONE = {
    "copy_": "none where memory is copied as it lies: a copy by the driver is no kernel",
    "mm": "two where the library splits the sum over K and adds the parts in a second kernel",
    "convolution": "several: the library transposes pictures to its own layout and back",
    "convolution_backward": "several: one for the pictures, one for the weights, transposes",
    "native_layer_norm_backward": "two or three: the gradient of x, then sums for weight and bias",
    "native_batch_norm": "several: statistics, the running ones, then the values",
    "embedding_dense_backward": "several: it sorts the indices to add up rows that were met twice",
    "slice_backward": "two: zeros, then the part copied into them",
    "nll_loss_backward": "two: zeros, then the picked ones",
    "nonzero": "several: it counts, then writes the places",
    "_safe_softmax": "several: softmax, then rows that are masked as a whole",
    "_scaled_dot_product_flash_attention_backward": "three: delta, the gradients, dq in its dtype",
    "_scaled_dot_product_efficient_attention_backward": "two: delta, then the gradients",
    "_scaled_dot_product_cudnn_attention": "more than one where the library prepares first",
    "_scaled_dot_product_cudnn_attention_backward": "three: delta, the gradients, dq in its dtype",
}


@dataclass(frozen=True)
class Launched:
    """An operator that the device worked for: its kernels by name, and how many copies and fills.

    Copies and fills are the driver's: memcpy and memset.
    """

    operator: str
    kernels: tuple[str, ...] = ()
    copies: int = 0


@functools.cache
def made_of_others(name: str) -> bool:
    """Whether PyTorch runs an operator by calling others, as `linear` calls `addmm`."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or name in _MADE_OF_OTHERS:
        return packet is not None
    overloads = (getattr(packet, one) for one in packet.overloads())
    return any(
        torch._C._dispatch_has_kernel_for_dispatch_key(one.name(), "CompositeImplicitAutograd")
        for one in overloads
        if "Dimname" not in str(one._schema) and torch._C._dispatch_has_kernel(one.name())
    )


def operator_of(names: Sequence[str]) -> str:
    """The operator of a launch, from the names of all that ran around it, outermost first."""
    operators = [name.removeprefix("aten::") for name in names if name.startswith("aten::")]
    whole = (name for name in operators if not made_of_others(name))
    return next(whole, operators[-1] if operators else names[-1] if names else "no operator")


def _around(event: Any) -> Iterator[Any]:
    while event is not None:
        yield event
        event = event.cpu_parent


def _told_once(events: Iterable[Any]) -> list[Any]:
    """The events that launched something, in order, one for each number.

    PyTorch's profiler gives the kernels of an operator also to the events that have its number:
    what CUDA's tools did within it (buffers, the loading of a kernel at its first launch), and a
    call of the driver that came by the same number by chance.
    """
    found: dict[int, Any] = {}
    for event in sorted(events, key=lambda one: (_is_tool(one.name), one.time_range.start)):
        if event.kernels:
            found.setdefault(event.id, event)
    return sorted(found.values(), key=lambda one: one.time_range.start)


def _is_tool(name: str) -> bool:
    return _TOOLS.match(name) is not None


def launched(events: Iterable[Any]) -> list[Launched]:
    """The operators of a profile that the device worked for, in order.

    Launches of one operator are told together.
    """
    found: dict[int, tuple[str, list[str], int]] = {}
    for event in _told_once(events):
        around = [*_around(event)][::-1]
        name = operator_of([one.name for one in around])
        at = next((one for one in around if one.name == f"aten::{name}"), event)
        _, kernels, copies = found.get(id(at), (name, [], 0))
        for kernel in event.kernels:
            if kernel.name.startswith(_COPIES):
                copies += 1
            else:
                kernels.append(_short(kernel.name))
        found[id(at)] = (name, kernels, copies)
    return [Launched(name, tuple(kernels), copies) for name, kernels, copies in found.values()]


def _short(kernel: str) -> str:
    """A kernel's name without what its templates were made for."""
    return kernel.removeprefix("void ").partition("<")[0].partition("(")[0] or kernel


def profiled(call: Callable[[], Any]) -> tuple[Any, list[Launched]]:
    """What a call returns, and the operators that the device worked for."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profiler:
        result = call()
        torch.cuda.synchronize()
    return result, launched(profiler.events() or [])


def of_model(model: models.Model) -> dict[str, list[Launched]]:
    """What the GPU launches for a training step of a model, forward and backward.

    RuntimeError if two steps, after one to warm up, don't show the same: a profile missed some.
    """
    forward, backward = models.step(*model.on("cuda"))
    backward(forward())
    seen: list[dict[str, list[Launched]]] = []
    for _ in range(4):
        y, ahead = profiled(forward)
        _, back = profiled(functools.partial(backward, y))
        del y
        seen.append(dict(zip(models.PASSES, (ahead, back), strict=True)))
        if len(seen) > 1 and seen[-1] == seen[-2] and ahead and back:
            return seen[-1]
    raise RuntimeError(f"the profiler sees other launches of {model.name!r} each time")


def differences(
    counted: Ledger, seen: Sequence[Launched], reasons: dict[str, str] = NOT_ONE
) -> list[str]:
    """In sentences, where a ledger and a GPU differ; none if they agree.

    They agree if their operators are the same in order, in place or not, and each that launched
    another number of kernels than one is in `reasons`.
    """
    ours = [step.name.rstrip("_") for step in counted]
    theirs = [one.operator.rstrip("_") for one in seen]
    told = []
    if ours != theirs:
        pairs = enumerate(zip([*ours, "nothing"], [*theirs, "nothing"], strict=False))
        at, (one, other) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        told.append(
            f"operator {at + 1} of {len(ours)} is counted as {one}, and of {len(theirs)} launched "
            f"as {other}, after {', '.join(ours[max(0, at - 3) : at]) or 'none'}"
        )
    several = {one.operator: one for one in seen if len(one.kernels) != 1}
    told += [
        f"{name} launches {len(one.kernels)} kernels and {one.copies} copies "
        f"({', '.join(one.kernels) or 'none'}), and no reason is told"
        for name, one in several.items()
        if name not in reasons
    ]
    return told


@dataclass(frozen=True)
class Record:
    """A `models.json`: what each pass of each model launched, as `encoder forward`, on a card."""

    gpu: str
    capability: int
    passes: dict[str, list[Launched]]


def read(path: Path) -> Record:
    """Read a `models.json`."""
    told = json.loads(path.read_text(encoding="utf-8"))
    passes = {
        name: [Launched(one["operator"], tuple(one["kernels"]), one["copies"]) for one in seen]
        for name, seen in told["models"].items()
    }
    capability = int(told["card"]["capability"].replace(".", ""))
    return Record(path.parent.name, capability, passes)


def records(data_dir: Path = DATA_DIR) -> list[Path]:
    """The `models.json` of every card."""
    return sorted(data_dir.glob(f"*/{FILE}"))


def problems(record: Record) -> list[str]:
    """In sentences, where the counts of today differ from what a card launched."""
    told = []
    for model in models.MODELS.values():
        with assume_capability(record.capability):
            ledgers = models.counted(model)
        for pass_, ledger in ledgers.items():
            name = f"{model.name} {pass_}"
            if name not in record.passes:
                told.append(f"{name} is not recorded on {record.gpu}")
                continue
            found = differences(ledger, record.passes[name])
            told += [f"{name} on {record.gpu}: {sentence}" for sentence in found]
    return told


def run(out: Path | None, say: Callable[[str], None]) -> int:
    """Record what this GPU launches; 1 if the counts on fake tensors differ from it, else 0."""
    if not torch.cuda.is_available():
        raise RefusalError(NO_GPU)
    card = devices.describe(torch.cuda.current_device())
    passes: dict[str, list[Launched]] = {}
    for model in models.MODELS.values():
        for pass_, seen in of_model(model).items():
            passes[f"{model.name} {pass_}"] = seen
            kernels = sum(len(one.kernels) for one in seen)
            say(f"{model.name} {pass_}: {len(seen)} operators, {kernels} kernels")
    path = (out or DATA_DIR) / card["slug"] / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_provenance(path, _as_json(card, passes))
    found = problems(read(path))
    for sentence in found:
        say(f"models  {sentence}")
    say(f"{path}" + ("" if found else ": as counted on fake tensors"))
    return 1 if found else 0


def _as_json(card: dict[str, Any], passes: dict[str, list[Launched]]) -> dict[str, Any]:
    return {
        "card": card,
        "versions": {**provenance.versions(), "cudnn": torch.backends.cudnn.version()},
        **provenance.source(),
        "command": provenance.command(),
        "date": provenance.utc_now(),
        "method": {model.name: model.told for model in models.MODELS.values()},
        "models": {name: [asdict(one) for one in seen] for name, seen in passes.items()},
    }
