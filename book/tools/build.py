"""Build the book: execute the notebooks that changed, then make the HTML.

Sphinx and its caches compare a page's own text, so a change in `kernels/` or in the data would
leave old outputs in a page. Here every executed copy carries a stamp of all that it came from:
`seen.py` reads off which files a page can see.

    python book/tools/build.py [--execute-only] [--jobs N]

Everything is written below `_build/`: `executed/` and `status.json` from this step, `source/` for
Jupyter Book with the scripts of `packages.toml` in `extra/`, `html/` from them.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import yaml
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from book.tools import packages, planning
from book.tools import status as status_page
from book.tools.config import ROOT, version_and_date
from book.tools.mend import mend, mend_edit_link
from book.tools.seen import PACKAGE, files_below, seen

CELL_SECONDS = 120
# Pages that the build writes, and what a reader would change for them.
WRITTEN = {status_page.PAGE: status_page.WRITER, planning.PAGE: planning.WRITER}
# Runs after a notebook's own cells: the files of the modules that it loaded.
LOADED = """\
import json, sys
print(json.dumps([getattr(m, "__file__", None) or "" for m in list(sys.modules.values())]))
"""

Status = dict[str, dict[str, Any]]


def toc_files(root: Path) -> list[str]:
    """Return the entries of `_toc.yml`, without suffix, in reading order."""

    def walk(node: Any) -> Iterator[str]:
        if isinstance(node, list):
            for item in node:
                yield from walk(item)
        elif isinstance(node, dict):
            for key, value in node.items():
                if key in ("root", "file"):
                    yield value
                else:
                    yield from walk(value)

    return list(walk(yaml.safe_load((root / "_toc.yml").read_text())))


def toc_notebooks(root: Path) -> list[Path]:
    """Return the notebooks that `_toc.yml` names, as paths below `root`."""
    paths = (root / f"{entry}.ipynb" for entry in toc_files(root))
    return [path for path in paths if path.exists()]


def _digest(root: Path, paths: Sequence[Path]) -> str:
    """Hash the Python version, and the name and content of every file of `paths`."""
    digest = hashlib.sha256(platform.python_version().encode())
    for path in paths:
        digest.update(f"\n{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def stamp(notebook_path: Path, root: Path) -> str:
    """Hash all that the outputs of a notebook come from.

    These are the notebook, what it sees of `kernels/` and of the data, what executes it, the pins
    and the Python version. Returns 64 hexadecimal digits.
    """
    tools = (root / "book" / "tools" / name for name in ("build.py", "seen.py"))
    files = [notebook_path, root / "requirements.txt", *filter(Path.exists, tools)]
    return _digest(root, [*files, *seen(notebook_path, root)])


def _read_status(out: Path) -> Status:
    path = out / "status.json"
    status: Status = json.loads(path.read_text()) if path.exists() else {}
    return status


def _write_status(out: Path, status: Status) -> None:
    partial = out / "status.json.partial"
    partial.write_text(json.dumps(status, indent=1, sort_keys=True) + "\n")
    partial.replace(out / "status.json")


def _environment() -> dict[str, str | None]:
    """Return what the outputs of a run depend on: versions, and the GPU's name or None."""
    import torch  # here, because an unchanged build has no use for its two seconds

    versions = {name: importlib.metadata.version(name) for name in ("torch", "triton", "numpy")}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"python": platform.python_version(), **versions, "gpu": gpu}


