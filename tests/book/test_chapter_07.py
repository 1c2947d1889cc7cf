"""The kernels that chapter 07 shows are the package's, and what it says of the data is in them."""

import importlib.util
import re
import sys

import pytest
import torch
import triton

import kernels
from book.tools import build
from kernels.lab.measuring.shown import recorded
from kernels.lab.records.data import recordings
from kernels.launch import recording
from kernels.launch.triton_compile import compile_launch
from kernels.ops.norms import layernorm, rmsnorm
from kernels.ops.norms.backward_kernels import norm_backward_rows, sum_partials
from kernels.ops.norms.configurations import BACKWARD, WIDE_HALF
from kernels.paths import ROOT
from tests.book.test_chapter_02 import cells

CHAPTER = "07_backward_of_norms.ipynb"
LARGE, WIDE, NARROW = (16384, 8192), (8192, 16384), (65536, 1024)
HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
HEAD += "from kernels.ops import layernorm\n"


def loaded(text, folder, name):
    """A module of this text: the compiler reads a kernel's source from a file."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def text():
    """The page's kernels and the functions around them, as the text of a module."""
    parts = [HEAD, "DTYPE = torch.bfloat16\n"]
    for source in cells("code", CHAPTER):
        if source.startswith(("@triton.jit", "def case", "def backward", "def schedule")):
            # A cell may go on after what it defines.
            parts += re.findall(
                r"(?:^|(?<=\n\n\n))(?:@triton\.jit\n)?def .*?(?=\n\n\n|\Z)", source, re.S
            )
    return "\n\n\n".join(parts) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("chapter")


@pytest.fixture(scope="module")
def page(text, folder):
    return loaded(text, folder, "chapter_07_kernels")


def buffers(given, programs):
    dx = torch.empty_like(given[1])
    return dx, torch.full((2, programs, dx.shape[1]), float("nan"))


def of_the_package(given, programs, rows_each, block_rows):
    dy, x, weight, mean, inv_std = given
    dx, parts = buffers(given, programs)
    (n_rows, n_cols), block_cols = x.shape, triton.next_power_of_2(x.shape[1])
    norm_backward_rows[(programs,)](
        *(dy, None, x, weight, mean, inv_std, dx, *parts),
        dy_row_stride=n_cols,
        x_row_stride=n_cols,
        n_rows=n_rows,
        rows_each=rows_each,
        n_col_units=n_cols,
        STRIDE_UNIT=1,
        BLOCK_ROWS=block_rows,
        BLOCK_COLS=block_cols,
        STAGES=1,
        HOLD_WEIGHT=True,
    )
    return dx, parts


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("shape", "programs", "rows_each"),
    [((1, 1), 1, 1), ((8, 48), 3, 3), ((9, 33), 3, 3), ((5, 64), 1, 5)],
)
def test_the_kernel_of_single_rows_is_the_packages(page, shape, programs, rows_each, dtype):
    given, _ = page.case(shape, dtype)
    dx, parts = buffers(given, programs)
    block_cols = triton.next_power_of_2(shape[1])
    page.share_rows[(programs,)](
        *given, dx, *parts, shape[0], rows_each, shape[1], BLOCK_COLS=block_cols, STAGES=1
    )
    expected = of_the_package(given, programs, rows_each, 1)
    assert torch.equal(dx, expected[0])
    assert torch.equal(parts, expected[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(11, 100), (16, 64)])
def test_the_kernel_of_tiles_is_the_packages(page, shape, dtype):
    given, _ = page.case(shape, dtype)
    dx, parts = buffers(given, 2)
    block_cols = triton.next_power_of_2(shape[1])
    page.share_tiles[(2,)](
        *(*given, dx, *parts, shape[0], 8, shape[1]),
        BLOCK_ROWS=4,
        BLOCK_COLS=block_cols,
        STAGES=1,
    )
    expected = of_the_package(given, 2, 8, 4)
    assert torch.equal(dx, expected[0])
    assert torch.equal(parts, expected[1])


def test_the_finishing_kernel_is_the_packages(page):
    parts, out, expected = torch.randn(35, 70), torch.zeros(2, 70), torch.zeros(70)
    for row in out:
        page.sum_parts[(3,)](parts, row, 35, 70, BLOCK_PARTS=32, BLOCK_COLS=32)
    sum_partials[(3,)](parts, None, expected, None, 35, 70, BLOCK_ROWS=32, BLOCK_COLS=32)
    assert torch.equal(out[0], expected)
    assert torch.equal(out[1], expected)


