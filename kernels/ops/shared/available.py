"""What a variant needs that may be missing: a GPU, a compiler, an optional package."""

from __future__ import annotations

import importlib.util
from importlib import import_module

import torch

from kernels.cuda import CudaError
from kernels.cuda.emulator.build import compiler
from kernels.registry import cases

# Each compilation times its candidates first, so this variant is measured in two cells only: one
# that a GPU's L2 nearly holds, and one far larger, which chapter 02 is told with.
MAX_AUTOTUNE_CASES = cases([(4096, 4096), (16384, 8192)], "bf16")


def needs_cuda(device: torch.device) -> str | None:
    """Why CUDA C++ can't run here, in one sentence; None if it can."""
    if device.type == "cuda":
        found = importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.core")
        return None if found else "cuda.core, which compiles CUDA C++ on a GPU, is not installed"
    try:
        compiler()
    except CudaError as error:
        return str(error)
    return None


def needs_helion(device: torch.device) -> str | None:
    """Why Helion can't run here, in one sentence; None if it can."""
    if importlib.util.find_spec("helion") is None:
        return "helion is not installed"
    if device.type != "cuda":
        return "Helion's kernels run on a GPU only"
    try:
        import_module("kernels.ops.shared.helion_rows")
    except ImportError as error:  # a release of it can ask for a newer PyTorch than there is
        return f"this release of helion does not work with PyTorch {torch.__version__}: {error}"
    return None


def needs_liger(device: torch.device) -> str | None:
    """Why Liger can't run here, in one sentence; None if it can."""
    if importlib.util.find_spec("liger_kernel") is None:
        return "liger-kernel is not installed"
    return None if device.type == "cuda" else "Liger's kernels run on a GPU only"


def needs_gpu(device: torch.device) -> str | None:
    """Why a compiled graph isn't measured here, in one sentence; None if it is."""
    return None if device.type == "cuda" else "torch.compile is measured on a GPU only"