async def _execute(notebook_path: Path, root: Path) -> tuple[nbformat.NotebookNode, str | None]:
    """Run a notebook in a kernel of this Python; return it, and what failed or None."""
    notebook = nbformat.read(notebook_path, as_version=4)
    notebook.cells.append(last := nbformat.v4.new_code_cell(LOADED))
    # Only this environment's kernel: one of the same name in the user's folder would win.
    specs = KernelSpecManager(kernel_dirs=[str(Path(sys.prefix, "share", "jupyter", "kernels"))])
    manager = AsyncKernelManager(
        kernel_name="python3", kernel_spec_manager=specs, transport_encryption="auto"
    )
    running = {"index": 0}
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=CELL_SECONDS,
        resources={"metadata": {"path": str(root)}},
        on_cell_start=lambda cell, cell_index: running.update(index=cell_index),
    )
    search_path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    try:
        # KERNELS_PROGRESS: a build earns nobody points.
        variables = {"PYTHONPATH": search_path, "KERNELS_PROGRESS": ""}
        await client.async_execute(env={**os.environ, **variables})
    except (CellExecutionError, CellTimeoutError, RuntimeError) as error:  # the last: it died
        if isinstance(error, CellExecutionError):
            told = error.traceback  # begins with the cell's source
        else:
            told = f"{notebook.cells[running['index']].source}\n\n{error}"
        return notebook, f"cell {running['index'] + 1}:\n{told}"
    finally:
        notebook.cells.remove(last)
        await manager.shutdown_kernel(now=True)
    return notebook, _unseen(last, notebook_path, root)


def _unseen(last: nbformat.NotebookNode, notebook_path: Path, root: Path) -> str | None:
    """Say so if a notebook loaded a module that its stamp leaves out: it would stay old."""
    printed = "".join(output.get("text", "") for output in last.outputs)
    known = set(seen(notebook_path, root))
    for name in json.loads(printed.splitlines()[-1]):
        loaded = Path(name)
        if loaded not in known and loaded.is_relative_to(root / PACKAGE):
            return f"its end: it loaded {loaded}, which book/tools/seen.py doesn't find in its code"
    return None


def executed(notebook_path: Path, root: Path) -> nbformat.NotebookNode:
    """Return a notebook of `root` with its outputs: as the build ran it, or run now.

    The build's copy is taken where it comes from all that is there now: the same files, and the
    same versions and GPU. RuntimeError, with the cell and its traceback, if the notebook fails.
    """
    name, out = notebook_path.relative_to(root).as_posix(), root / "_build"
    told, copy = _read_status(out).get(name, {}), out / "executed" / name
    if told.get("stamp") == stamp(notebook_path, root) and copy.exists():
        environment = _environment()
        if {key: told.get(key) for key in environment} == environment:
            return nbformat.read(copy, as_version=4)
    notebook, failure = asyncio.run(_execute(notebook_path, root))
    if failure:
        raise RuntimeError(f"{name}: {failure}")
    return notebook


async def _execute_changed(changed: dict[str, str], root: Path, out: Path, jobs: int) -> int:
    """Execute the notebooks of `changed` (name to stamp), at most `jobs` at a time."""
    status, environment, slots = _read_status(out), _environment(), asyncio.Semaphore(jobs)

    async def one(name: str, stamp_before: str) -> bool:
        executed = out / "executed" / name
        async with slots:
            print(f"{name}: running", flush=True)
            start = time.monotonic()
            notebook, failure = await _execute(root / name, root)
            seconds = round(time.monotonic() - start, 1)
        if failure:
            print(f"{name}: FAILED after {seconds} s in {failure}", flush=True)
            return False
        executed.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, executed)
        status[name] = {
            "stamp": stamp_before,
            "seconds": seconds,
            "executed_at": datetime.now(UTC).isoformat(timespec="seconds"),
            **environment,
        }
        _write_status(out, status)
        print(f"{name}: done in {seconds} s", flush=True)
        return True

    # An old result must not outlive a failure.
    for name in changed:
        status.pop(name, None)
    _write_status(out, status)
    return (await asyncio.gather(*(one(*item) for item in changed.items()))).count(False)


