"""Kernels in Gluon, Triton's lower level: compiled and launched like others, and interpreted never.

Their layouts, barriers and copies are those of one kind of card, so that no interpreter runs them.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from kernels.launch import launches


def is_gluon(kernel: JITFunction[Any]) -> bool:
    """Whether a kernel is written in Gluon."""
    return bool(kernel.is_gluon()) if hasattr(kernel, "is_gluon") else False


@functools.cache
def no_gluon() -> str | None:
    """Why kernels in Gluon for Hopper can't be compiled here, in one sentence; None if they can."""
    try:
        import_module("triton.experimental.gluon.language.nvidia.hopper")
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
