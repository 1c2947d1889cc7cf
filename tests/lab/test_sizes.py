"""An operation of four dimensions with an option and a square weight: counted, checked, selected.

It stands for what attention and products will be: its work grows with the square of a size.
"""

import math
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from kernels import passes, registry
from kernels.lab import selection
from kernels.lab.counting import aten, op_ledger, traffic
from kernels.lab.counting.by_sizes import by_sizes, extend, polynomial
from kernels.lab.counting.ledger import Ledger, Step, TensorTraffic
from kernels.lab.measuring import bench, correctness, shown, timing
from kernels.lab.records.data import read_suite
from kernels.ops.shared.operators import define
from kernels.registry import Case, Cost, Moves, Op, Pass, Tolerance, Variant, cases, named
from tests.lab.backward_ops import OP as SCALING
from tests.lab.test_bench import a_gpu  # noqa: F401

TILE = 16
CAUSAL = (("causal", True),)


@triton.jit
def sum_before(
    x_ptr, w_ptr, y_ptr, n_rows, x_head, D: tl.constexpr, TILE: tl.constexpr, CAUSAL: tl.constexpr
):
    # A program takes a tile of one head's rows, and adds up the tiles before it, or all.
    tile, head = tl.program_id(0), tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    rows, cols = tl.arange(0, TILE)[:, None], tl.arange(0, D)[None, :]
    total = tl.zeros([D], tl.float32)
    last = tile + 1 if CAUSAL else n_rows // TILE
    for step in range(last):
        x = tl.load(x_ptr + head * x_head + (step * TILE + rows) * D + cols)
        total += tl.sum(x.to(tl.float32), axis=0)
    w = tl.load(w_ptr + tl.arange(0, D)[:, None] * D + cols)
    out = tl.sum(total[:, None] * w, axis=0)[None, :] + tl.zeros([TILE, D], tl.float32)
    y = y_ptr + head * x_head + (tile * TILE + rows) * D + cols
    tl.store(y, out.to(y_ptr.dtype.element_ty))


