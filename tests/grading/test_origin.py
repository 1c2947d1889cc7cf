"""What the package's own functions and kernels do earns nothing, however they are wrapped."""

import functools
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from kernels.cuda import cuda
from kernels.grading import check
from kernels.grading.origin import own_kernels
from kernels.grading.question import Attempt, Wrong
from kernels.launch import interpreting
from kernels.ops.norms import backward, forward, layernorm, layernorm_cuda
from kernels.ops.norms.layernorm import layer_norm_row, simple
from kernels.ops.shared.blocks import Block
from kernels.ops.softmax import softmax
from kernels.ops.softmax.forward import softmax_forward
from kernels.paths import ROOT
from kernels.philox_triton import numbers_at
from tests.grading import submissions as s

PACKAGE = "the package"


def by_alias(x, weight, bias, eps):
    return simple(x, weight, bias, eps)


def by_module(x, weight, bias, eps):
    return layernorm.simple(x, weight, bias, eps)


def imported_inside(x, weight, bias, eps):
    from kernels.ops.norms.layernorm import simple as mine

    return mine(x, weight, bias, eps)


def by_registry(x, weight, bias, eps):
    return layernorm.OP.variant("fused_simple").fn(x, weight, bias, eps)


def by_operator(x, weight, bias, eps):
    return torch.ops.fusing_kernels.layer_norm(x, weight, bias, eps)


def by_a_helper(x, weight, bias, eps):
    return helper(x, weight, bias, eps)


def helper(*arguments):
    return by_alias(*arguments)


def by_their_kernel(x, weight, bias, eps):
    y = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    layer_norm_row[(len(x),)](x, weight, bias, y, x.shape[1], x.shape[1], eps, block)
    return y


taken = triton.jit(layer_norm_row.fn)


def by_their_kernel_jitted_again(x, weight, bias, eps):
    y = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    taken[(len(x),)](x, weight, bias, y, x.shape[1], x.shape[1], eps, block)
    return y


@triton.jit
def around(x_ptr, weight_ptr, bias_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr):
    layer_norm_row(x_ptr, weight_ptr, bias_ptr, y_ptr, n_cols, n_cols, eps, BLOCK)


def by_a_kernel_around_theirs(x, weight, bias, eps):
    y = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    around[(len(x),)](x, weight, bias, y, x.shape[1], eps, block)
    return y


def catches_everything(x, weight, bias, eps):
    try:
        return by_registry(x, weight, bias, eps)
    except BaseException:
        return x


class Holder:
    def method(self, x, weight, bias, eps):
        return simple(x, weight, bias, eps)

    def __call__(self, x, weight, bias, eps):
        return simple(x, weight, bias, eps)


bound = functools.partial(layernorm.layer_norm)
LAYER_NORMS = {
    "itself": simple,
    "the public one": layernorm.layer_norm,
    "what it launches": layernorm._launch,
    "partial": functools.partial(simple),
    "partial of partial": functools.partial(functools.partial(simple)),
    "lambda": lambda x, weight, bias, eps: simple(x, weight, bias, eps),
    "lambda of all": lambda *arguments: layernorm.simple(*arguments),
    "lambda of a partial": lambda *arguments: bound(*arguments),
    "default": lambda *arguments, fn=simple: fn(*arguments),
    "wrapped": functools.wraps(simple)(lambda *arguments: simple(*arguments)),
    "method": Holder().method,
    "callable": Holder(),
    "eager": layernorm.eager,
    "alias": by_alias,
    "module": by_module,
    "imported inside": imported_inside,
    "registry": by_registry,
    "operator": by_operator,
    "helper": by_a_helper,
    "their kernel": by_their_kernel,
    "jitted again": by_their_kernel_jitted_again,
    "a kernel around theirs": by_a_kernel_around_theirs,
    "catches everything": catches_everything,
}


def refused(question, answer):
    result = check(question, answer)
    assert result.points == 0, result
    assert PACKAGE in result.message, result
    assert "copy a kernel into a cell" in result.means
    return result.message


@pytest.mark.parametrize("name", LAYER_NORMS)
def test_the_packages_layer_norm_is_nobodys_answer(name):
    refused("02.2", LAYER_NORMS[name])


def test_the_sentence_names_what_it_is():
    assert refused("02.2", simple) == (
        "The answer is kernels.ops.norms.layernorm.simple, a function of the package."
    )
    assert refused("02.2", by_alias).startswith("by_alias calls kernels.ops.norms.layernorm.simple")
    told = refused("02.2", by_their_kernel)
    assert told.startswith(
        "by_their_kernel launches kernels.ops.norms.layernorm.layer_norm_row, a kernel of"
    )


