"""The folder to publish: the built pages, as a host of static files takes them.

    python -m book.tools.site

`make site` builds the book and calls this. The folder is `_build/site`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from book.tools.config import ROOT


def lay_out(html: Path, site: Path) -> None:
    """Copy the pages of the folder `html` to `site`, in place of what is there.

    FileNotFoundError, with a sentence, if the book is not built.
    """
    if not (html / "index.html").exists():
        raise FileNotFoundError(f"{html} holds no index.html: build the book first, by `make book`")
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(html, site, ignore=shutil.ignore_patterns(".buildinfo", ".doctrees"))
    (site / ".nojekyll").touch()  # or GitHub Pages leaves out what begins with an underscore


def main() -> int:
    """Lay the folder out and say where it is; return the exit code."""
    out = ROOT / "_build"
    try:
        lay_out(out / "html", out / "site")
    except FileNotFoundError as error:
        print(error)
        return 1
    print(f"Publish {out / 'site'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