@pytest.mark.parametrize("programs", [1, 4, 9, 20])
def test_no_part_is_left_unwritten_whatever_the_number_of_programs(page, programs):
    given, true = page.case((9, 40), torch.float32)
    for name, got, exact in zip(
        ("x", "weight", "bias"), page.backward(*given, programs), true, strict=True
    ):
        allowed = layernorm.OP.gradient_tolerance(name, torch.float32, (9, 40))
        assert (got.double() - exact).norm() <= allowed.relative_norm * exact.norm()


def test_adding_up_in_memory_is_refused_and_with_atomics_it_is_right(page):
    (dy, x, _, mean, inv_std), true = page.case((7, 40), torch.float32)
    total = torch.zeros(40)
    with pytest.raises(kernels.KernelError, match="in the same launch"):
        page.add_row[(7,)](dy, x, mean, inv_std, total, 40, BLOCK_COLS=64)
    total.zero_()
    page.add_row_atomically[(7,)](dy, x, mean, inv_std, total, 40, BLOCK_COLS=64)
    assert page.off(total, true[1]) < 1e-6


def test_rows_of_the_next_program_would_enter_the_sums_twice_and_dx_would_hide_it(text, folder):
    right, wrong = "mask = (rows < last)", "mask = (rows < n_rows)"
    assert text.count(right) == 1
    changed = text.replace(right, wrong).replace("mask=rows < last", "mask=rows < n_rows")
    module = loaded(changed, folder, "chapter_07_wrong")
    for n_rows, rows_each, goes_wrong in [(11, 6, True), (16, 8, False)]:
        given, true = module.case((n_rows, 30), torch.float32)
        dx, parts = buffers(given, 2)
        sizes = {"BLOCK_ROWS": 4, "BLOCK_COLS": 32, "STAGES": 1}
        given = (*given, dx, *parts, n_rows, rows_each, 30)
        # The row that two programs compute is stored by both, with the same numbers.
        module.share_tiles[(2,)](*given, **sizes)
        assert module.off(dx, true[0]) < 1e-6
        assert (module.off(parts[0].sum(0), true[1]) > 1e-3) is goes_wrong


def test_dy_without_a_mask_is_told_at_its_end_unless_no_lane_is_masked(text, folder):
    head, _, tail = text.partition("def dx_row(")
    masked = "dy = tl.load(dy_ptr + at, mask=mask, other=0.0)"
    changed = head + "def dx_row(" + tail.replace(masked, "dy = tl.load(dy_ptr + at)", 1)
    module = loaded(changed, folder, "chapter_07_unmasked")
    given, true = module.case((4, 50), torch.float32)
    with pytest.raises(kernels.KernelError, match="index 200"):
        module.dx_row[(4,)](*given, torch.empty_like(given[1]), 50, BLOCK_COLS=64)
    given, true = module.case((4, 64), torch.float32)
    dx = torch.empty_like(given[1])
    module.dx_row[(4,)](*given, dx, 64, BLOCK_COLS=64)
    assert module.off(dx, true[0]) < 1e-6


def test_a_row_of_8192_fills_the_registers_and_a_stage_takes_32_kilobytes(page):
    def compiled(n_cols, warps, stages):
        x, stats, parts = torch.empty(8, n_cols).bfloat16(), torch.empty(8), torch.empty(2, 8, 1)
        with recording() as launches:
            page.share_rows[(8,)](
                *(x, x.clone(), x[0].clone(), stats, stats.clone(), torch.empty_like(x), *parts),
                *(4096, 32, n_cols, n_cols, stages),
                num_warps=warps,
            )
        return compile_launch(next(iter(launches)), 90)

    alone = compiled(8192, 8, 1)
    assert alone.stack_bytes == 0
    assert 2 * alone.registers * 32 * 8 > 65536  # no place for a second program
    assert compiled(16384, 16, 1).stack_bytes > 0
    assert 0 <= compiled(8192, 8, 3).shared_bytes - 2 * 32768 < 256
    assert (BACKWARD[9, 0].programs_per_sm, BACKWARD[9, 0].stages) == (1, 3)


def test_rows_come_without_a_gap_from_three_stages_on(page):
    page.latency_us = 0.5
    lost = {}
    for stages in (1, 2, 3, 4):
        arriving, computing = page.schedule(stages, 5, 2.0, 1.0)
        assert all(start >= 0.5 for start, _ in arriving)
        assert all(c[0] >= sum(a) for a, c in zip(arriving, computing, strict=True))
        lost[stages] = arriving[-1][0] - 0.5 - 4 * 2.0
    assert lost == {1: 4 * (0.5 + 1.0), 2: 4 * 0.5, 3: 0.0, 4: 0.0}


# ------------------------------------------------------------------ what the page says of the data


