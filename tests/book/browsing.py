"""A browser that tests open pages in."""

import itertools
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

MOST_SECONDS = 120  # for one page

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@dataclass(frozen=True)
class Browser:
    """A browser that is open: a running `browser.mjs`, and the file of its complaints."""

    process: subprocess.Popen[bytes]
    complaints: IO[str]
    numbers: Iterator[int] = field(default_factory=itertools.count)
    read: bytearray = field(default_factory=bytearray)

    def __call__(self, **page: Any) -> dict[str, Any]:
        """Open a page; return what `browser.mjs` saw of it."""
        (report,) = self.together(page)
        return report

    def together(self, *pages: dict[str, Any]) -> list[dict[str, Any]]:
        """Open some pages at once; return what was seen of each."""
        assert self.process.stdin
        numbers = [next(self.numbers) for _ in pages]
        for number, page in zip(numbers, pages, strict=True):
            self.process.stdin.write(json.dumps({**page, "number": number}).encode() + b"\n")
        self.process.stdin.flush()
        reports: dict[int, dict[str, Any]] = {}
        while not reports.keys() >= set(numbers):
            report = json.loads(self._line([page["url"] for page in pages]))
            reports[report.pop("number")] = report
        found = [reports[number] for number in numbers]
        assert not any("error" in report for report in found), found
        return found

    def _line(self, urls: list[str]) -> bytes:
        """Wait for the next line; read past the stream's own buffer, which `select` can't see."""
        assert self.process.stdout
        while b"\n" not in self.read:
            told, _, _ = select.select([self.process.stdout], [], [], MOST_SECONDS)
            assert told, f"{' and '.join(urls)} took more than {MOST_SECONDS} s"
            part = os.read(self.process.stdout.fileno(), 1 << 16)
            self.complaints.seek(0)
            assert part, self.complaints.read()
            self.read.extend(part)
        line, _, rest = bytes(self.read).partition(b"\n")
        self.read[:] = rest
        return line
