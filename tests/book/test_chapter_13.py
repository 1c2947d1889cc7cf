"""The kernels that chapter 13 shows are the package's, and its counts are those of its formulas."""

import ast
import dataclasses
import functools
import inspect
import itertools
import json
import re
import shutil

import pytest
import torch
import torch.nn.functional as F

from book.tools import build
from kernels.lab import plots, traffic
from kernels.lab.measuring.shown import recorded
from kernels.lab.records.data import recordings, write_suite
from kernels.launch import assume_capability, compile_launch, recording
from kernels.ops.attention import attention, moves, simple_backward
from kernels.ops.attention.backward_configurations import Tilings
from kernels.ops.attention.configurations import Tiling
from kernels.ops.losses import linear_cross_entropy, loss_kernels
from kernels.ops.losses.moves import walk_steps
from kernels.paths import DATA_DIR, ROOT
from kernels.registry import Case, Moves
from tests.book.test_chapter_07 import loaded
from tests.book.test_chapter_12 import Shown, column, only
from tests.lab.test_data import a_row

CHAPTER = "13_flash_attention_backward.ipynb"
KERNELS = ("log2e", "delta-kernel", "dkdv-kernel", "dq-kernel", "atomic-kernel", "loss-kernel")
# Cells of which the functions are wanted, and not what follows them.
FUNCTIONS = ("softmax-back", "formulas", "launch", "case", "asked", "chunked", "chunks-count")
PAGES = {
    "delta_rows": simple_backward.simple_delta,
    "keys_and_values": simple_backward.simple_dkdv,
    "queries": simple_backward.simple_dq,
    "token_losses": loss_kernels.loss_simple,
}


@pytest.fixture(scope="module")
def sources():
    notebook = json.loads((ROOT / "book" / CHAPTER).read_text(encoding="utf-8"))
    return {
        cell["id"]: "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    }


@pytest.fixture(scope="module")
def page(sources, tmp_path_factory):
    """The page's kernels and functions, as a module."""
    texts = [sources["imports"], 'device, BF16 = "cpu", torch.bfloat16']
    texts += [sources[kind] for kind in KERNELS]
    texts += [only(sources[kind], ast.FunctionDef) for kind in FUNCTIONS]
    text = "\n\n\n".join(texts) + "\n"
    return loaded(text, tmp_path_factory.mktemp("chapter"), "chapter_13_kernels")


# ------------------------------------------------------------------ the page's kernels


class Inlined(ast.NodeTransformer):
    """Names that the page gives to part of an expression, for the width of its lines, put back."""

    NAMES = ("there", "out", "end", "is_it", "x_mask", "weight_mask")

    def __init__(self):
        self.given = {}

    def visit_Assign(self, node):
        self.generic_visit(node)
        (target,) = node.targets
        if isinstance(target, ast.Name) and target.id in self.NAMES:
            self.given[target.id] = node.value
            return None
        return node

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load) and node.id in self.given:
            return self.given[node.id]
        return node


def spelled_out(function):
    """A kernel's arguments and statements, without comments, layout or names for short."""
    tree = Inlined().visit(ast.parse(inspect.getsource(function.fn)).body[0])
    return ast.dump(tree.args), [ast.dump(one) for one in tree.body]


@pytest.mark.parametrize("name", PAGES)
def test_the_kernels_of_the_page_read_as_the_packages(page, name):
    assert spelled_out(getattr(page, name)) == spelled_out(PAGES[name])