class Card:
    """The recorded H100: rows of the norms, forward and backward, on the device's timeline."""

    def __init__(self):
        self.recording = next(r for r in recordings("norms") if r.gpu == "h100-sxm")

    def row(self, op, variant, shape, pass_="bwd"):
        shape = f"{shape[0]}x{shape[1]}"
        wanted = {"op": op, "variant": variant, "shape": shape, "pass_": pass_}
        return self.recording.one(**wanted, dtype="bf16", timing="graph")

    def reach(self, op, variant, shape, pass_="bwd"):
        """The time of the copy that moves the ideal bytes, over the variant's."""
        times = [self.row(op, name, shape, pass_).time_us_p50 for name in ("copy", variant)]
        return times[0] / times[1]

    def kernels(self, variant, shape):
        """Of each kernel of LayerNorm's backward: read and written as multiples of x, and bytes/µs
        as a share of the copy's."""
        copy = self.row("layernorm", "copy", shape)
        copied = copy.bytes_ideal / copy.time_us_p50
        key = ("layernorm", variant, "bwd", f"{shape[0]}x{shape[1]}", "bf16")
        for cell in self.recording.provenance["profile"]["cells"]:
            if tuple(cell[n] for n in ("op", "variant", "pass_", "shape", "dtype")) == key:
                x_bytes = shape[0] * shape[1] * 2
                return [
                    (k["dram_read"] / x_bytes, k["dram_write"] / x_bytes, rate / copied)
                    for k in cell["kernels"]
                    for rate in [(k["dram_read"] + k["dram_write"]) / k["duration_us"]]
                ]
        raise LookupError(key)


@pytest.fixture(scope="module")
def card():
    return Card()


def test_libraries_lose_more_of_the_bandwidth_going_back_than_forward(card):
    for variant in ("torch", "compile", "liger"):
        back = card.reach("layernorm", variant, LARGE)
        assert back < card.reach("layernorm", variant, LARGE, "fwd") - 0.05
        assert back < 0.85
    for variant in ("compile", "liger", "fused"):
        assert card.reach("layernorm", variant, LARGE, "fwd") > 0.85
    assert card.reach("layernorm", "fused", LARGE) > 0.88


def test_torch_moves_seven_tensors_at_nearly_the_copys_rate(card):
    dx, sums = card.kernels("torch", LARGE)
    assert dx[0] == pytest.approx(4, rel=0.03)
    assert sums[0] == pytest.approx(2, rel=0.03)
    assert dx[1] + sums[1] == pytest.approx(1, rel=0.1)
    row, copy = (card.row("layernorm", name, LARGE) for name in ("torch", "copy"))
    rates = [(row.bytes_dram_read + row.bytes_dram_write) / row.time_us_p50]
    rates.append(copy.bytes_ideal / copy.time_us_p50)
    assert 0.9 < rates[0] / rates[1] < 1


def test_liger_moves_the_ideal_bytes_more_slowly_and_compile_writes_more_parts(card):
    first, *rest = card.kernels("liger", LARGE)
    assert first[0] < 2.05
    assert first[1] < 1.05
    assert first[2] < 0.88
    assert len(rest) == 4
    compiled = card.kernels("compile", LARGE)
    assert 0.15 < compiled[0][1] - 1 < 0.25
    ours, finish = card.kernels("fused", LARGE)
    assert ours[0] < 2.05
    assert ours[1] < 1.05
    assert ours[2] > 0.93
    took = {}
    for cell in card.recording.provenance["profile"]["cells"]:
        key = tuple(cell[n] for n in ("op", "pass_", "shape", "dtype"))
        if key == ("layernorm", "bwd", "16384x8192", "bf16"):
            took[cell["variant"]] = [kernel["duration_us"] for kernel in cell["kernels"]]
    assert took["fused"][1] < 10
    # What compile's sums of parts and its longer first kernel cost, of all that it loses.
    assert sum(took["compile"][1:]) > 40
    assert finish[0] < 0.05


def test_narrow_rows_are_slow_elsewhere_with_the_same_bytes(card):
    dx, sums = card.kernels("torch", NARROW)
    assert dx[0] == pytest.approx(2, rel=0.03)
    assert dx[2] > 0.9
    assert sums[0] == pytest.approx(2, rel=0.03)
    assert sums[2] < 0.4
    theirs, ours = card.kernels("liger", NARROW)[0], card.kernels("fused", NARROW)[0]
    assert theirs[0] == pytest.approx(ours[0], rel=0.02)
    times = [card.row("layernorm", name, NARROW).time_us_p50 for name in ("liger", "fused")]
    assert 2.8 < times[0] / times[1] < 3.5


