"""Which card this is: its short name in the data files, how it is set today, what it can do."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kernels.lab.cards.makers import CARDS, Card
from kernels.lab.cards.roofline import Ceilings, ceilings_of
from kernels.lab.records.data import recordings
from kernels.paths import DATA_DIR

# Words of a marketing name that tell no two cards apart.
_EMPTY_WORDS = {"nvidia", "tesla", "geforce", "quadro", "graphics", "device", "gpu"}

_SMI_FIELDS = (
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.limit",
    "temperature.gpu",
)


def slug(device_name: str) -> str:
    """Return the card's short name, a folder of `book/data`: `NVIDIA H100 PCIe` is `h100-pcie`.

    A name that is not known gives its own words in lower case, joined by hyphens.
    """
    words = [w for w in re.split(r"[^a-z0-9]+", device_name.lower()) if w and w not in _EMPTY_WORDS]
    if not words:
        return "gpu"
    name, rest = words[0], words[1:]
    mig = rest[rest.index("mig") :] if "mig" in rest else []  # a slice of a card is another card
    rest = rest[: len(rest) - len(mig)]
    if name == "h100" and "pcie" not in rest and "nvl" not in rest:
        rest = ["sxm"]
    elif name == "h100":
        rest = ["pcie" if "pcie" in rest else "nvl"]
    elif name == "h200":
        rest = ["nvl"] if "nvl" in rest else []
    elif name == "a100":
        memory = [word for word in rest if word.endswith("gb")]
        rest = (["pcie"] if "pcie" in rest else []) + memory
    return "-".join([name, *rest, *mig])


def smi(index: int = 0) -> dict[str, str | None]:
    """Return what `nvidia-smi` says of the card, each field None where it says nothing.

    Clocks are in MHz, `power.limit` in W, the temperature in °C. The card is found by its UUID,
    since `nvidia-smi` does not follow CUDA_VISIBLE_DEVICES.
    """
    nothing: dict[str, str | None] = dict.fromkeys(_SMI_FIELDS)
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return nothing
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    which = f"GPU-{uuid}" if uuid is not None else str(index)
    query = f"--query-gpu={','.join(_SMI_FIELDS)}"
    for card in (which, str(index)):
        command = [tool, query, "--format=csv,noheader,nounits", "-i", card]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return nothing
        cells = [cell.strip() for cell in done.stdout.strip().split(",")]
        if done.returncode == 0 and len(cells) == len(_SMI_FIELDS):
            told = zip(_SMI_FIELDS, cells, strict=True)
            return {key: None if cell.startswith("[") else cell for key, cell in told}
    return nothing


def describe(index: int = 0) -> dict[str, Any]:
    """Return what the card is and how it is set now; memory and L2 in bytes, clocks in MHz.

    RuntimeError where there is no GPU.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("this machine has no CUDA GPU to describe")
    props = torch.cuda.get_device_properties(index)
    told = smi(index)
    return {
        "name": props.name,
        "slug": slug(props.name),
        "driver": told.pop("driver_version"),
        "cuda": torch.version.cuda,
        "capability": f"{props.major}.{props.minor}",
        "multiprocessors": props.multi_processor_count,
        "l2_bytes": int(getattr(props, "L2_cache_size", 0)),
        "memory_bytes": props.total_memory,
        "power_limit_w": told.pop("power.limit"),
        "clocks_mhz": {
            key.removeprefix("clocks."): told[key] for key in told if key.startswith("clocks.")
        },
        "temperature_c": told["temperature.gpu"],
    }


def card(slug_or_name: str) -> Card:
    """Return what the maker says of a card, by short name (`t4`) or by `nvidia-smi`'s name.

    LookupError with one sentence for a card that is not in the table.
    """
    found = CARDS.get(slug(slug_or_name))
    if found is None:
        raise LookupError(
            f"card {slug_or_name!r} is not in the table of makers' figures; "
            f"it has: {', '.join(CARDS)}"
        )
    return found


def this_card(index: int = 0) -> Card:
    """Return what the maker says of this machine's GPU.

    RuntimeError where there is no GPU, LookupError where it is not in the table.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("this machine has no CUDA GPU to recognise")
    return card(torch.cuda.get_device_properties(index).name)


def ceilings_for(card_slug: str, dtype: str, data_dir: Path = DATA_DIR) -> Ceilings:
    """Return a card's ceilings, the arithmetic's in `dtype`: measured if recorded, or the maker's.

    `dtype` is fp32, tf32, fp16, bf16 or fp8. The labels say "measured" or "maker's dense figure",
    and `source` names the recording or the documents. LookupError with one sentence where neither
    gives both ceilings.
    """
    wanted = slug(card_slug)
    for recording in recordings("ceilings", data_dir):
        if recording.gpu != wanted:
            continue
        try:
            found = ceilings_of(recording, dtype)
        except LookupError:  # this dtype was not recorded: then both ceilings are the maker's
            break
        return replace(
            found,
            bandwidth_label=f"{found.bandwidth_label}, measured",
            compute_label=f"{found.compute_label}, measured",
            source=f"measured on one {recording.provenance['card']['name']} "
            f"on {str(recording.provenance['date'])[:10]}",
        )
    if wanted not in CARDS:
        raise LookupError(
            f"nothing is known of card {card_slug!r} in {dtype!r}: it is neither recorded in "
            f"{data_dir.name} nor in the table of makers' figures, which has: {', '.join(CARDS)}"
        )
    told = CARDS[wanted]
    documents = dict.fromkeys((told.sources.memory, told.sources.peaks))
    return Ceilings(
        card=told.slug,
        bandwidth_bytes_per_s=told.bandwidth_bytes_per_s,
        bandwidth_label="DRAM, maker's figure",
        compute_flops_per_s=told.peak(dtype),
        compute_label=f"{dtype}, maker's dense figure",
        source="; ".join(f"{document.title}, {document.url}" for document in documents),
    )