def rms(x, weight, eps):
    return forward.forward(x, None, weight, None, eps, centred=False)[0]


def wide_softmax(x):
    return softmax_forward(x, Block(4096, 4))


def rms_dx(x, dy, weight, inv_rms):
    options = {"wants_weight": False, "wants_bias": False}
    return backward.backward(dy, None, x, weight, None, None, inv_rms, **options)[0]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("02.6", rms),
        ("02.6", lambda x, weight, eps: rms(x, weight, eps)),
        ("03.8", layernorm._launch),
        ("06.6", wide_softmax),
        ("06.6", functools.partial(softmax_forward, block=Block(4096, 4))),
        ("06.6", softmax.softmax),
        ("07.4", rms_dx),
    ],
)
def test_so_are_the_other_kernels_of_the_package(question, answer):
    refused(question, answer)


def in_cuda(source):
    """A LayerNorm by the kernels of a source; like the package's own, but for its address."""
    kernel = source["layer_norm_loops<float, 1>"]

    def my_norm(x, weight, bias, eps):
        y = torch.empty_like(x)
        rows, cols = x.shape
        kernel[rows, 256](x, weight, bias, y, cols, cols, eps)
        return y

    return my_norm


FILE = ROOT / "kernels" / "ops" / "norms" / "layernorm.cu"


def launched(answer):
    """What is told of an answer's launches, whatever they compute."""
    x = torch.ones(2, 64)
    try:
        with interpreting(), own_kernels(Attempt(answer, 0)):
            answer(x, x[0].clone(), x[0].clone(), 1e-5)
    except Wrong as wrong:
        return wrong.sentence
    return ""


@pytest.mark.parametrize(
    "source",
    [layernorm_cuda.module(torch.float32), cuda(FILE.read_text(encoding="utf-8"))],
    ids=["module", "file"],
)
def test_a_source_of_the_package_is_nobodys(source):
    assert launched(in_cuda(source)).startswith("my_norm launches layer_norm_loops<float, 1>, a")


def test_a_kernel_in_cuda_that_was_copied_is_the_readers():
    copied = cuda("// My own copy.\n" + FILE.read_text(encoding="utf-8"))
    assert launched(in_cuda(copied)) == ""


@pytest.mark.parametrize("question", ["04.3", "04.10", "05.3", "05.7"])
def test_questions_in_cuda_are_held_to_it(question):
    for answer in (layernorm_cuda.fused, layernorm.layer_norm):
        refused(question, answer)
        refused(question, lambda *arguments, answer=answer: answer(*arguments))


def test_a_kernel_that_was_copied_is_the_readers(tmp_path):
    """As from the page of chapter 06: the same text in a cell earns what any other would."""
    text = (ROOT / "kernels" / "ops" / "norms" / "layernorm.py").read_text()
    kernel = text[text.index("@triton.jit\ndef layer_norm_row") : text.index("def _taught")]
    kernel = kernel.replace("layer_norm_row", "my_row")
    file = tmp_path / "cell.py"
    file.write_text(f"import torch\nimport triton\nimport triton.language as tl\n\n{kernel}")
    scope = {"__name__": "cell"}
    exec(compile(file.read_text(), str(file), "exec"), scope)

    def my_layer_norm(x, weight, bias, eps):
        y = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        scope["my_row"][(len(x),)](x, weight, bias, y, x.shape[1], x.shape[1], eps, block)
        return y

    assert check("02.2", my_layer_norm).passed


@triton.jit
def random_kernel(y_ptr, seed_offset_ptr, BLOCK: tl.constexpr):
    element = tl.arange(0, BLOCK)
    tl.store(y_ptr + element, numbers_at(seed_offset_ptr, element).to(tl.float32))


def test_random_numbers_of_the_package_may_be_called_from_a_kernel():
    assert Path(numbers_at.fn.__code__.co_filename).is_relative_to(ROOT / "kernels")

    def draws(x, *_):
        random_kernel[(1,)](x, torch.tensor([7, 3]), BLOCK=64)

    assert launched(draws) == ""


def test_a_name_that_only_looks_like_theirs_is_no_call_of_theirs():
    def mine(x, weight, bias, eps):
        # `simple`, `layer_norm_row` and `softmax` are names in this file too.
        return mine.simple(x, weight, bias, eps)

    mine.simple = s.masked_square
    assert check("02.2", mine).passed


@pytest.mark.parametrize("answer", [s.with_fault(""), s.masked_square, s.two_rows])
def test_a_readers_own_keeps_its_points(answer):
    assert check("02.2", answer).passed
    assert check("02.2", functools.partial(answer)).passed
    assert check("02.2", lambda *arguments: answer(*arguments)).passed
