"""Mend faults of the theme and its extensions in the built pages.

Each row of `MENDS` says what it is for; `tests/book/test_pages.py` fails without it.
"""

from __future__ import annotations

import re
from pathlib import Path

from book.tools.config import repository

MENDS = [
    # Live code cells aren't offered, yet their script is on every page: twice, which is an error,
    # and with the address of another host.
    (r'\s*<script[^>]*src="[^"]*sphinx-thebe\.js[^"]*"></script>', ""),
    (r"\s*<script>const THEBE_JS_URL = .*?</script>", ""),
    (r'\s*<link[^>]*href="[^"]*sphinx-thebe\.css[^"]*" />', ""),
    # A fold in the sidebar is a bare arrow, with no name for a screen reader.
    (r'<summary>(?=<span class="toctree-toggle")', '<summary aria-label="Pages of this chapter">'),
    # An element with a label and other words on it can't be spoken to by those words. The words
    # are the better name for a folded cell and for the search; the label is for the theme's switch.
    (r'<summary aria-label="Toggle hidden content">', "<summary>"),
    (r'(<button class="btn search-button-field[^>]*?) aria-label="Search"', r"\1"),
    (r'(<i class="theme-switch [^>]*?) title="[^"]*"', r"\1"),
]


def mend(folder: Path) -> None:
    """Apply `MENDS` to every page below `folder`."""
    for path in folder.rglob("*.html"):
        page = mended = path.read_text()
        for pattern, replacement in MENDS:
            mended = re.sub(pattern, replacement, mended)
        if mended != page:
            path.write_text(mended)


def mend_edit_link(html: Path, root: Path, page: str, writer: str) -> None:
    """Let "Suggest edit" of a page that the build writes lead to the file it is written from.

    `page` is its name in the folder `html`, without suffix, `writer` a path below `root`.
    """
    built = html / f"{page}.html"
    edit = f"/edit/{repository(root).branch}/"
    text = built.read_text(encoding="utf-8").replace(f"{edit}{page}.md", f"{edit}{writer}")
    built.write_text(text, encoding="utf-8")
