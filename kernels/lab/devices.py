"""Which card this is: its short name in the data files, and how it is set today."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import torch

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
