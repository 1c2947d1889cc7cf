"""What a training step of the encoder layer needs of a GPU's memory at most, on this GPU.

    python -m kernels.lab memory

writes `book/data/<gpu>/memory.json`: the peak of a step beside what stays, which are x, parameters
and gradients, in bytes, of PyTorch's layer, of its compiled graph, and of the fused layer without
its flags, with each and with both. PyTorch's allocator counts: what it has given out at most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernels import registry
from kernels.lab.cards import devices
from kernels.lab.measuring.cell_bench import first_line, say, this_device
from kernels.lab.records import provenance
from kernels.lab.selection import NO_GPU, RefusalError
from kernels.ops.layers.encoder_common import HEAD_DIM, INNER
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.paths import DATA_DIR

FILE = "memory.json"
SHAPES = ((32, 512, 1024), (8, 2048, 1024))
DROPOUT = 0.1
GELU, ATTENTION = {"gelu_checkpoint": True}, {"attn_dropout_checkpoint": True}
NORM = {"norm_checkpoint": True}
FLAGS: dict[str, dict[str, bool]] = {
    "fused": {},
    "fused gelu_checkpoint": GELU,
    "fused attn_dropout_checkpoint": ATTENTION,
    "fused norm_checkpoint": NORM,
    "fused_checkpointed": GELU | ATTENTION | NORM,
}
WARM_UPS = 2  # steps that compile kernels, and after which each gradient is there


def layers(width: int, norm_first: bool, device: torch.device) -> dict[str, Callable[[], Any]]:
    """The layers that are compared, by name; each is made when it is called."""

    def made(kind: Callable[..., nn.Module], **flags: bool) -> nn.Module:
        return kind(
            *(width, width // HEAD_DIM, INNER * width, DROPOUT, "gelu"),
            batch_first=True,
            norm_first=norm_first,
            device=device,
            dtype=torch.bfloat16,
            **flags,
        )

    theirs = nn.TransformerEncoderLayer
    fused = {
        name: lambda flags=flags: made(FusedEncoderLayer, **flags) for name, flags in FLAGS.items()
    }
    return {
        "torch": lambda: made(theirs),
        "compile": lambda: torch.compile(made(theirs), dynamic=False),
        **fused,
    }


def peak_of_a_step(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> int:
    """Bytes at most in a training step on x's GPU, beside x, parameters and gradients."""
    leaf, dy = x.detach().requires_grad_(), torch.ones_like(x)
    with torch.enable_grad():
        for _ in range(WARM_UPS):
            layer(leaf).backward(dy)
        torch.cuda.synchronize(x.device)
        torch.cuda.reset_peak_memory_stats(x.device)
        before = torch.cuda.memory_allocated(x.device)
        layer(leaf).backward(dy)
        torch.cuda.synchronize(x.device)
    return torch.cuda.max_memory_allocated(x.device) - before


def peaks(
    shapes: Sequence[registry.Shape] = SHAPES, skipped: Callable[[str], None] = say
) -> dict[str, dict[str, dict[str, int]]]:
    """Return {operation: {shape: {variant: bytes}}}; `skipped` is told of a step that failed."""
    device = this_device()
    found: dict[str, dict[str, dict[str, int]]] = {}
    for name, norm_first in (("encoder_pre", True), ("encoder_post", False)):
        for shape in shapes:
            of_shape = found.setdefault(name, {}).setdefault(registry.shape_name(shape), {})
            for variant, make in layers(shape[-1], norm_first, device).items():
                x = torch.randn(*shape, device=device, dtype=torch.bfloat16)
                try:
                    of_shape[variant] = peak_of_a_step(make(), x)
                except Exception as error:
                    skipped(f"skipped  {name} {shape} {variant}: {first_line(error)}")
                torch.cuda.empty_cache()
    return found


def run(out: Path | None) -> int:
    """Measure, write the file, print it; return 0. RefusalError without a GPU."""
    if not torch.cuda.is_available():
        raise RefusalError(NO_GPU)
    card = devices.describe(this_device().index)
    record = {
        "card": card,
        "versions": provenance.versions(),
        **provenance.source(),
        "command": provenance.command(),
        "date": provenance.utc_now(),
        "dtype": "bf16",
        "dropout": DROPOUT,
        "peak_bytes": peaks(),
    }
    path = (out or DATA_DIR) / card["slug"] / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2, sort_keys=False) + "\n", encoding="utf-8")
    say(table(record))
    say(str(path))
    return 0


def table(record: dict[str, Any]) -> str:
    """Return what was recorded as text: MB, and the share of PyTorch's."""
    lines = []
    for name, of_shapes in record["peak_bytes"].items():
        for shape, of_variants in of_shapes.items():
            theirs = of_variants.get("torch")
            for variant, peak in of_variants.items():
                share = f"  {peak / theirs:.2f}" if theirs else ""
                lines.append(f"{name:<13} {shape:<12} {variant:<30} {peak / 1e6:9.1f} MB{share}")
    return "\n".join(lines)


def step_memories(data_dir: Path = DATA_DIR) -> list[dict[str, Any]]:
    """Return what was recorded, a dictionary a card as `run` writes it, by the cards' names."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(data_dir.glob(f"*/{FILE}"))]
