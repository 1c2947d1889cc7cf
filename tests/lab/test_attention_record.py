"""What the recorded suite `attention` must show, on every Hopper card it was recorded on.

The bounds are those that the operation was built to; a run that misses one is not recorded, or the
bound is lowered here with the reason beside it. A cell or a variant that the run told a problem of
is not looked for.
"""

import pytest

from kernels.lab.records.data import recordings

HOPPER = ("h100-sxm", "h100-pcie", "h200")
RECORDED = [one for one in recordings("attention") if one.gpu in HOPPER]
LENGTHS = {512: 32, 2048: 8, 8192: 2, 16384: 1}  # and sequences
DIMS = (64, 128)
FLASH, CUDNN = "sdpa_flash", "sdpa_cudnn"

pytestmark = pytest.mark.skipif(not RECORDED, reason="the suite attention is not recorded yet")


@pytest.fixture(params=RECORDED, ids=lambda one: one.gpu)
def card(request):
    return request.param


def rate(card, baseline, variant, length, dim, causal, pass_="fwd"):
    """How many times as fast as the baseline a variant is, by medians of graph replays."""
    shape, options = place(length, dim, causal)
    where = {"op": "attention", "pass_": pass_, "shape": shape, "options": options}
    where["timing"] = "graph"
    times = [card.one(variant=name, **where).time_us_p50 for name in (baseline, variant)]
    return times[0] / times[1]


def place(length, dim, causal):
    return f"{LENGTHS[length]}x16x{length}x{dim}", "causal" if causal else ""


def cells(*lengths):
    return [(n, d, causal) for n in lengths for d in DIMS for causal in (False, True)]


def test_every_cell_and_variant_is_there(card):
    names = {"eager", "unfused", "fused_simple", "fused", "fused_hopper", "flex", "copy"}
    names |= {FLASH, CUDNN, "sdpa_efficient", "sdpa_math"}
    found: dict[tuple[str, str], set[str]] = {}
    for row in card.rows:
        if row.timing == "graph" and row.op == "attention" and row.pass_ == "fwd":
            found.setdefault((row.shape, row.options), set()).add(row.variant)
    assert len(found) == 16
    for cell in cells(*LENGTHS):
        assert names <= found[place(*cell)]


def test_flex_attention_is_not_timed_uncompiled(card):
    # Uncompiled it writes its scores, as `eager` does, and takes tens of times as long.
    rows = {(row.cell, row.timing): row for row in card.rows if row.variant == "flex"}
    assert {timing for _, timing in rows} == {"graph", "host"}
    for (cell, timing), row in rows.items():
        if timing == "host":
            assert row.time_us_p50 < 3 * rows[cell, "graph"].time_us_p50, cell


def test_the_public_function(card):
    def of(baseline, *lengths):
        return {cell: rate(card, baseline, "fused_hopper", *cell) for cell in cells(*lengths)}

    long = of(CUDNN, 8192, 16384)
    assert min(long.values()) >= 0.98, long
    assert sum(ratio > 1 for ratio in long.values()) >= 6, long
    assert min(of(FLASH, 8192, 16384).values()) >= 1.6, of(FLASH, 8192, 16384)
    assert min(of(CUDNN, 2048).values()) >= 0.90, of(CUDNN, 2048)
    assert min(of(FLASH, 2048).values()) >= 1.4, of(FLASH, 2048)
    assert min(of(FLASH, 512).values()) >= 1.0, of(FLASH, 512)


def test_plain_triton(card):
    for length, least in ((2048, 1.2), (8192, 1.3), (16384, 1.3)):
        found = {cell: rate(card, FLASH, "fused", *cell) for cell in cells(length)}
        assert min(found.values()) >= least, found


def test_the_kernel_of_the_page(card):
    found = {cell: rate(card, FLASH, "fused_simple", *cell) for cell in cells(8192)}
    assert min(found.values()) >= 1.0, found


def test_going_back(card):
    for cell in cells(*LENGTHS):
        flash, cudnn = (rate(card, one, "fused_hopper", *cell, "bwd") for one in (FLASH, CUDNN))
        of_cudnn, of_flash = {512: (0.0, 1.0), 2048: (0.0, 1.3)}.get(cell[0], (0.90, 1.55))
        assert cudnn >= of_cudnn, (cell, cudnn)
        assert flash >= of_flash, (cell, flash)


def test_triton_going_back(card):
    for cell in cells(8192, 16384):
        assert rate(card, FLASH, "fused", *cell, "bwd") >= 1.2, cell


@pytest.mark.parametrize("pass_", ["fwd", "bwd"])
def test_errors(card, pass_):
    for length, dim, causal in cells(*LENGTHS):
        shape, options = place(length, dim, causal)
        where = {"shape": shape, "options": options, "timing": "graph", "pass_": pass_}
        theirs = card.one(variant=FLASH, **where).error
        for variant in ("fused_simple", "fused", "fused_hopper"):
            # Twice flash's, or one rounding of the output to bf16.
            assert card.one(variant=variant, **where).error <= max(2 * theirs, 2.0**-8), where
