"""Where, when and how a suite was measured: what stands beside its rows as `<suite>.json`."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy
import torch

from kernels.paths import ROOT

PEERS = ("liger-kernel", "helion")  # optional packages whose kernels are timed beside ours
COMMIT_VARIABLE = "KERNELS_COMMIT"  # `<sha>` or `<sha>-dirty`, for a copy of the tree without git


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def source() -> dict[str, Any]:
    """Return the git commit and whether the tree differed from it; None where nothing tells.

    Recorded data is no source: a run that has just written one suite does not make the tree dirty.
    """
    if (ROOT / ".git").exists():
        commit = _git("rev-parse", "HEAD")
        status = _git("status", "--porcelain", "--", ".", ":!book/data")
        if commit and status is not None:
            return {"commit": commit, "dirty": status != ""}
    told = os.environ.get(COMMIT_VARIABLE, "")
    if told:
        return {"commit": told.removesuffix("-dirty"), "dirty": told.endswith("-dirty")}
    return {"commit": None, "dirty": None}


def versions() -> dict[str, str | None]:
    """Return the versions of what the numbers depend on."""
    try:
        import triton

        triton_version: str | None = triton.__version__
    except ImportError:
        triton_version = None
    peers = {name: _installed(name) for name in PEERS}
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton_version,
        "numpy": numpy.__version__,
        **{name: version for name, version in peers.items() if version is not None},
    }


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def command() -> str:
    """Return the command line as a reader would type it, without this machine's paths.

    A path inside the clone is told from there on, an absolute one outside by its last name.
    """
    here = f"{ROOT}{os.sep}"
    told = [word.removeprefix(here) for word in sys.argv[1:]]
    told = [Path(word).name if os.path.isabs(word) else word for word in told]
    return shlex.join(["python", "-m", "kernels.lab", *told])


def utc_now() -> str:
    """Return the time in UTC, to the second, in ISO form."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def run_id() -> str:
    """Return a name for a run, from the time: `20270131-142501`."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
