"""What compilers told before, kept on disk by the hash of all that it was made from.

A compiler is deterministic, so that what it told once need not be asked again: by another process,
by a fork that ends, or tomorrow. Remove the folder whenever you like.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

_MOST = 4000  # files of a kind; a binary takes some 20 kB


def folder() -> Path:
    """Where it is kept: below `XDG_CACHE_HOME`, or `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "fusing-kernels"


def kept(kind: str, made_from: Iterable[bytes | str], make: Callable[[], bytes]) -> bytes:
    """Return what `make` returns, or what it returned when last called for the same.

    `kind` names a folder; `made_from` is all that the result depends on. What `make` raises is
    raised, and not kept. Without a folder to write to, nothing is kept.
    """
    digest = hashlib.sha256()
    for part in made_from:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(data)} ".encode() + data)
    file = folder() / kind / digest.hexdigest()
    with contextlib.suppress(OSError):
        found = file.read_bytes()
        os.utime(file)
        return found
    made = make()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        # Moved when it is whole: others may read it at any time.
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix="tmp", delete=False) as partial:
            partial.write(made)
        os.replace(partial.name, file)
        _tidy(file.parent)
    return made


def identity(*files: Path) -> str:
    """Tell files from other versions of themselves, without reading them."""
    told = []
    for file in files:
        with contextlib.suppress(OSError):
            status = file.stat()
            told.append(f"{file} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(told)


def _tidy(place: Path) -> None:
    """Remove a quarter, used longest ago, of what is there too much."""
    names = os.listdir(place)
    if len(names) > _MOST:
        files = sorted((place / name for name in names), key=lambda file: file.stat().st_mtime)
        for file in files[: _MOST // 4]:
            file.unlink(missing_ok=True)
