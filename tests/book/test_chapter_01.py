"""What chapter 01 shows and derives is what the package runs and counts."""

import ast
import inspect

import torch

import kernels.ops  # noqa: F401
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
