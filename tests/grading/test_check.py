"""`check` never raises, gives nothing for nothing, and shows its verdict once."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from kernels.grading import Result, check
from kernels.grading.question import PLACEHOLDER, Question, questions, register
from tests.grading import submissions


class Unspeakable(Exception):  # noqa: N818
    def __str__(self):
        raise RuntimeError("no text")


class Hostile:
    def __getattribute__(self, name):
        raise SystemExit(name)

    def __call__(self, *args):
        raise GeneratorExit


class HostileName:
    @property
    def __name__(self):
        raise KeyboardInterrupt

    def __call__(self, *args):
        return self


def raising(error):
    def answer(*args):
        raise error

    return answer


def recursing(*args):
    return recursing(*args)


NASTY = {
    "a number": 5,
    "a text": "x",
    "an object": object(),
    "a tensor": torch.ones(3),
    "a module": sys,
    "a class": int,
    "always equal": submissions.AlwaysEqual(),
    "hostile": Hostile(),
    "hostile name": HostileName(),
    "no arguments": lambda: None,
    "exits": lambda *args: sys.exit(0),
    "interrupts": raising(KeyboardInterrupt()),
    "raises": raising(ValueError("why.")),
    "raises without text": raising(Unspeakable()),
    "raises a group": raising(BaseExceptionGroup("two", [SystemExit(), ValueError()])),
    "recurses": recursing,
    "generates": lambda *args: (yield),
    "huge": lambda *args: 10**5000,
    "nan": lambda *args: float("nan"),
    "true": lambda *args: True,
    "sparse": lambda x, *args: x.to_sparse() if isinstance(x, torch.Tensor) else x,
    "meta": lambda x, *args: x.to("meta") if isinstance(x, torch.Tensor) else x,
    "a parameter": lambda x, *args: torch.nn.Parameter(torch.ones(4, 64)),
    "needs a gradient": lambda x, *args: torch.ones(4, 64, requires_grad=True),
    "infinite": lambda x, *args: torch.full((4, 64), float("inf")),
    "an own error": raising(NotImplementedError("mine")),
}


@pytest.mark.parametrize("question", ["02.1", "02.2", "02.3"])
@pytest.mark.parametrize("name", NASTY)
def test_never_raises(question, name):
    result = check(question, NASTY[name])
    assert type(result) is Result
    assert result.points == 0
    assert result.max_points > 0
    assert "check itself failed" not in result.message


@pytest.mark.parametrize("answer", [None, ..., raising(NotImplementedError(PLACEHOLDER))])
@pytest.mark.parametrize("question", ["02.1", "02.2", "02.3"])
def test_untouched_is_not_answered(question, answer):
    result = check(question, answer)
    assert result.points == 0
    assert result.message.startswith("Not answered yet")


@pytest.mark.parametrize("question", ["9.9", "", None, 2, [], object()])
def test_an_unknown_question_gets_one_sentence(question):
    result = check(question, 1)
    assert result.max_points == 0
    assert "02.1, 02.2, 02.3" in result.message


def test_without_an_answer():
    assert check("02.2").message.startswith("Not answered yet")


@pytest.mark.parametrize("seed", [-1, 1.5, "x", True, 2**32])
def test_a_seed_is_a_whole_number(seed):
    assert check("02.1", lambda *args: 1, seed=seed).message.startswith("seed takes")


def test_a_hostile_question_or_seed():
    assert check(Hostile(), 1).max_points == 0
    assert check("02.1", lambda *args: 1, seed=Hostile()).message.startswith("seed takes")


def test_an_exception_is_told_with_its_line():
    def answer(rows, cols, itemsize):
        return rows + cols.size

    result = check("02.1", answer)
    line = answer.__code__.co_firstlineno + 1
    assert f"AttributeError: 'int' object has no attribute 'size', in line {line}" in result.message


WRAPPERS = """
import functools
def named(f):
    @functools.wraps(f)
    def inner(*arguments):
        return f(*arguments)
    return inner
def bare(f):
    return lambda *arguments: f(*arguments)
"""
WRAPPED = """


def answer(rows, cols, itemsize):
    return rows + cols.size
class Callable:
    def __call__(self, *arguments):
        return answer(*arguments)
