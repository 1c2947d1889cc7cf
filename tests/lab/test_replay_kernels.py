"""The kernels that are replayed are right, and those that the chapters show."""

import ast
import inspect
import re

import pytest
import torch

from kernels.lab.drawing.explorers.replay import catalogue, kernels_triton
from kernels.lab.drawing.explorers.replay.catalogue import CATALOGUE
from kernels.ops.norms.layernorm import reference
from kernels.paths import ROOT
from tests.book.test_chapter_02 import cells
from tests.lab.test_replay import named, needs_compiler

HERE = ROOT / "kernels/lab/drawing/explorers/replay"


@pytest.mark.parametrize("key", named(*(key for key in CATALOGUE if key.startswith("layer_norm"))))
def test_a_layer_norm_is_right(key):
    y = CATALOGUE[key].call()
    x, weight, bias, _ = catalogue._norm(*y.shape)
    true = reference(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(y.double(), true, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_the_kernels_of_chapter_03_and_04_are_right():
    random = catalogue._random
    assert torch.equal(catalogue.copy(), random(200))
    assert torch.equal(catalogue.copy_cuda(), random(200))
    torch.testing.assert_close(catalogue.row_sum(), random(8, 48).sum(1))
    torch.testing.assert_close(catalogue.row_sum_cuda(), random(4, 128).sum(1))
    assert torch.equal(catalogue.transpose(), random(24, 40).T)
    assert torch.equal(catalogue.transpose_cuda(), random(32, 32).T)
    torch.testing.assert_close(catalogue.row_mean_by_threads(), random(64, 24).mean(1))


def test_the_backward_is_right():
    dy, x, weight, _, _ = catalogue._backward()
    exact = [t.double().requires_grad_() for t in (x, weight, torch.zeros_like(weight))]
    true = torch.autograd.grad(reference(*exact), exact, dy.double())
    dx, dweight, dbias = catalogue.share_rows()
    for got, right in zip((dx, dweight.sum(0), dbias.sum(0)), true, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=1e-5, atol=1e-5)
    got = catalogue.add_row_atomically().double()
    torch.testing.assert_close(got, true[1], rtol=1e-5, atol=1e-5)


def test_the_product_and_the_attention_are_right():
    random = catalogue._random
    true = random(48, 32).double() @ random(32, 64, seed=1).double()
    torch.testing.assert_close(catalogue.product().double(), true, rtol=1e-5, atol=1e-5)
    q, k, v = (random(64, 16, seed=seed).double() for seed in range(3))
    true = torch.nn.functional.scaled_dot_product_attention(
        q[None], k[None], v[None], is_causal=True
    )
    torch.testing.assert_close(catalogue.attention().double(), true[0], rtol=1e-5, atol=1e-5)


CHAPTERS = {
    "copy": "03_first_kernels",
    "row_sum": "03_first_kernels",
    "transpose": "03_first_kernels",
    "layer_norm_loops": "06_fused_norms_in_triton",
    "layer_norm_row": "06_fused_norms_in_triton",
    "layer_norm_tiles": "06_fused_norms_in_triton",
    "input_gradient": "07_backward_of_norms",
    "add_row_atomically": "07_backward_of_norms",
    "share_rows": "07_backward_of_norms",
}


@pytest.mark.parametrize(("name", "chapter"), CHAPTERS.items())
def test_a_kernel_in_triton_is_the_one_that_its_chapter_shows(name, chapter):
    own = inspect.getsource(getattr(kernels_triton, name).fn)
    shown = [
        node
        for source in cells("code", f"{chapter}.ipynb")
        if f"def {name}(" in source
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    assert [ast.unparse(node) for node in shown] == [ast.unparse(ast.parse(own))]


def test_a_kernel_in_cuda_is_the_one_that_its_chapter_shows():
    def bare(text):
        text = re.sub(r"//.*", "", text)
        return re.sub(r"\s+", "", text)

    parts = (HERE / "kernels.cu").read_text().split("\n\n")
    functions = [part for part in parts if "{" in part]
    chapters = [f"{n}.ipynb" for n in ("03_first_kernels", "04_unfused_cuda_kernels")]
    chapters.append("05_fusing_by_hand_in_cuda.ipynb")
    shown = bare("".join(source for name in chapters for source in cells("code", name)))
    # Chapter 04 makes its third way to sum out of the second, by these words.
    shown += shown.replace("_by_tree", "").replace("tree_sum", "block_sum")
    assert len(functions) > 12
    assert [part for part in functions if bare(part) not in shown] == []
