"""The kernels that chapter 03 shows are right, and its predictions are what the ledger counts."""

import importlib.util
import re
import shutil
import sys

import pytest
import torch
import triton

import kernels
from book.tools import build
from kernels.cuda import cuda
from kernels.lab.counting import traffic
from kernels.paths import ROOT
from tests.book.test_chapter_02 import cells

CHAPTER = "03_first_kernels.ipynb"
RAGGED = [(1, 1), (3, 5), (16, 16), (17, 33), (50, 70)]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page's Triton kernels, as a module: the compiler reads their source from a file."""
    shown = [source for source in cells("code", CHAPTER) if source.startswith("@triton.jit")]
    kernels_only = [re.split(r"\n\n\n(?!@)", source)[0] for source in shown]
    path = tmp_path_factory.mktemp("chapter") / "chapter_03_kernels.py"
    head = "import triton\nimport triton.language as tl\n"
    path.write_text("\n\n\n".join([head, *kernels_only]) + "\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[path.stem]


@pytest.fixture(scope="module")
def cuda_page():
    """The page's CUDA C++ kernels, all in one module."""
    if shutil.which("g++") is None:
        pytest.skip("CUDA C++ on a CPU is compiled by g++, which isn't installed")
    shown = [re.search(r'_source = """\\\n(.*?)"""', s, re.S) for s in cells("code", CHAPTER)]
    return cuda("".join(found[1] for found in shown if found))


def counts(launch):
    """What `check_counts` on the page counts: bytes read and written, lanes and masked lanes."""
    (step,) = traffic.count(launch)
    return step.read_unique, step.write_unique, step.lanes, step.masked_lanes


@pytest.mark.parametrize(("n", "block"), [(1, 16), (16, 16), (17, 16), (1000, 256), (1024, 256)])
def test_copy_and_add_are_right_and_move_what_the_page_predicts(page, n, block):
    x, y, copied, added = torch.randn(n), torch.randn(n), torch.zeros(n), torch.zeros(n)
    programs = triton.cdiv(n, block)
    lanes, masked = programs * block, programs * block - n
    copied_counts = counts(lambda: page.copy[(programs,)](x, copied, n, BLOCK=block))
    added_counts = counts(lambda: page.add[(programs,)](x, y, added, n, BLOCK=block))
    assert copied_counts == (4 * n, 4 * n, 2 * lanes, 2 * masked)
    assert added_counts == (8 * n, 4 * n, 3 * lanes, 3 * masked)
    assert torch.equal(copied, x)
    assert torch.equal(added, x + y)


@pytest.mark.parametrize(("rows", "cols"), RAGGED)
def test_row_sum_is_right_and_moves_what_the_page_predicts(page, rows, cols):
    x, sums = torch.randn(rows, cols), torch.zeros(rows)
    block = triton.next_power_of_2(cols)
    assert counts(lambda: page.row_sum[(rows,)](x, sums, cols, BLOCK=block)) == (
        4 * rows * cols,
        4 * rows,
        rows * (block + 1),
        rows * (block - cols),
    )
    # Each of at most log2(block) additions rounds once, by at most eps / 2 of the absolute sum.
    allowed = torch.finfo(torch.float32).eps * block.bit_length() * x.double().abs().sum(1)
    assert ((sums - x.double().sum(1)).abs() <= allowed).all()


@pytest.mark.parametrize(("rows", "cols"), RAGGED)
def test_transpose_is_right_and_moves_what_the_page_predicts(page, rows, cols):
    x, turned = torch.randn(rows, cols), torch.zeros(cols, rows)
    grid = (triton.cdiv(rows, 16), triton.cdiv(cols, 16))
    lanes = 2 * grid[0] * grid[1] * 16 * 16
    size = 4 * rows * cols
    counted = counts(lambda: page.transpose[grid](x, turned, rows, cols, BLOCK=16))
    assert counted == (size, size, lanes, lanes - 2 * rows * cols)
    assert torch.equal(turned, x.T)


@pytest.mark.parametrize(("rows", "cols"), RAGGED)
def test_the_cuda_kernels_are_right_and_move_the_same_bytes(cuda_page, rows, cols):
    n, (x, y) = rows * cols, torch.randn(2, rows, cols)
    copied, added, sums = torch.zeros_like(x), torch.zeros_like(x), torch.zeros(rows)
    turned, blocks = torch.zeros(cols, rows), triton.cdiv(n, 64)
    assert cuda_page.copy[blocks, 64](x, copied, n).bytes_unique == 8 * n
    assert cuda_page.add[blocks, 64](x, y, added, n).bytes_unique == 12 * n
    assert cuda_page.row_sum[rows, 64](x, sums, cols).bytes_unique == 4 * n + 4 * rows
    tiles = (triton.cdiv(cols, 32), triton.cdiv(rows, 8))
    assert cuda_page.transpose[tiles, (32, 8)](x, turned, rows, cols).bytes_unique == 8 * n
    assert torch.equal(copied, x)
    assert torch.equal(added, x + y)
    assert torch.equal(turned, x.T)
    # A thread adds at most two numbers of these rows, then 64 threads halve six times.
    allowed = torch.finfo(torch.float32).eps * 8 * x.double().abs().sum(1)
    assert ((sums - x.double().sum(1)).abs() <= allowed).all()


def test_a_warp_of_the_naive_transpose_loads_4_sectors_and_stores_32(cuda_page):
    x, turned = torch.randn(32, 32), torch.zeros(32, 32)
    counted = cuda_page.transpose[(1, 4), (32, 8)](x, turned, 32, 32)
    assert {line.kind: line.sectors for line in counted.lines} == {"load": 32 * 4, "store": 32 * 32}


def test_the_missing_mask_is_told_by_argument_program_and_index(page):
    x, y, out = torch.randn(1000), torch.randn(1000), torch.zeros(1000)
    with pytest.raises(kernels.KernelError) as caught:
        page.add_unmasked[(4,)](x, y, out, 1000, BLOCK=256)
    told = str(caught.value)
    assert "'add_unmasked'" in told
    assert "'x_ptr'" in told
    assert "program (3, 0, 0)" in told
    assert "index 1000" in told
    assert not out[768:].any()
    page.add_unmasked[(4,)](*torch.randn(2, 1024), torch.zeros(1024), 1024, BLOCK=256)


def test_row_sum_of_a_view_goes_wrong_in_silence_as_the_page_says(page):
    view, sums = torch.randn(8, 64)[:, :50], torch.zeros(8)
    page.row_sum[(8,)](view, sums, 50, BLOCK=64)
    assert not torch.allclose(sums, view.sum(1))
    packed = view.contiguous()
    page.row_sum[(8,)](packed, sums, 50, BLOCK=64)
    torch.testing.assert_close(sums, packed.sum(1))


def test_the_notebook_runs_and_tells_what_is_missing(cuda_page):
    notebook = build.executed(ROOT / "book" / CHAPTER, ROOT)
    printed = "".join(
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "program (3, 0, 0)" in printed
    assert "y equals x: True" in printed
