"""What is checked once, when the package is imported."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent


def ignore_triton_interpret() -> None:
    """With TRITON_INTERPRET set nothing compiles; unset it, or say what to do if it is too late."""
    if os.environ.get("TRITON_INTERPRET", "0") in ("", "0"):
        return
    if "triton" in sys.modules:
        raise ImportError(
            "TRITON_INTERPRET is set and Triton is imported already, so no kernel would compile; "
            "unset it and restart Python: kernels runs CPU tensors in the interpreter by itself"
        )
    del os.environ["TRITON_INTERPRET"]
    warnings.warn(
        "TRITON_INTERPRET was set and is ignored: kernels runs CPU tensors in the interpreter "
        "by itself, and GPU tensors compiled",
        stacklevel=3,
    )


def warn_of_other_package() -> None:
    """Another distribution called `kernels` may be installed; its users would get this package."""
    try:
        other = metadata.distribution("kernels")
    except metadata.PackageNotFoundError:
        return
    warnings.warn(
        f"another package called kernels ({other.version}) is installed too; in this process "
        f"`import kernels` is the book's, from {HERE}: run what needs the other one elsewhere",
        stacklevel=3,
    )
