"""Wrong numbers of set 09 get the remark meant for them; what its checks rest on is right."""

import json
import linecache

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernels.grading import check
from kernels.grading.question import Attempt
from kernels.grading.questions.ch09 import asks, chain, forecast, gated, pays, rounds
from kernels.grading.questions.kits.captured import Captured
from kernels.lab.counting import aten, traffic
from kernels.lab.profiling import generated
from kernels.lab.profiling.launched import Launched
from kernels.paths import ROOT
from tests.grading import compiled_09
from tests.grading import submissions_09 as s
from tests.grading.known_wrong import fails

PAGE = ROOT / "exercises" / "09_what_compilers_fuse.ipynb"


def _cell(name: str) -> str:
    cells = json.loads(PAGE.read_text())["cells"]
    return next("".join(cell["source"]) for cell in cells if cell["id"] == name)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.forecast_with(product=(2, False)), "'product'", "an operation as any other"),
        (s.forecast_with(columns=(3, False)), "'columns'", "One graph need not be one kernel"),
        (s.forecast_with(logged=(1, False)), "'logged'", "print is no operation on tensors"),
        (s.forecast_with(dropped=(2, False)), "'dropped'", "Dropout is an operation"),
        (s.forecast_with(glu=(1, False)), "'glu'", "its own neighbours"),
        (s.forecast_with(masked_softmax=(1, False)), "more than one", "along the same rows"),
        (s.forecast_with(product=(1, True)), "it is one launch", "a launch of the library"),
        (s.forecast_with(columns=(1, True)), "it is one launch", "needs all rows"),
        (s.forecast_with(logged=(2, True)), "it is one launch", "lies in two graphs"),
        (s.forecast_with(dropped=(1, True)), "it is one launch", "draws that seed"),
        (s.forecast_with(glu=(1, 1)), "an int; one_launch is True or False", ""),
        (s.forecast_with(glu=(True, True)), "graphs is an int", ""),
        (s.forecast_with(glu=1), "it takes the tuple (graphs, one_launch)", ""),
    ],
)
def test_forecast_wrong(answer, message, means):
    fails(check("09.1", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.rounded_with(eager=s.fused), "eager[", "the fused kernel's result"),
        (s.rounded_with(compiled=lambda a, b, c: a + b + c), "compiled[", "rounded twice"),
        (s.rounded_with(eager=lambda a, b, c: a + (b + c)), "eager[", "b + c is added first"),
        (s.rounded_with(eager=lambda a, b, c: a + b), "eager[", "c is missing"),
        (s.rounded_with(compiled=lambda a, b, c: a + b), "compiled[", "c is missing"),
        (
            s.rounded_with(compiled=lambda a, b, c: a.float() + b.float() + c.float()),
            "it returned torch.float32",
            "the kernel's store rounds",
        ),
        (lambda a, b, c: a + b + c, "it takes the tuple (eager, compiled)", ""),
        (s.rounded_with(eager=lambda a, b, c: 2 * a), "eager[", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_rounds_wrong(answer, message, means, seed):
    fails(check("09.3", answer, seed=seed), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.asked_with(lambda r, n, i, x: -2 * r * n * i), "requested", "in both loops"),
        (s.asked_with(lambda r, n, i, x: -r * n * i), "requested", "b is loaded in both"),
        (s.asked_with(lambda r, n, i, x: (r - r // x) * n * i), "requested", "(1, R0_BLOCK)"),
        (s.asked_with(lambda r, n, i, x: (1 - r // x) * n * i), "requested", "by each program"),
        (s.asked_with(lambda r, n, i, x: r // x * n * i), "requested", "second loop alone"),
        (s.asked_with(lambda r, n, i, x: (x - r // x) * n * i), "requested", "rows / XBLOCK"),
        (s.asked_with(lambda r, n, i, x: -(r // x) * n * i), "requested", "for c are missing"),
        (
            s.asked_with(lambda r, n, i, x: (5 * r + r // x) * n * (1 - i)),
            "requested",
            "elements, not bytes",
        ),
        (
            s.asked_with(lambda r, n, i, x: (1 - 2 * r - r // x) * n * i),
            "requested",
            "That is what it touches",
        ),
        (
            s.asked_with(None, lambda r, n, i, x: (2 * r - 1 + r // x) * n * i),
            "unique",
            "That is what is asked for",
        ),
        (s.asked_with(None, lambda r, n, i, x: 2 * r * n * i), "unique", "is one byte"),
        (s.asked_with(None, lambda r, n, i, x: (r // x - 1) * n * i), "unique", "count once"),
        (s.asked_with(None, lambda r, n, i, x: (r - 1) * n * i), "unique", "count once"),
        (s.asked_with(None, lambda r, n, i, x: -n * i), "unique", "c is missing"),
        (s.asked_with(None, lambda r, n, i, x: -r * n * i), "unique", "y is missing"),
        (lambda *args: 3, "it takes the tuple (requested, unique)", ""),
        (lambda r, n, i, x: (r / x, 1), "returned a float", "// divides"),
    ],
)
def test_asks_wrong(answer, message, means):
    fails(check("09.4", answer, seed=1), message=message, means=means)


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (s.chain_with(lambda r, n, i: -r * n), "eager is", "The mask is missing"),
        (s.chain_with(lambda r, n, i: (i - 1) * r * n), "eager is", "one byte an element"),
        (s.chain_with(lambda r, n, i: -8 * r), "eager is", "The statistics are missing"),
        (s.chain_with(lambda r, n, i: 2 * i * r - 8 * r), "eager is", "4 bytes each"),
        (s.chain_with(lambda r, n, i: -8 * r - r * n), "eager is", "wanted or not"),
        (s.chain_with(lambda r, n, i: -r * n * i), "eager is", "The sum reads two tensors"),
        (s.chain_with(lambda r, n, i: -3 * r * n * i), "eager is", "counts twice"),
        (s.chain_with(lambda r, n, i: r * n), "eager is", "doesn't read the mask"),
        (s.chain_with(lambda r, n, i: -2 * n * i), "eager is", "weight and bias are missing"),
        (s.chain_with(None, lambda r, n, i: -8 * r * n), "compiled is", "stores them in fp32"),
        (s.chain_with(None, lambda r, n, i: -4 * r * n), "compiled is", "read again by a later"),
        (
            s.chain_with(None, lambda r, n, i: (2 * i - 8) * r * n),
            "compiled is",
            "are fp32, whatever",
        ),
        (s.chain_with(None, lambda r, n, i: r * n * i), "compiled is", "touched once"),
        (s.chain_with(None, lambda r, n, i: -16), "compiled is", "The seed is missing"),
        (s.chain_with(None, lambda r, n, i: -8), "compiled is", "8 bytes each"),
        (s.chain_with(None, lambda r, n, i: 8 * r), "compiled is", "stores no statistics"),
        (s.chain_with(None, lambda r, n, i: r * n), "compiled is", "stores no mask"),
        (s.chain_with(None, lambda r, n, i: -8 * r * n - 16), "compiled is", "the least a fused"),
        (s.chain_with(None, lambda r, n, i: -r * n * i), "compiled is", "residual is missing"),
        (s.chain_with(None, lambda r, n, i: -2 * n * i), "compiled is", "weight and bias"),
        (s.chain_with(None, lambda r, n, i: 3), "compiled is", ""),
        (lambda *args: None, "Not answered yet", ""),
    ],
)
def test_chain_bytes_wrong(answer, message, means):
    fails(check("09.5", answer, seed=1), message=message, means=means)


def _fast(rows, eager_ns, compiled_ns, compile_s):
    return sum(rows) * compiled_ns * 1e-9


@pytest.mark.parametrize(
    ("answer", "message", "means"),
    [
        (
            s.totals_with(lambda r, e, c, t: sum(r) * e * 1e-9 + t),
            "eager is",
            "without the compiler",
        ),
        (s.totals_with(lambda r, e, c, t: sum(r) * e * 1e-6), "eager is", "units are mixed"),
        (s.totals_with(lambda r, e, c, t: sum(r) * e), "eager is", "units are mixed"),
        (s.totals_with(lambda r, e, c, t: len(r) * e * 1e-9), "eager is", "its rows times"),
        (
            s.totals_with(None, lambda *a: _fast(*a) + a[3]),
            "default is",
            "compiles once more, for all",
        ),
        (
            s.totals_with(None, lambda *a: _fast(*a) + len(set(a[0])) * a[3]),
            "default is",
            "serves every shape",
        ),
        (s.totals_with(None, lambda *a: _fast(*a) + 2 * a[3]), "default is", "compiled once"),
        (s.totals_with(None, _fast), "default is", "The compilations are missing"),
        (
            s.totals_with(None, lambda *a: _fast(*a) + len(a[0]) * a[3]),
            "default is",
            "compiles nothing",
        ),
        (
            s.totals_with(None, None, lambda *a: _fast(*a) + len(set(a[0])) * a[3]),
            "static is",
            "a ninth runs eagerly",
        ),
        (
            s.totals_with(None, None, lambda *a: _fast(*a) + min(len(set(a[0])), 8) * a[3]),
            "static is",
            "each of their calls",
        ),
        (s.totals_with(None, None, pays.default), "static is", "a graph of its own"),
        (s.totals_with(None, None, _fast), "static is", "The compilations are missing"),
        (
            s.totals_with(None, None, lambda *a: _fast(*a) + len(a[0]) * a[3]),
            "static is",
            "compiled once, however often",
        ),
        (s.totals_with(None, None, pays._all_eager_after), "static is", "still run compiled"),
        (lambda *args: (1.0, 2.0), "a tuple of 2; it takes the tuple", ""),
        (lambda *args: ("1", 2.0, 3.0), "returned a str; a time is a number", ""),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_totals_wrong(answer, message, means, seed):
    fails(check("09.10", answer, seed=seed), message=message, means=means)


# What the page shows, and the compiler, as the checks know them.


def _functions() -> dict:
    names = {"torch": torch, "F": F}
    exec(_cell("q1-functions"), names)
    return names


def test_the_graphs_of_09_1_are_those_that_the_compiler_captures(capsys):
    functions = _functions()
    x = torch.randn(8, 8)
    for name, known in forecast.KNOWN.items():
        function = functions[name]
        captured = Captured(Attempt(function, 0))
        captured(*[x] * function.__code__.co_argcount)
        assert captured.graphs == known.graphs, name


def _recorded() -> dict:
    """What an H200 ran for the functions of the page, and what the compiler wrote for two."""
    return json.loads(compiled_09.FILE.read_text())


def test_the_launches_of_09_1_are_those_that_a_gpu_ran():
    recorded, shown = _recorded()["kernels"], compiled_09.functions()
    assert recorded.keys() == shown.keys() >= forecast.KNOWN.keys()
    for name, told in recorded.items():
        source = told["source"].replace("relu done", "relu is done")
        assert source == compiled_09.source_of(shown[name])
    for name, known in forecast.KNOWN.items():
        assert (len(recorded[name]["names"]) == 1) == known.one_launch, name


def test_the_record_is_made_again_by_one_command(monkeypatch, capsys):
    texts = _recorded()["texts"]
    module = f"x = async_compile.triton('one', '''import triton\n{texts['added']}''')"
    monkeypatch.setattr(generated, "COLS", 32)
    monkeypatch.setattr(torch, "compile", lambda fn: fn)
    monkeypatch.setattr(
        torch._inductor.utils, "run_and_get_code", lambda fn, *args: (fn(*args), [module])
    )
    made = compiled_09.recorded(
        torch.device("cpu"), ["added"], lambda call: (call(), [Launched("add", ("one",))])
    )
    source = compiled_09.source_of(compiled_09.functions()["added"])
    assert made["kernels"] == {"added": {"names": ["one"], "source": source}}
    assert made["texts"] == {"added": texts["added"]}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = compiled_09.FILE.read_bytes()
    assert compiled_09.main() == 2
    assert "no GPU" in capsys.readouterr().out
    assert compiled_09.FILE.read_bytes() == before


def test_the_chapters_functions_are_as_those_of_09_1():
    (record,) = [one for one in generated.generated() if one.gpu == "h200"]
    kinds = {
        "swiglu": "glu",
        "softmax": "masked_softmax",
        "linear_gelu": "product",
        "two_sums": "columns",
        "printed": "logged",
        "chain": "dropped",
    }
    for name, like in kinds.items():
        told = record.functions[name]
        assert told["graphs"] == forecast.KNOWN[like].graphs, name
        assert (len(told["compiled_kernels"]) == 1) == forecast.KNOWN[like].one_launch, name


def test_the_router_of_09_9_was_three_launches():
    assert len(_recorded()["kernels"]["routed"]["names"]) == 3


def _kernel(tmp_path, text):
    """A kernel of its text, interpreted."""
    path = tmp_path / "kernel.py"
    path.write_text(text)
    names = {"triton": triton, "tl": tl, "libdevice": libdevice}
    exec(compile(text, str(path), "exec"), names)
    linecache.checkcache(str(path))
    return next(value for name, value in names.items() if name.startswith("triton_"))


@pytest.mark.parametrize(("xblock", "r0_block"), [(1, 1024), (2, 512), (4, 2048)])
def test_the_kernel_of_the_page_does_what_its_questions_say(tmp_path, xblock, r0_block):
    generator = torch.Generator().manual_seed(xblock)
    a, b = torch.randn(2, 4, 4096, generator=generator).bfloat16()
    c = torch.randn(4096, generator=generator).bfloat16()
    blocks, grid = {"XBLOCK": xblock, "R0_BLOCK": r0_block}, (4 // xblock,)
    y, whole = torch.empty_like(a), torch.empty_like(a)
    kernel = _kernel(tmp_path, _cell("q2-kernel"))
    ledger = traffic.count(kernel[grid], a, b, c, y, **blocks)
    recorded = _kernel(tmp_path, _recorded()["texts"]["gated"])
    ledger_of_whole = traffic.count(recorded[grid], a, b, c, whole, 4096, 4096, **blocks)
    assert torch.equal(y, whole)
    exact = gated.gated_norm(a.double(), b.double(), c.double())
    assert float((y - exact).norm() / exact.norm()) < 0.6 * 2**-8
    for one in (ledger, ledger_of_whole):
        assert one.bytes_requested == asks.requested(4, 4096, 2, xblock)
        assert one.bytes_unique == asks.unique(4, 4096, 2, xblock)


def test_the_lines_of_09_3_are_the_recorded_ones():
    fenced = _cell("q3-text").split("```python\n")[1].split("```")[0]
    recorded = [line.strip() for line in _recorded()["texts"]["added"].splitlines()]
    lines = fenced.splitlines()
    assert len(lines) == 6
    at = recorded.index(lines[0])
    assert recorded[at : at + 6] == lines


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_kernel_of_09_3_rounds_as_the_question_says(tmp_path, dtype):
    kernel = _kernel(tmp_path, _recorded()["texts"]["added"])
    a, b, c = torch.randn(3, 512, generator=torch.Generator().manual_seed(3)).to(dtype)
    y = torch.empty_like(a)
    traffic.count(kernel[(2,)], a, b, c, y, 512, XBLOCK=256)
    assert torch.equal(y, rounds.compiled(a, b, c))
    assert torch.equal(a + b + c, rounds.eager(a, b, c))
    assert not torch.equal(y, a + b + c)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_eager_chain_of_09_5_is_the_ledgers(dtype):
    rows, cols = 30, 200
    x, weight = torch.empty(rows, cols, dtype=dtype), torch.empty(cols, dtype=dtype)
    ledger = aten.count(generated.chain, x, weight, weight.clone(), x.clone())
    assert ledger.bytes_unique == chain.eager(rows, cols, dtype.itemsize)


def test_the_accesses_of_09_5_are_those_of_the_recorded_kernel():
    (record,) = [one for one in generated.generated() if one.gpu == "h200"]
    (text,) = record.kernels("chain").values()
    accesses = [line.split("#")[0].strip() for line in _cell("q5-text").splitlines()]
    shown = [line for line in accesses if "tl.load(" in line or "tl.store(" in line]
    found = [
        line.strip() for line in text.splitlines() if "tl.load(" in line or "tl.store(" in line
    ]
    assert len(shown) == len(found) == 9
    for one, whole in zip(shown, found, strict=True):
        # The page leaves out masks and conversions.
        assert whole.startswith(one.removesuffix(")")), one


@pytest.mark.parametrize("count", [1, 2, 5, 11])
def test_the_compilations_of_09_10_are_the_compilers(count):
    rows = [3 + 2 * n for n in range(count)] * 2
    for dynamic, known in ((None, min(count, 2)), (False, min(count, pays.KEPT))):
        captured = Captured(Attempt(lambda x: x * 2 + 1, 0), dynamic)
        for r in rows:
            captured(torch.randn(r, 4))
        assert captured.graphs == known
        way = pays.default if dynamic is None else pays.static
        assert way(rows, 0.0, 0.0, 1.0) == known