def test_fused_is_ahead_everywhere(card):
    for op in ("layernorm", "rmsnorm"):
        for shape in (NARROW, (4096, 4096), (4096, 8192), LARGE, WIDE):
            ours = card.row(op, "fused", shape).time_us_p50
            for name in ("torch", "compile", "liger"):
                assert card.row(op, name, shape).time_us_p50 > ours


def test_a_row_too_wide_for_its_sums_is_asked_for_again_and_caches_answer(card):
    numbers = WIDE[0] * WIDE[1]
    for op, asked in (("layernorm", 18), ("rmsnorm", 8)):
        counted = card.row(op, "fused", WIDE)
        assert counted.launches == 2
        assert counted.bytes_unique / numbers == pytest.approx(6, rel=0.05)
        assert counted.bytes_requested / numbers == pytest.approx(asked, rel=0.02)
    wide, copy = (card.row("layernorm", name, WIDE) for name in ("fused", "copy"))
    per_us = copy.bytes_ideal / copy.time_us_p50
    assert wide.time_us_p50 < wide.bytes_requested / per_us / 2
    assert wide.time_us_p50 > 1.3 * wide.bytes_unique / per_us
    assert card.reach("rmsnorm", "fused", WIDE) > 0.9


def test_the_teams_that_the_page_tells_of_are_the_packages(card):
    team = WIDE_HALF
    assert (team.rows_per_team, WIDE[1] // team.sum_cols, team.sum_cols) == (64, 16, 1024)
    assert team.rows_per_team * WIDE[1] * 2 * 2 == 4 << 20
    assert card.recording.provenance["card"]["l2_bytes"] == 50 << 20
    assert -(-WIDE[1] // team.block_cols) > 1  # dx goes by tiles


def test_liger_writes_two_tensors_for_rmsnorm(card):
    for shape in (NARROW, LARGE, WIDE):
        theirs, x_bytes = card.row("rmsnorm", "liger", shape), shape[0] * shape[1] * 2
        assert theirs.bytes_dram_read < 2.1 * x_bytes
        assert 1.85 * x_bytes < theirs.bytes_dram_write < 2.1 * x_bytes


def test_an_h200_loses_most_at_layernorms_narrow_rows():
    def shares(gpu, op, shape):
        (card,) = recorded(op.name, shape, torch.bfloat16, gpu=gpu, pass_="bwd")
        took = {row.variant: row.time_us_p50 for row in card.graph()}
        return {name: took["copy"] / took[name] for name in took}

    lost, libraries = {}, ("torch", "compile", "liger")
    narrow = (layernorm.OP.name, (65536, 1024))
    for op in (layernorm.OP, rmsnorm.OP):
        for shape in ((65536, 1024), (4096, 4096), (4096, 8192), (16384, 8192), (8192, 16384)):
            before, now = (shares(gpu, op, shape) for gpu in ("h100-sxm", "h200"))
            lost[op.name, shape] = before["fused"] - now["fused"]
            best = max(now[name] for name in libraries)
            level = (op.name, shape) == narrow
            assert now["fused"] == pytest.approx(best, rel=0.01) if level else now["fused"] > best
        assert 0 < lost[op.name, (16384, 8192)] < 0.02
        small = shares("h200", op, (512, 1024))
        assert 0.85 * small["torch"] < small["fused"] < small["torch"] < 0.4
        assert small["fused"] > max(small["compile"], small["liger"])
    assert min(lost.values()) > 0
    assert max(lost, key=lost.get) == narrow
    assert lost[rmsnorm.OP.name, (65536, 1024)] < 0.3 * lost[narrow]


def test_the_notebook_runs_and_its_counts_are_as_told():
    notebook = build.executed(ROOT / "book" / CHAPTER, ROOT)
    told = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("text", "") or output["data"].get("text/markdown", "")
            told[cell.id] = told.get(cell.id, "") + text
    assert "144 bytes a number in all: 24 times the ideal" in told["eager-ledger"]
    assert "add_row" in told["race-kernel"]
    assert "1,600 distinct bytes, 25,600 asked for" in told["atomic-run"]
    assert "| 16384×8192 | 132 | 805 MB | 17.3 MB | 17.3 MB | 2.1% |" in told["partials-count"]
    assert re.search(r"\| 3 \| 65,536 B \|.*\| 30 \|", told["pipeline"])
    assert "partial sums: 1 result" in told["determinism"]
    wider = told["wider-registers"]
    assert re.search(r"RMSNorm \| `norm_backward_rows` .*\| 100% \| 0 B \|", wider)
    assert re.search(r"LayerNorm \| `norm_backward_wide` .*\| 0 B \|", wider)
    assert "12.50; in one: 8.50 bytes" in told["residual"]
    assert "no second derivative" in told["second"]