def in_the_pages_form(shape, dtype, seed=3):
    given = attention.inputs(shape, dtype, "cpu", seed=seed)
    q, k, v = (given[name] for name in "qkv")
    do = torch.randn(shape, generator=torch.Generator().manual_seed(seed + 1)).to(dtype)
    return q, k, v, do


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 2, 37, 16), (1, 1, 64, 32), (1, 2, 1, 16)])
def test_the_backward_of_the_page_is_the_packages(page, monkeypatch, dtype, causal, shape):
    q, k, v, do = in_the_pages_form(shape, dtype)
    o, lse = attention.attention(q, k, v, causal=causal, return_lse=True)
    tiles = (16, 32), (32, 16)
    tilings = Tilings(Tiling(*tiles[1], 4, 1), Tiling(*tiles[0], 4, 1))
    monkeypatch.setattr(simple_backward, "tilings_for", lambda *_, **__: tilings)
    mine = functools.partial(page.attend_back, q, k, v, o, lse, do, causal, tiles)
    scale = shape[-1] ** -0.5
    theirs = functools.partial(simple_backward.simple_backward, do, q, k, v, o, lse, causal, scale)
    for got, wanted in zip(mine(), theirs(), strict=True):
        assert torch.equal(got, wanted)
    told = [
        [(a.program, a.argument, a.kind, tuple(a.offsets)) for a in traffic.trace(call)]
        for call in (mine, theirs)
    ]
    assert told[0] == told[1]
    leaves = [one.double().requires_grad_() for one in (q, k, v)]
    true = torch.autograd.grad(attention.reference(*leaves, causal=causal), leaves, do.double())
    bound = 6 * torch.finfo(dtype).eps  # of a row with one key dq and dk are 0
    for got, exact in zip(mine(), true, strict=True):
        assert (got.double() - exact).norm() <= bound * exact.norm() + 1e-6


@pytest.mark.parametrize("causal", [False, True])
def test_the_page_launches_the_binaries_of_fused_simple(page, causal):
    x = torch.empty(1, 2, 1024, 64, dtype=torch.bfloat16)
    lse = torch.empty(1, 2, 1024)
    with assume_capability(80), recording() as launches:
        simple_backward.simple_backward(x, x, x, x, x, lse, causal, 0.125)
        _, dkdv, dq = launches
        tiles = [(one.arguments["BLOCK_M"], one.arguments["BLOCK_N"]) for one in (dkdv, dq)]
        options = {"num_warps": 8, "num_stages": 2}  # as both tilings of this card have them
        page.attend_back(x, x, x, x, lse, x, causal, tuple(tiles), **options)
    _, wanted_dkdv, wanted_dq, _, mine_dkdv, mine_dq = (compile_launch(one, 80) for one in launches)
    named = ("registers", "stack_bytes", "shared_bytes", "matrix_instruction")
    for mine, wanted in ((mine_dkdv, wanted_dkdv), (mine_dq, wanted_dq)):
        assert [getattr(mine, n) for n in named] == [getattr(wanted, n) for n in named]


@pytest.mark.parametrize("capability", [75, 80, 90, 120])
def test_what_the_page_runs_on_a_gpu_compiles_without_spills(page, capability):
    dtype = torch.float16 if capability < 80 else torch.bfloat16
    x, of_rows = torch.empty(1, 2, 70, 32, dtype=dtype), torch.empty(1, 2, 70)
    targets = torch.empty(30, dtype=torch.int64)
    with recording() as launches:
        page.attend_back(x, x, x, x, of_rows, x)
        args = (x[0, 0], x[0, 0], targets, of_rows, 30, 70, 32, -100)
        page.token_losses[(2,)](*args, BLOCK_TOKENS=16, BLOCK_WORDS=32, BLOCK_K=16)
    assert len(launches) == 4
    for launch in launches:
        assert compile_launch(launch, capability).stack_bytes == 0


@pytest.mark.parametrize("tile", [(16, 16), (32, 16), (16, 32), (128, 64), (64, 128)])
@pytest.mark.parametrize("n", [1, 16, 37, 128, 1000])
def test_the_pages_formula_is_the_packages(page, tile, n):
    case = Case((1, 1, n, 64), torch.bfloat16)
    for_dq = Tiling(*tile[::-1], num_warps=4, num_stages=1)
    for_dkdv = Tiling(*tile, num_warps=4, num_stages=1)
    theirs = moves.simple_backward_moves(case, Tilings(for_dq, for_dkdv))
    assert page.asked_back(n, 64, tile, tile[::-1]) == theirs.requested
    assert page.touched_back(n, 64) == theirs.unique


