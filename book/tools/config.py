"""Where the book lies, and what the tools read from its `_config.yml`."""

from __future__ import annotations

import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Repository:
    """Where the book lives: its address, and the branch that pages and notebooks come from."""

    url: str
    branch: str

    @property
    def name(self) -> str:
        """The folder that `git clone` makes of it."""
        return self.url.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")

    def file(self, path: str) -> str:
        """Return the address of a file's page, its path given from the root of the book."""
        return f"{self.url}/blob/{self.branch}/{path}"


def repository(root: Path) -> Repository:
    """Read the repository's address and branch from `_config.yml` below `root`."""
    told = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["repository"]
    return Repository(told["url"], told["branch"])


def version_and_date(root: Path) -> str:
    """Return `Version 0.1.0 of 2026-11-28.`: of pyproject.toml, and the day of the last commit.

    The same commit gives the same words. Below a `root` that is no clone there is no date, and
    without a pyproject.toml nothing is said.
    """
    told = root / "pyproject.toml"
    if not told.exists():
        return ""
    version = tomllib.loads(told.read_text(encoding="utf-8"))["project"]["version"]
    log = ["git", "-C", str(root), "log", "-1", "--format=%cs"]
    try:
        run = subprocess.run(log, capture_output=True, text=True, check=False)
        day = run.stdout.strip()
    except FileNotFoundError:  # no git on this machine
        day = ""
    return f"Version {version} of {day}." if day else f"Version {version}."
