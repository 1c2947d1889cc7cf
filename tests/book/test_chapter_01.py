"""What chapter 01 shows and derives is what the package runs and counts."""

import ast
import inspect

import torch

import kernels.ops  # noqa: F401
from kernels.lab import fusion
from kernels.lab.drawing.explorers.fusion.widget import fusion_cards
from kernels.lab.measuring import memory_probes
from kernels.registry import get
from tests.book.test_chapter_02 import cells, plain

CHAPTER = "01_memory_and_the_roofline.ipynb"


def test_the_kernels_on_the_page_are_the_packages():
    shown = {
        node.name: plain(node)
        for source in cells("code", CHAPTER)
        if "@triton.jit" in source
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }
    for kernel in (memory_probes.chase, memory_probes.copy_by_programs):
        (kept,) = ast.parse(inspect.getsource(kernel.fn)).body
        assert shown.pop(kernel.__name__) == plain(kept)
    assert not shown


def test_the_intensity_of_layer_norm_is_its_cost():
    (source,) = [source for source in cells("code", CHAPTER) if '"LayerNorm": (7, 4' in source]
    rows, cols = 10**6, 10**6  # so that what is counted once a row or a column vanishes
    cost = get("layernorm").cost((rows, cols), torch.bfloat16, "fwd")
    assert round(cost.flops / rows / cols) == 7
    assert round(cost.bytes_ideal / rows / cols) == 4
    assert source.count("LayerNorm") == 1


def test_the_chain_of_joints_moves_what_the_answers_say():
    rows, cols = 16384, 8192
    opened = fusion("layernorm_gelu_dropout_residual", (rows, cols))
    closed = fusion("layernorm_gelu_dropout_residual", (rows, cols), closed="everything")
    each = [page.plan().bytes_moved / (rows * cols) for page in (opened, closed)]
    assert [round(one, 2) for one in each] == [18, 6]
    firsts = []
    for joint in range(3):
        opened.closed = [joint == at for at in range(3)]
        firsts.append(opened.plan().bytes_moved)
    assert len(set(firsts)) == 1
    assert sum("layernorm_gelu_dropout_residual" in one for one in cells("code", CHAPTER)) == 1


def test_below_the_rows_of_the_answer_launches_take_longer_than_bytes():
    (card,) = (one for one in fusion_cards() if one["key"] == "h100-sxm-measured")
    limit = 4 * card["launch_us"] * 1e-6 * card["bandwidth"] / (18 * 8192)
    for rows in (int(limit) - 1, int(limit) + 2):
        found = fusion("layernorm_gelu_dropout_residual", (rows, 8192), card="h100-sxm").plan()
        waits = sum(launch.time_us for launch in found.launches)
        assert (waits > 4 * card["launch_us"]) == (rows > limit)
