"""The built pages, and a browser for them.

A reader's machine without Chromium skips the tests that need it and says so; CI must have it.
"""

import functools
import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from book.tools import packages
from book.tools.build import build_html, execute_all
from kernels.paths import ROOT
from tests.book.browsing import CHROMIUM, MOST_SECONDS, Browser


@pytest.fixture(scope="session")
def browse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Start a browser that all tests of this process share."""
    if not CHROMIUM and not os.environ.get("CI"):
        pytest.skip(
            "no Chromium on PATH, so the browser tests of the pages are left out "
            "(on Debian: apt install chromium)"
        )
    assert CHROMIUM, "CI needs Chromium for the browser tests of the pages: .ci/run installs it"
    tools = packages.fetch(["axe-core", "playwright-core"])
    job = {
        "chromium": CHROMIUM,
        "axe": str(tools["axe-core"] / "axe.min.js"),
        "playwright": str(tools["playwright-core"]),
    }
    script = str(Path(__file__).with_name("browser.mjs"))
    with (
        (tmp_path_factory.mktemp("browser") / "complaints.txt").open("w+") as complaints,
        subprocess.Popen(
            [str(packages.NODE), script, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
        ) as process,
    ):
        yield Browser(process, complaints)
        process.communicate(timeout=MOST_SECONDS)  # its input ends, and so does it


@pytest.fixture(scope="session")
def html() -> Path:
    """Build the book as `make book` does; return the folder of its pages."""
    out = ROOT / "_build"
    out.mkdir(exist_ok=True)
    with FileLock(out / "lock"):  # the tests run in two processes
        assert execute_all(ROOT, out) == 0
        assert build_html(ROOT) == 0
    return out / "html"


@pytest.fixture(scope="session")
def served(html: Path) -> Iterator[str]:
    """Serve the pages; return their address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(html))
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