def launched(x, w, causal=False):
    b, h, s, d = x.shape
    y = torch.empty_like(x)
    sum_before[(s // TILE, h, b)](x, w, y, s, s * d, D=d, TILE=TILE, CAUSAL=causal)
    return y


def reference(x, w, causal=False):
    tiles = x.double().unflatten(2, (-1, TILE)).sum(3)
    sums = tiles.cumsum(2) if causal else tiles.sum(2, keepdim=True).expand_as(tiles)
    return (sums @ w.double()).repeat_interleave(TILE, 2)


def inputs(shape, dtype, device, seed, *, causal=False):
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(shape, generator=generator, device=device).to(dtype)
    w = torch.randn(shape[3], shape[3], generator=generator, device=device).to(dtype)
    return {"x": x, "w": w, "causal": causal}


def cost(case):
    size = math.prod(case.shape) * case.dtype.itemsize
    return Cost(1, size + case.shape[3] ** 2 * case.dtype.itemsize, size)


OP = Op(
    name="sums_before",
    suite="attention",
    dims="BHSD",
    tensors={"x": "BHSD", "w": "DD"},
    outputs={"y": "BHSD"},
    inputs=inputs,
    reference=reference,
    variants=named(
        Variant("eager", lambda x, w, causal: reference(x, w, causal).to(x.dtype), counted="aten"),
        Variant("fused", launched, counted="triton", moves=lambda case, _: Moves(1)),
        Variant("wide", launched, counted="triton", fits=lambda case: case.shape[3] >= 32),
    ),
    shapes=((2, 4, 64, 16), (16, 16, 1024, 16)),
    dtypes=(torch.float32, torch.bfloat16),
    options=((), CAUSAL),
    forward=Pass(cost, lambda case, name: Tolerance(1e-2, 1e-1)),
    independent="BH",
    degrees={"B": 1, "H": 1, "S": 2},
)


@pytest.fixture
def registered(monkeypatch):
    selection.load_ops()
    monkeypatch.setattr(registry, "_OPS", {})
    op_ledger.forget()
    yield registry.register(OP)
    op_ledger.forget()


def numbers(ledger):
    return [(s.name, s.grid, s.lanes, t) for s in ledger for t in s.tensors]


@pytest.mark.parametrize("options", OP.options)
@pytest.mark.parametrize("shape", [(1, 1, 80, 16), (2, 3, 96, 16), (3, 4, 128, 16)])
def test_counts_extend_along_every_size_as_if_all_were_run(registered, shape, options):
    case = Case(shape, torch.bfloat16, options)
    whole = traffic.count(passes.bind(OP, OP.variant("fused"), OP.make(case, "cpu", 0)))
    ledger = op_ledger.count_case(OP, "fused", case)
    assert numbers(ledger) == numbers(whole)
    assert ledger.method == "polynomial"


def test_a_large_case_is_counted_without_running_it(registered):
    b, h, s, d = OP.shapes[1]
    causal = op_ledger.count_case(OP, "fused", Case(OP.shapes[1], torch.bfloat16, CAUSAL))
    tiles = s // TILE
    read = causal.steps[0].tensor("x")
    assert read.read_unique == b * h * s * d * 2
    assert read.read_requested == b * h * TILE * d * 2 * tiles * (tiles + 1) // 2
    full = op_ledger.count_case(OP, "fused", Case(OP.shapes[1], torch.bfloat16))
    assert full.steps[0].tensor("x").read_requested == b * h * TILE * d * 2 * tiles**2
    assert causal.steps[0].grid == (tiles, h, b)


def test_what_is_no_polynomial_is_run_whole(registered):
    def steps(x, w, causal):
        # Above 4 tiles another kernel would be chosen: what few tiles show says nothing of many.
        return launched(x, w, causal or x.shape[2] > 4 * TILE)

    odd = replace(OP, variants=named(Variant("odd", steps, counted="triton")))
    registry._OPS[OP.name] = odd
    case = Case((1, 2, 96, 16), torch.float32)
    whole = traffic.count(steps, **odd.make(case, "cpu", 0))
    ledger = op_ledger.count_case(odd, "odd", case)
    assert numbers(ledger) == numbers(whole)
    assert ledger.method == "full"


def test_polynomials_are_exact_and_ledgers_of_other_steps_are_refused():
    assert polynomial({1: 1, 2: 4, 3: 9}, 1000) == 1_000_000
    with pytest.raises(ValueError, match="which is no count"):
        polynomial({0: 0, 2: 1}, 3)
    one, other = (Ledger((Step(n, "launch", (TensorTraffic("x", 1),)),)) for n in "ab")
    with pytest.raises(ValueError, match="the steps differ"):
        extend({1: one, 2: other}, 3)
    with pytest.raises(KeyError):
        by_sizes(lambda sizes: one, lambda sizes: lambda: None, {}, {"S": 1})


def test_a_square_weight_is_not_cut_with_the_batch(monkeypatch):
    shape = (16, 2, 32, 16)  # as many batches as the weight has rows
    case = Case(shape, torch.float32, CAUSAL)
    given = OP.make(case, "cpu", 3)
    out = launched(**given)
    whole = correctness.relative_error(OP, shape, given, out)
    monkeypatch.setattr(correctness, "CHUNK_ELEMENTS", 2 * 2 * 32 * 16)
    assert correctness.relative_error(OP, shape, given, out) == pytest.approx(whole)
    assert whole < 1e-5
    assert correctness.relative_error(OP, shape, given, out.roll(1, 0)) > 0.5


def test_options_choose_cells_and_stand_in_the_rows(registered, a_gpu, tmp_path, monkeypatch):  # noqa: F811
    def places(**asked):
        found = selection.select("attention", **asked)
        return [(c.case.shape, c.case.options) for c in found]

    assert len(places(dtypes=["bf16"])) == 4
    assert places(dtypes=["bf16"], options=["causal"]) == [(s, CAUSAL) for s in OP.shapes]
    assert places(dtypes=["bf16"], options=[""]) == [(s, ()) for s in OP.shapes]
    assert "wide" not in {v.name for c in selection.select("attention", "wide,eager")
                          for v in c.variants}  # fmt: skip
    with pytest.raises(selection.RefusalError, match="write names and values"):
        places(options=["=1"])
    monkeypatch.setattr(timing, "MIN_SAMPLES", 2)  # every call is interpreted
    monkeypatch.setattr(timing, "MAX_CALLS", 2)
    options = bench.Options(
        "attention", "eager,fused", ("1x2x32x16",), ("fp32",), out=tmp_path, seconds=0.01
    )
    options = replace(options, profile=False)
    assert bench.run(options) == 0
    path = tmp_path / "a-card" / "attention.csv"
    rows, record = read_suite(path)
    fused = {row.options: row for row in rows if row.variant == "fused" and row.timing == "graph"}
    assert set(fused) == {"", "causal"}
    assert fused["causal"].bytes_requested < fused[""].bytes_requested
    assert "sums_before:fused:1x2x32x16:fp32:causal" in record["timelines"]
    assert "sums_before 1x2x32x16 fp32 causal" in record["speed_ups"]
    key = ("sums_before", (1, 2, 32, 16), torch.float32)
    (causal,) = shown.recorded(*key, data_dir=tmp_path, options=CAUSAL)
    assert causal.row("fused") == fused["causal"]


def test_an_operator_of_four_dimensions_is_counted_inside_a_layer():
    operator = define(
        "sums_before_of_a_test(Tensor x, Tensor w, bool causal) -> Tensor",
        launched,
        lambda x, w, causal: torch.empty_like(x),
        lambda x, w, causal: reference(x, w, causal).to(x.dtype),
        of=["sums_before"],
        tensors={"x": "BHSD", "w": "DD"},
        independent="B",
    )

    def layer(x, w):
        return operator(x * 2, w, True) + x

    given = inputs((64, 4, 32, 16), torch.float32, "cpu", 0)
    ledger = aten.count(layer, given["x"], given["w"])
    assert [step.name for step in ledger] == ["mul", "sum_before", "add"]
    size = given["x"].nbytes
    assert ledger.steps[1].write_unique == size
    assert ledger.steps[1].tensor("w").read_unique == given["w"].nbytes


def test_a_training_step_is_counted_as_both_ways(registered):
    op = registry.register(SCALING)
    both = op_ledger.count_case(op, "fused", cases([(50, 12)], "fp32")[0], "train")
    names = [step.name for step in both]
    assert names == ["scale_rows", "back_shared", "add_parts"]
    parts = [op_ledger.count_op(op, "fused", (50, 12), torch.float32, p) for p in ("fwd", "bwd")]
    assert both.bytes_unique == sum(part.bytes_unique for part in parts)
    eager = op_ledger.count_case(op, "eager", cases([(50, 12)], "fp32")[0], "train")
    assert eager.aten_ops > 3


def test_descriptors_of_other_sizes_are_the_same_if_their_tiles_are():
    """A training step of attention takes descriptors; it is extended from small ones."""
    op = registry.get("attention")
    small, large = (Case((1, 2, length, 64), torch.bfloat16) for length in (256, 2048))
    ledgers = [op_ledger.count_case(op, "fused", case, "train") for case in (small, large)]
    assert [one.launches for one in ledgers] == [3, 3]
    forward = [op_ledger.count_case(op, "fused", case) for case in (small, large)]
    backward = [op_ledger.count_case(op, "fused", case, "bwd") for case in (small, large)]
    for whole, ahead, back in zip(ledgers, forward, backward, strict=True):
        assert whole.bytes_requested >= ahead.bytes_requested + back.bytes_requested
        assert 0 <= whole.bytes_unique - ahead.bytes_unique - back.bytes_unique <= 2 * 4 * 2 * 2048