def test_what_the_page_says_of_the_loops(page):
    n, d = 2**20, 128
    of_dkdv, of_dq = 8 * n * n * d, 6 * n * n * d
    whole = page.asked_back(n, d, (64, 128), (128, 64))
    without_dq = page.asked_back(n, d, (64, 128), (n, 64))
    assert of_dq / (whole - without_dq) == pytest.approx(1.5 * 128, rel=1e-3)
    without_dkdv = page.asked_back(n, d, (64, n), (128, 64))
    # The two numbers a row, L and delta, are 8 bytes beside q's and do's 4d.
    assert of_dkdv / (whole - without_dkdv) == pytest.approx(2 * 128 / (1 + 2 / d), rel=1e-3)
    # Chapter 12: an exponential in the time of so many FLOPs of the tensor cores.
    assert 4096 / 16 == 256
    least, forward = (attention.OP.cost((1, 1, n, d), torch.bfloat16, p) for p in ("bwd", "fwd"))
    assert least.flops == 2.5 * forward.flops


def test_the_numbers_in_the_text_are_those_of_the_formulas():
    notebook = json.loads((ROOT / "book" / CHAPTER).read_text(encoding="utf-8"))
    texts = {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}
    costs = [(2 * d + 256) / 4 for d in (64, 128)]
    assert "{:.0f} and {:.0f} FLOPs a byte".format(*costs) in texts["again"]
    n, heads = 8192, 64
    table = 2 * n * n
    sizes = f"{table / 1e6:.0f} MB a head, {heads * table / 1e9:.1f} GB for {heads}"
    assert sizes in texts["kept-text"]
    assert f"{4 * n / 1e3:.0f} KB a head" in texts["kept-text"]
    assert f"$N/2 = {n // 2}$" in texts["kept-text"]
    eighty = f"{80 * round(heads * table / 1e9, 1):.0f} GB, 80 times the 8.6 of one"
    assert eighty in texts["kept-read"]
    takes = [queries * 128 // (8 * 32) for queries in (32, 64, 128)]  # keys, threads
    assert "takes {}, {} or {} numbers more".format(*takes) in texts["causal"]
    assert f"$2K/4 = {2 * 4096 // 4}$" in texts["loss-back"]
    assert f"there are {16 * 512 // 128} programs, half of an H100's" in texts["fails"]
    chunks = f"Eight chunks have {8192 // 8} tokens each, 32 have {8192 // 32}"
    assert chunks in texts["chunks-time-text"]


# ------------------------------------------------------------------ a softmax, and its loss


def test_a_softmax_goes_back_from_its_output(page):
    scores = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
    dp = torch.randn(5, 9, dtype=torch.float64)
    (true,) = torch.autograd.grad(torch.softmax(scores, -1), scores, dp)
    found = page.softmax_back(torch.softmax(scores, -1).detach(), dp)
    assert torch.allclose(found, true)
    assert torch.allclose(found.sum(-1), torch.zeros(5, dtype=torch.float64), atol=1e-15)


def test_the_gradient_of_log_sum_exp_is_the_softmax():
    scores = torch.randn(9, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(torch.logsumexp(scores, 0), scores)
    assert torch.allclose(found, torch.softmax(scores, 0))


def test_delta_is_a_sum_over_the_output_with_dropout_too():
    generator = torch.Generator().manual_seed(2)
    p = torch.softmax(torch.randn(7, 11, generator=generator).double(), -1)
    v, do = (torch.randn(n, 5, generator=generator).double() for n in (11, 7))
    z = (torch.rand(7, 11, generator=generator) > 0.3) / 0.7
    dp = z * (do @ v.T)
    assert torch.allclose((p * dp).sum(-1), (do * ((p * z) @ v)).sum(-1))


@pytest.mark.parametrize("chunk", [1, 7, 30, 64])
def test_the_chunked_loss_of_the_page_is_pytorchs(page, chunk):
    generator = torch.Generator().manual_seed(chunk)
    x, weight = (torch.randn(n, 12, generator=generator).double() for n in (30, 41))
    targets = torch.randint(41, (30,), generator=generator)
    leaves = [one.clone().requires_grad_() for one in (x, weight)]
    loss = F.cross_entropy(F.linear(*leaves), targets)
    true = (loss.detach(), *torch.autograd.grad(loss, leaves))
    for got, exact in zip(page.chunked(x, weight, targets, chunk), true, strict=True):
        assert torch.allclose(got, exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(30, 24, 70), (1, 17, 5), (33, 16, 64)])
def test_the_kernel_of_the_losses_is_right_and_writes_no_logit(page, dtype, shape):
    tokens, width, words = shape
    x, weight, targets = linear_cross_entropy.inputs(shape, dtype, "cpu", seed=1).values()
    losses = torch.empty(tokens)
    grid = page.token_losses[(-(-tokens // 16),)]
    args = (x, weight, targets, losses, tokens, words, width, -100)
    ledger = traffic.count(grid, *args, BLOCK_TOKENS=16, BLOCK_WORDS=32, BLOCK_K=16)
    grid(*args, BLOCK_TOKENS=16, BLOCK_WORDS=32, BLOCK_K=16)
    true = linear_cross_entropy.reference(x, weight, targets, reduction="none")
    assert torch.allclose(losses.double(), true, atol=1e-5)
    (step,) = ledger.steps
    written = {one.tensor: one.write_unique for one in step.tensors if one.write_unique}
    assert written == {"losses": 4 * tokens}


@pytest.mark.parametrize("chunk", [128, 256, 512, 1024])
def test_the_formula_of_chunks_is_the_packages(page, monkeypatch, chunk):
    shape = (1024, 256, 4096)
    monkeypatch.setattr("kernels.ops.losses.moves.chunk_tokens", lambda *_: chunk)
    case = Case(shape, torch.bfloat16)
    steps = Moves.of(*walk_steps(case, wants_x=True, wants_weight=True))
    scaled = 2 * (1024 + 4096) * 256 * 2
    small = 64 * 1024  # targets, losses, counts
    assert abs(page.moved(shape, 1024 // chunk) - scaled - steps.unique) < small


# ------------------------------------------------------------------ the page, executed


def test_the_notebook_runs_and_its_counts_are_as_told():
    notebook = build.executed(ROOT / "book" / CHAPTER, ROOT)
    told = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("text", "") or output["data"].get("text/markdown", "")
            told[cell.id] = told.get(cell.id, "") + text
    n, heads, d = 8192, 64, 128
    table, tensor, of_rows = 2 * n * n * heads, 2 * n * d * heads, 4 * n * heads
    assert "delta: 29.0  ds: -1.9 -2.7 0.2 4.4" in told["softmax-back"]
    assert "autograd says the same: True" in told["softmax-back"]
    errors = [float(one) for one in re.findall(r"error (\S+)", told["formulas"])]
    assert len(errors) == 3
    assert max(errors) < 1e-14
    # What is kept, and what is there at once.
    assert f"{table / 1e6:,.0f} MB; at once, at most: 25.50 GB" in told["kept"]
    # Of the three gradients, which are taken off, one is there beside three tables.
    assert f"three tables alone: {3 * table / 1e9:.2f} GB" in told["kept"]
    assert f"{(3 * table + tensor - 3 * tensor) / 1e9:.2f}" == "25.50"
    assert f"{tensor / 1e6:,.0f} MB" in told["kept"]
    assert f"{of_rows / 1e6:,.0f} MB; at once, at most: 0.14 GB" in told["kept"]
    assert column(told["kept-layers"], 2)[:3] == ["687.19 GB", "0.17 GB", "10.91 GB"]
    # Again or kept: the answer in the text, and that the ridge lies between.
    assert column(told["again-roof"], 2)[:4] == ["96", "128", "192", "320"]
    for line in told["again-roof"].splitlines()[2:6]:
        dim, _, again, kept, *overlapped = (float(c.split()[0]) for c in line.split("|")[1:7])
        assert (again < kept) == (dim < 350)
        assert (overlapped[0] < overlapped[1]) == (dim < 128)
    passes = [int(one) for one in re.findall(r"tables: (\d)", told["eager-ledger"])]
    assert passes == [1, 1, 3, 2, 1, 1]
    assert f"{(9 * table + 8 * tensor) / 1e9:.2f} GB" in told["eager-ledger"]
    times = [[float(c.split()[0].replace(",", "")) for c in line.split("|")[2:6]]
             for line in told["again-whole"].splitlines()[2:5]]  # fmt: skip
    assert times[0][1] > times[0][2]  # eager waits for its bytes
    assert all(one[1] < one[2] for one in times[1:])
    assert times[2][2] < times[0][1] / 2  # the most FLOPs, and less than half of the time
    assert 0.5 < (times[2][2] + times[2][3]) / times[0][1] < 0.6  # "little more than half"
    # Atomics: right, in several ways; the ways out.
    drawn, different = re.search(r"6: (\d), different results: (\d)", told["atomic-run"]).groups()
    assert drawn == different == "5"  # "one came twice"
    dq = "dq has 4,096 bytes; read and written: 8,192 distinct, 32,768 asked for"
    assert dq in told["atomic-run"]
    _, atomics, partial, second, *_ = (line.split("|") for line in told["orders"].splitlines()[1:])
    assert [row[3].split(",")[0].strip() for row in (atomics, partial, second)] == [
        "537 MB", "537 MB", "273 MB"
    ]  # fmt: skip
    assert [row[4].split(",")[0].strip() for row in (atomics, partial, second)] == [
        "8 MB", "537 MB", "8 MB"
    ]  # fmt: skip
    assert "34 GFLOP" in told["orders"]
    assert "171 FLOPs for each byte not moved, left of the ridge still" in told["orders"]
    # The kernels.
    assert told["check"].count("same bits True") == 6
    errors = re.findall(r"errors (\S+), (\S+), (\S+);", told["check"])
    assert all(float(one) < 4e-3 for three in errors for one in three)
    least, most, mean = map(int, re.search(r"squares: (\d+)% to (\d+)%, mean (\d+)%",
                                           told["check"]).groups())  # fmt: skip
    assert least > 30
    assert most < 70
    assert 40 < mean < 60  # "about half"
    spilled = dict(zip(column(told["limits"], 2), column(told["limits"], 5), strict=True))
    assert spilled["32×128"] == spilled["64×128"] == spilled["128×64"] == "0 B"
    assert spilled["128×128"] != "0 B"
    kept = [float(one) for one in re.findall(r"keeps +(\S+) GB", told["dropout-kept"])]
    assert kept == [round(2.5 * table / 1e9, 2), 0.14]
    right, wrong = zip(*re.findall(r"error (\S+), with another mask (\S+)", told["dropout-run"]),
                       strict=True)  # fmt: skip
    assert all(float(one) < 1e-6 for one in right)
    assert all(float(one) > 0.3 for one in wrong)
    fine, coarse = map(float, re.search(r"fp32: (\S+), in bf16: (\S+)",
                                        told["numerics-run"]).groups())  # fmt: skip
    assert coarse > 3 * fine
    shifted = re.findall(r"kernels (\S+), with an exact o (\S+), eager (\S+)",
                         told["numerics-run"])  # fmt: skip
    assert len(shifted) == 4
    *_, of_values, of_both = ([float(one) for one in three] for three in shifted)
    kernels, exact, eager = of_values
    assert 2 * eager > kernels > eager > 10 * exact
    kernels, exact, eager = of_both  # where keys too share a part, the mean key is long
    assert kernels > 3 * eager
    assert kernels > 20 * exact
    assert "exp(s - L) = nan" in told["numerics-run"]
    assert told["lost-row"].count("where no key is seen 0.00") == 3
    # The loss.
    assert "loss 1.609, dl: 0.1 0.3 -0.8 0.4" in told["ce-hand"]
    assert "4.29 GB in fp32" in told["ce-kept"]
    assert "kept (8192, 131072): 2,147.48 MB" in told["ce-kept"]
    assert "inputs and gradients: 5.30 GB" in told["ce-kept"]
    assert "three tables alone: 6.44 GB" in told["ce-kept"]
    logits, gradients = 8192 * 131_072 * 2, (8192 + 131_072) * 4096 * 2
    assert f"{(3 * logits - gradients) / 1e9:.2f}" == "5.30"
    assert float(re.search(r"error (\S+);", told["loss-run"])[1]) < 1e-6
    assert "logits" not in told["loss-run"]
    guesses = re.findall(r"(\S+) GB by the formula, +(\S+) GB", told["chunks-count"])
    assert [guess == counted for guess, counted in guesses] == [True] * 3
    lines = {line.split("|")[1].strip(): line.split("|")[2:] for line in
             told["chunks-time"].splitlines()[2:7]}  # fmt: skip
    moved = {name: float(cells[2].split()[0]) for name, cells in lines.items() if cells[2].strip()}
    assert moved["chunks: 8"] / moved["PyTorch's two operators"] == pytest.approx(2, rel=0.05)
    one, *more = (float(e) for e in re.findall(r"dweight (\S+)", told["chunks-rounding"]))
    added = [(error**2 - one**2) ** 0.5 for error in more]  # with 8, 32 and 128 chunks
    assert added[1] / added[0] == pytest.approx(2, rel=0.2)
    assert added[2] / added[1] == pytest.approx(2, rel=0.2)
    unscaled = [float(e) for e in re.findall(r"unscaled +(\S+) GB", told["chunks-count"])]
    scaling = 2 * (8192 + 131_072) * 4096 * 2 / 1e9
    assert unscaled[-1] == pytest.approx(float(guesses[-1][1]) - scaling, abs=0.02)
    waits = {name: float(cells[3].split()[0]) > float(cells[4].split()[0])
             for name, cells in lines.items() if cells[3].strip()}  # fmt: skip
    assert waits["chunks: 32"]
    assert not waits["chunks: 8"]


# ------------------------------------------------------------------ cells that wait for records


@pytest.fixture
def told(sources):
    """What the page's cells of measured times tell from a folder of records."""

    def run(data_dir):
        names, found = {"old": True}, {}
        exec(sources["imports"], names)
        names["recorded"] = functools.partial(recorded, data_dir=data_dir)
        names["recordings"] = functools.partial(recordings, data_dir=data_dir)
        names["plots"] = Shown()
        exec(sources["layer"], names)
        exec(only(sources["asked"], ast.FunctionDef), names)
        names |= {"T": 8192, "K": 4096, "V": 131_072, "N": 8192}
        exec(sources["again-roof"].partition("us = N")[0], names)
        for cell in ("eager-ledger", "again-whole", "traffic-bars", "dram", "measured",
                     "roofline", "losses-measured", "losses-split"):  # fmt: skip
            *rest, last = ast.parse(sources[cell]).body
            exec(compile(ast.Module(rest, []), cell, "exec"), names)
            if isinstance(last, ast.Expr):
                found[cell] = eval(compile(ast.Expression(last.value), cell, "eval"), names)
        return {cell: getattr(result, "data", result) for cell, result in found.items()}

    return run


def records(folder, times_us, gpu="h100-sxm"):
    """Records of the page's cases on a card, beside the ceilings of an H100."""
    unwanted = shutil.ignore_patterns("attention.*", "losses.*")
    shutil.copytree(DATA_DIR / "h100-sxm", folder / "h100-sxm", ignore=unwanted)
    told = (folder / "h100-sxm" / "ceilings.json").read_text(encoding="utf-8")
    provenance = json.loads(told)
    if gpu != "h100-sxm":
        provenance["card"] = provenance["card"] | {"name": "another card", "slug": gpu}
    for op, pass_ in ((attention.OP, "bwd"), (linear_cross_entropy.OP, "train")):
        rows = []
        cases = op.cases_of(pass_) if times_us else ()
        for case, (variant, time_us) in itertools.product(cases, times_us.items()):
            if variant not in op.variants:
                continue
            cost = op.cost(case.shape, case.dtype, pass_, options=case.options)
            row = a_row(
                op=op.name,
                variant=variant,
                pass_=pass_,
                shape="x".join(map(str, case.shape)),
                dtype="bf16",
                options="causal" if case.options else "",
                time_us_p20=time_us,
                time_us_p50=time_us,
                time_us_p95=time_us,
                flops=cost.flops,
                bytes_ideal=cost.bytes_ideal,
                bytes_unique=cost.bytes_ideal,
                bytes_dram_read=cost.read_bytes,
                bytes_dram_write=cost.write_bytes,
            )
            rows.append(row)
            if variant == "liger":
                rows[-1] = dataclasses.replace(row, timing="host")
        if rows:
            timelines = {
                row.place: LAUNCHES[row.variant] for row in rows if row.variant in LAUNCHES
            }
            told = provenance | {"timelines": timelines}
            write_suite(folder / gpu / f"{op.suite}.csv", rows, told)
    return folder


TIMES = {"eager": 900.0, "torch": 400.0, "sdpa_flash": 300.0, "sdpa_cudnn": 200.0}
TIMES |= {"fused_simple": 330.0, "fused": 240.0, "copy": 5.0, "liger": 500.0}
LAUNCHES = {
    "torch": [["nvjet", 0.0, 300.0], ["softmax", 301.0, 100.0]],
    "fused": [["nvjet", 0.0, 170.0], ["nvjet", 171.0, 170.0], ["cross_entropy_rows", 342.0, 40.0]],
}


def test_without_records_the_page_says_what_makes_them(told, tmp_path):
    found = told(records(tmp_path, {}))
    assert "`python -m kernels.lab profile attention`" in found["dram"]
    assert found["measured"].startswith("No card has recorded the backward of attention yet")
    assert "`python -m kernels.lab bench attention`" in found["measured"]
    assert "\n" not in found["measured"]  # one line for the section
    assert "No card has recorded a point of it yet." in found["roofline"]
    assert "`python -m kernels.lab bench losses`" in found["losses-measured"]
    assert found["losses-split"] == "No card has recorded a timeline of this loss yet."


def test_the_page_fills_itself_when_records_come(told, tmp_path):
    found = told(records(tmp_path, TIMES))
    ideal = attention.OP.cost((2, 16, 8192, 128), torch.bfloat16, "bwd")
    read, written = ideal.read_bytes / 1e9, ideal.write_bytes / 1e9
    assert f"| fused | {read:.2f} GB | {written:.2f} GB |" in found["dram"]
    assert "Recorded on one" in found["dram"]
    assert "The points are recorded." in found["roofline"]
    assert "still left of the ridge" in found["roofline"]  # tiles of 128
    tables = re.findall(r"\| backward, 16,384 tokens.*?(?=\n\n)", found["measured"], re.S)
    assert [re.search(r"d = (\d+)(, causal)?", one).groups() for one in tables] == [
        ("64", None), ("64", ", causal"), ("128", None), ("128", ", causal")
    ]  # fmt: skip
    peak = plots.ceilings_of(recordings("ceilings", tmp_path)[0], "bf16").compute_flops_per_s
    least = 10 * 16 * 16384**2 * 128 / peak * 1e6
    for table, share in ((tables[2], 1), (tables[3], 0.5)):
        lines = table.splitlines()
        assert lines[2].endswith(f"| {least * share:,.0f} |")
        assert lines[3].endswith(f"| {least * share * 7 / 5:,.0f} |")
        assert "| fused | 240 (1.25) " in table
        assert "fused_hopper" not in table
    assert "No card" not in found["measured"]
    lines = found["measured"].splitlines()
    assert "| fused | sdpa_flash | 1.25 to 1.25 | 16 of 16 |" in lines
    assert "| fused_simple | sdpa_flash | 0.91 to 0.91 | 0 of 16 |" in lines
    most = 10 * 16 * 16384**2 * 128 / 240e-6 / peak
    assert f"fused {most:.0%}." in lines[-1]
    losses = found["losses-measured"]
    assert losses.count("Recorded on one") == 3
    assert losses.count("| fused | 240 µs | 1.67 |") == 3
    assert losses.count("| liger | – | – | 500 µs | – |") == 3
    assert "copy" not in losses
    split = [line for line in found["losses-split"].splitlines() if ", fused |" in line]
    assert len(split) == 3
    assert all(line.endswith("| 340 µs | 2 | +40 | 40 µs | -60 |") for line in split)
    flops = 6 * 8192 * 4096 * 131_072
    assert f"| *predicted, three products* | {flops / peak * 1e6:,.0f} µs | |" in losses


def test_a_card_whose_ceilings_are_not_recorded_has_no_prediction(told, tmp_path):
    found = told(records(tmp_path, TIMES, gpu="h200"))
    assert "another card" in found["dram"]
    assert "Its ceilings are not recorded" in found["measured"]
    assert "predicted" not in found["measured"].replace("no prediction", "")
    assert "predicted" not in found["losses-measured"]
    assert "No card has recorded a point of it yet." in found["roofline"]
    assert found["measured"].endswith("fused_simple –, fused –.")