def execute_all(root: Path, out: Path, jobs: int = 2) -> int:
    """Execute every notebook of `_toc.yml` whose stamp changed, into `out/executed/`.

    `out/status.json` records each one's stamp, seconds, UTC time, versions and GPU. Returns how
    many failed; a failed notebook keeps no stamp.
    """
    out.mkdir(parents=True, exist_ok=True)
    stamps = {p.relative_to(root).as_posix(): stamp(p, root) for p in toc_notebooks(root)}
    status = _read_status(out)
    kept = {
        name
        for name, value in stamps.items()
        if status.get(name, {}).get("stamp") == value and (out / "executed" / name).exists()
    }
    print(f"{len(kept)} of {len(stamps)} notebooks unchanged", flush=True)
    changed = {name: value for name, value in stamps.items() if name not in kept}
    return asyncio.run(_execute_changed(changed, root, out, jobs)) if changed else 0


def _assemble(root: Path, out: Path) -> Path:
    """Lay the pages out for Jupyter Book, each notebook as executed; return their folder."""
    source = out / "source"
    shutil.rmtree(source, ignore_errors=True)
    hidden = shutil.ignore_patterns("tools", "__pycache__", "*.ipynb", ".*")
    shutil.copytree(root / "book", source / "book", ignore=hidden)
    shutil.copy2(root / "_toc.yml", source / "_toc.yml")
    config = (root / "_config.yml").read_text(encoding="utf-8")
    config = config.replace("VERSION_AND_DATE", version_and_date(root))
    (source / "_config.yml").write_text(config, encoding="utf-8")
    for notebook in toc_notebooks(root):
        page = source / notebook.relative_to(root)
        page.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(out / "executed" / notebook.relative_to(root), page)
    if status_page.PAGE in toc_files(root):
        text = status_page.page(root, _read_status(out), toc_notebooks(root))
        (source / f"{status_page.PAGE}.md").write_text(text, encoding="utf-8")
    if planning.PAGE in toc_files(root):
        text = planning.page(root, toc_notebooks(root))
        (source / f"{planning.PAGE}.md").write_text(text, encoding="utf-8")
    return source


def build_html(root: Path) -> int:
    """Make `_build/html` from the executed pages, warnings being errors; return the exit code.

    Nothing is made when no page, setting or pin changed.
    """
    out = root / "_build"
    source = _assemble(root, out)
    try:
        packages.lay_out(out / "extra")
    except packages.PackageError as error:
        print(error, "HTML: FAILED", sep="\n", flush=True)
        return 1
    tools = files_below(root / "book" / "tools")
    made_from = _digest(root, [root / "requirements.txt", *tools, *files_below(source)])
    index, record = out / "html" / "index.html", out / "html.sha256"
    if not (index.exists() and record.exists() and record.read_text() == made_from):
        print("HTML: building", flush=True)
        start = time.monotonic()
        record.unlink(missing_ok=True)
        # Afresh: an incremental build is silent about the warnings of pages it doesn't read again.
        shutil.rmtree(out / "html", ignore_errors=True)
        command = [str(Path(sys.executable).with_name("jupyter-book")), "build", str(source)]
        command += ["--path-output", str(root), "--all", "-W", "--keep-going", "-q"]
        run = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},  # where our extension of Sphinx lies
        )
        if run.returncode:
            print(run.stdout, "HTML: FAILED", sep="\n", flush=True)
            return run.returncode
        mend(out / "html")
        for page, writer in WRITTEN.items():
            if page in toc_files(root):
                mend_edit_link(out / "html", root, page, writer)
        record.write_text(made_from)
        print(f"HTML: done in {time.monotonic() - start:.1f} s")
    print(f"Open {index}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Execute the changed notebooks, build the HTML.")
    parser.add_argument("--execute-only", action="store_true", help="leave the HTML as it is")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at a time (default: 2)")
    options = parser.parse_args(arguments)
    if execute_all(ROOT, ROOT / "_build", options.jobs):
        return 1
    return 0 if options.execute_only else build_html(ROOT)


if __name__ == "__main__":
    sys.exit(main())