"""


@pytest.mark.parametrize("wrapper", ["named", "bare", "functools.partial", "torch.no_grad()"])
def test_the_line_is_the_readers_whatever_is_wrapped_around_it(wrapper):
    cells = {"torch": torch}
    for number, source in enumerate((WRAPPERS, WRAPPED)):
        exec(compile(source, f"<cell {number}>", "exec"), cells)
    for answer in (f"{wrapper}(answer)", f"{wrapper}(Callable())"):
        assert "in line 5 of its cell" in check("02.1", eval(answer, cells)).message


def test_a_seed_repeats_the_inputs_and_none_does_not():
    def asked(**seed):
        def answer(*args):
            raise ValueError(args)

        return check("02.1", answer, **seed).message

    assert asked(seed=3) == asked(seed=3)
    assert asked() != asked()


def test_the_verdict_names_the_call_that_repeats_it():
    result = check("02.2", submissions.own_operator)
    seed = int(result.rerun.split("seed=")[1].rstrip(")"))
    assert result.rerun == f'check("02.2", own_operator, seed={seed})'
    assert check("02.2", submissions.own_operator, seed=seed).message == result.message


def test_nothing_is_left_behind():
    generator, empty = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    check("02.2", submissions.masked_square)
    assert torch.equal(generator, torch.get_rng_state())
    assert torch.are_deterministic_algorithms_enabled() == empty


def test_it_prints_in_a_script(capsys):
    result = check("02.1", submissions.bytes_by_operator)
    told = capsys.readouterr().out
    assert told == f"{result!r}\n"
    assert "✓ passed · 02.1" in told
    assert "2 of 2 points" in told
    assert "seed=" in told


def test_it_shows_once_in_a_cell_and_again_in_the_next(monkeypatch):
    shown = []
    shell = SimpleNamespace(execution_count=4)
    display = SimpleNamespace(display=lambda data, raw: shown.append(data))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    result = check("02.1", lambda *args: 1.5)
    result._ipython_display_()
    assert len(shown) == 1
    shell.execution_count = 5
    result._ipython_display_()
    assert len(shown) == 2
    assert set(shown[0]) == {"text/plain", "text/html"}


def test_html_shows_a_readers_text_as_text():
    result = check("02.1", raising(ValueError("<script>&")))
    assert "&lt;script&gt;&amp;" in result._repr_html_()
    assert "<script>" not in result._repr_html_()


def test_a_closed_output_loses_no_result(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert check("02.1", submissions.bytes_by_operator).passed


def test_questions_are_well_formed():
    for name, question in questions().items():
        assert name == question.id
        assert question.points > 0
        assert question.title
        assert question.hint.endswith((".", "?"))
        with pytest.raises(ValueError, match="registered already"):
            register(question)


def test_an_unknown_kind_is_refused():
    question = Question("99.1", "t", "guess", 1, "f()", "h.", lambda attempt: None)
    with pytest.raises(ValueError, match="kind 'guess'"):
        register(question)


@pytest.mark.parametrize("question", ["02.1", "03.3"])
def test_a_check_imports_no_compiler_again(question):
    # Each check forks: what only the fork imports is imported at every check, and takes seconds.
    script = f"""
import sys, torch
from kernels.grading import check
from kernels.grading.question import questions

def answer(*arguments):
    before = "torch._dynamo" in sys.modules
    torch.empty_like(arguments[0]) if isinstance(arguments[0], torch.Tensor) else None
    print(before, "torch._dynamo" in sys.modules)
    raise ValueError

ready = bool(questions()[{question!r}].needs)
expected = f"{{ready}} {{ready}}"
assert check({question!r}, answer).printed == expected
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("question", ["03.3", "04.3"])
def test_a_check_finds_out_nothing_again_of_the_compilers(question):
    # What Triton finds out of itself, and what loading NVRTC takes, is half of a short check.
    script = f"""
import sys, torch
from kernels.cuda.cuda_compile import no_compiler
from kernels.grading import check
from triton.backends.nvidia.compiler import get_ptxas_version
from triton.runtime.cache import triton_key

def answer(*given):
    known = [f.cache_info().currsize > 0 for f in (triton_key, get_ptxas_version)]
    print(*known, "triton.experimental.gluon" in sys.modules, "cuda.core" in sys.modules)
    raise ValueError

told = check({question!r}, answer).printed
there = {question == "04.3"} and no_compiler() is None
assert told == f"True True True {{there}}", told
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_questions_of_cuda_need_its_compiler():
    for name, question in questions().items():
        compiled = hasattr(sys.modules[question.grade.__module__], "right_in_cuda")
        assert ("kernels.cuda.nvrtc_loaded" in question.needs) == compiled, name
