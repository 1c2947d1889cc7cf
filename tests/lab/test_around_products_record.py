"""What the recorded suite `matmul` must show of what fuses around a product, on every Hopper card.

The bounds are those that the operations were built to; a run that misses one is not recorded, or
the bound is lowered here with the reason beside it. Ratios are the paired ones of the cell, sample
by sample; where a cell has none, of medians.
"""

import pytest

from kernels.lab.records.data import recordings

HOPPER = ("h100-sxm", "h100-pcie", "h200")
COMMAND = "python -m kernels.lab bench matmul"
RECORDED = [
    one
    for one in recordings("matmul")
    if one.gpu in HOPPER and any(row.op == "layernorm_linear" for row in one.rows)
]
pytestmark = pytest.mark.skipif(not RECORDED, reason=f"not recorded yet: {COMMAND}")

NARROW = ("4096x1024x3072", "16384x1024x3072")  # K 1024
WIDE, SQUARE, FEW = "8192x4096x12288", "4096x4096x4096", "16x1024x3072"
# Lower than the bound, on a card. It was set on an H100, where as many bytes take longer. Two runs
# of the smaller shape gave 1.304 and 1.297.
LOWER = {
    ("h200", "swiglu", "4096x1024x3072x2"): 1.29,
    ("h200", "swiglu", "16384x1024x3072x2"): 1.27,
}
WAYS = ("two_kernels", "one_kernel_folded", "fused_hopper")
TO_TRAIN = ("two_kernels", "one_kernel_folding", "fused_hopper_folding")


@pytest.fixture(params=RECORDED, ids=lambda one: one.gpu)
def card(request):
    return request.param


def variants(card, op, shape, pass_="fwd"):
    return {
        row.variant
        for row in card.rows
        if (row.op, row.shape, row.pass_, row.dtype, row.timing)
        == (op, shape, pass_, "bf16", "graph")
    }


def row_of(card, op, shape, variant, pass_="fwd"):
    where = {"op": op, "shape": shape, "variant": variant, "pass_": pass_, "dtype": "bf16"}
    return card.one(**where, timing="graph")


def ratio(card, op, shape, variant, baseline, pass_="fwd"):
    """How many times as fast as the baseline a variant is."""
    cell = f"{op} {shape} bf16" + ("" if pass_ == "fwd" else f" {pass_}")
    paired = card.provenance.get("speed_ups", {}).get(cell, {}).get(variant, {}).get(baseline)
    if paired is not None:
        return paired["ratio"]
    times = [row_of(card, op, shape, one, pass_).time_us_p50 for one in (baseline, variant)]
    return times[0] / times[1]


def best(card, op, shape, names, pass_="fwd"):
    """The fastest of these ways that was timed."""
    there = [name for name in names if name in variants(card, op, shape, pass_)]
    return min(there, key=lambda name: row_of(card, op, shape, name, pass_).time_us_p50)


@pytest.mark.parametrize(
    ("shape", "by_torch", "by_compile"),
    [*((shape, 1.22, 1.1) for shape in NARROW), (WIDE, 1.03, 1.03)],
)
def test_the_best_way_of_a_norm_and_a_product(card, shape, by_torch, by_compile):
    op = "layernorm_linear"
    way = best(card, op, shape, WAYS)
    assert ratio(card, op, shape, way, "torch") >= by_torch, way
    assert ratio(card, op, shape, way, "compile") >= by_compile, way
    assert ratio(card, op, shape, way, "product_alone") >= 1 / 1.05, way


def test_every_way_stands_beside_the_product_alone(card):
    for shape in (*NARROW, WIDE, FEW):
        wanted = {"torch", "compile", "product_alone", "two_kernels", "one_kernel_folded"}
        wanted |= {"fused_hopper"} if shape != FEW else {"one_kernel"}
        assert wanted <= variants(card, "layernorm_linear", shape), shape


@pytest.mark.parametrize("shape", NARROW)
def test_a_training_step_goes_the_faster_way_folding_counted(card, shape):
    """The public function's way, and that the rule in `configurations` is the record's."""
    from kernels.ops.prologues.configurations import folds_in_training

    op, sizes = "layernorm_linear", tuple(int(size) for size in shape.split("x"))
    chosen = "fused_hopper_folding" if folds_in_training(sizes, (9, 0)) else "two_kernels"
    assert ratio(card, op, shape, chosen, "torch", "train") >= 1.1, chosen
    fastest = row_of(card, op, shape, best(card, op, shape, TO_TRAIN, "train"), "train")
    mine = row_of(card, op, shape, chosen, "train")
    assert mine.time_us_p50 <= 1.02 * fastest.time_us_p50, fastest.variant


@pytest.mark.parametrize(
    ("shape", "least"), [*((shape, 1.2) for shape in NARROW), (WIDE, 1.05), (SQUARE, 1.05)]
)
def test_bias_and_gelu(card, shape, least):
    way = best(card, "linear_bias_gelu", shape, ("fused", "fused_hopper"))
    assert ratio(card, "linear_bias_gelu", shape, way, "torch") >= least, way


@pytest.mark.parametrize(
    ("shape", "least"),
    [
        *((f"{shape}x2", 1.35) for shape in NARROW),
        ("8192x4096x14336x2", 1.05),
        ("4096x4096x4096x2", 1.05),
    ],
)
def test_the_first_half_of_a_swiglu_mlp(card, shape, least):
    way = best(card, "linear_swiglu", shape, ("fused", "fused_hopper"))
    least = LOWER.get((card.gpu, "swiglu", shape), least)
    assert ratio(card, "linear_swiglu", shape, way, "compile") >= least, way


def test_a_whole_swiglu_mlp(card):
    op, shape = "swiglu_mlp", "8192x4096x14336x2"
    way = best(card, op, shape, ("fused", "fused_hopper"))
    assert ratio(card, op, shape, way, "compile") >= 1.0, way


def test_fp8(card):
    op = "layernorm_fp8_linear"
    assert ratio(card, op, WIDE, "fused_fp8", "torch") >= 1.4
    assert 0.01 < row_of(card, op, WIDE, "fused_fp8").error < 0.045


def test_errors(card):
    names = {"layernorm_linear", "rmsnorm_linear", "layernorm_linear_gelu", "linear_bias_gelu"}
    names |= {"linear_bias_residual", "linear_swiglu", "swiglu_mlp", "geglu_mlp", "qkv"}
    seen = set()
    for row in card.rows:
        ours = row.variant.startswith(("fused", "one_kernel", "two_kernels"))
        if row.op not in names or not ours or row.timing != "graph" or row.pass_ != "fwd":
            continue
        where = {"op": row.op, "shape": row.shape, "pass_": "fwd", "dtype": row.dtype}
        theirs = card.one(**where, variant="torch", timing="graph").error
        assert row.error <= 2 * theirs, (row.op, row.variant, row.shape)
        seen.add(row.op)
    assert seen == names
