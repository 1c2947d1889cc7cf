"""What the built pages hold beside their words: CUDA in its colours, and all of it on paper."""

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import nbformat
import numpy as np
import pytest

from book.tools.build import toc_files, toc_notebooks
from kernels.paths import ROOT
from tests.book.browsing import Browser


def code_cells(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code"]


def table_rows(executed: Path) -> list[str]:
    """The rows of all tables that an executed notebook's cells built, their cells joined."""
    outputs = (
        output
        for cell in nbformat.read(executed, as_version=4).cells
        for output in cell.get("outputs", [])
    )
    texts = [output.get("data", {}).get("text/markdown", "") for output in outputs]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("|")]
    return [re.sub(r"[|`*]", "", line) for line in lines if not re.match(r"\|:?-", line)]


def test_cuda_is_shown_as_cpp_and_stays_one_string(html: Path) -> None:
    shown, strings = {}, []
    for name in toc_files(ROOT):
        text = (html / f"{name}.html").read_text()
        for cell in re.findall(
            r'<div class="highlight-ipython3[^"]*">.*?<pre>(.*?)</pre>', text, re.S
        ):
            if "__global__" in cell:
                plain = unescape(re.sub(r"<[^>]*>", "", cell)).strip()
                shown[plain] = cell
    for name in toc_files(ROOT):
        path = ROOT / f"{name}.ipynb"
        for source in code_cells(path) if path.exists() else ():
            if re.search(r'""".*__global__.*"""', source, re.S):
                strings.append(source)
                assert re.search(
                    r'<span class="k[^"]*">(__global__|__device__)</span>', shown[source]
                )
    assert len(strings) > 20


def test_paper_holds_every_line_of_code_and_every_row(
    browse: Browser, html: Path, tmp_path: Path
) -> None:
    if not shutil.which("pdftotext"):
        pytest.skip("no pdftotext on PATH (on Debian: apt install poppler-utils)")
    longest = max(toc_notebooks(ROOT), key=lambda path: len(code_cells(path)))
    name = longest.relative_to(ROOT).with_suffix("")
    pdf = tmp_path / "page.pdf"
    browse(url=(html / f"{name}.html").as_uri(), theme="dark", widths=[1280], pdf=str(pdf))
    run = ["pdftotext", "-raw", str(pdf), "-"]
    text = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    printed = "".join(text.replace("’", "'").split())
    lines = [line for source in code_cells(longest) for line in source.splitlines()]
    assert len(lines) > 400
    assert [line for line in lines if "".join(line.split()) not in printed] == []
    rows = table_rows(ROOT / "_build/executed" / name.with_suffix(".ipynb"))
    assert len(rows) > 30
    assert [row for row in rows if "".join(row.split()) not in printed] == []


def test_paper_is_the_same_from_either_theme(browse: Browser, html: Path, tmp_path: Path) -> None:
    if not shutil.which("pdftoppm"):
        pytest.skip("no pdftoppm on PATH (on Debian: apt install poppler-utils)")
    url = (html / f"{toc_files(ROOT)[1]}.html").as_uri()
    pages = {}
    for theme in ("light", "dark"):
        pdf = tmp_path / f"{theme}.pdf"
        browse(url=url, theme=theme, widths=[1280], pdf=str(pdf))
        run = ["pdftoppm", "-r", "30", str(pdf)]
        pixels = subprocess.run(run, capture_output=True, check=True).stdout
        pages[theme] = np.frombuffer(pixels, np.uint8).astype(int)
    light, dark = pages["light"], pages["dark"]
    assert light.shape == dark.shape  # as many pages
    assert light.size > 1e6
    assert light.mean() > 200  # mostly paper
    assert (abs(light - dark) > 40).mean() < 1e-3
