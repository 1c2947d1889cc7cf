"""What a variant needs that may be missing: a GPU, a compiler, an optional package."""

from __future__ import annotations

import functools
import importlib.util
from importlib import import_module

import torch

from kernels.cuda import CudaError
from kernels.cuda.emulator.build import compiler
from kernels.launch import launches
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


@functools.cache
def no_gluon() -> str | None:
    """Why kernels in Gluon for Hopper can't be compiled here, in one sentence; None if they can."""
    try:
        import_module("kernels.ops.shared.gluon")
        import_module("triton.experimental.gluon.nvidia.hopper")
    except (ImportError, AttributeError) as error:
        return f"this release of Triton has no Gluon for Hopper: {error}"
    return None


def needs_hopper(device: torch.device) -> str | None:
    """Why a kernel written for Hopper can't run here, in one sentence; None if it can."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return "its kernel is written for GPUs of compute capability 9.0"
    return no_gluon()


def may_take_gluon(x: torch.Tensor) -> bool:
    """Whether a launch on x may be of a kernel in Gluon: on a GPU, or only recorded.

    Where launches are interpreted or counted, a kernel in Triton stands in.
    """
    mode = launches.mode()
    return (x.is_cuda if mode is None else mode == "record") and no_gluon() is None


def needs_liger(device: torch.device) -> str | None:
    """Why Liger can't run here, in one sentence; None if it can."""
    if importlib.util.find_spec("liger_kernel") is None:
        return "liger-kernel is not installed"
    return None if device.type == "cuda" else "Liger's kernels run on a GPU only"


def needs_gpu(device: torch.device) -> str | None:
    """Why a compiled graph isn't measured here, in one sentence; None if it is."""
    return None if device.type == "cuda" else "torch.compile is measured on a GPU only"
