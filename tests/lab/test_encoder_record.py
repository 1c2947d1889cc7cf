"""What the recorded suite `encoder` must show, on every Hopper card it was recorded on.

The bounds are those that the layer was built to, for the pre-LN layer, 1024 wide, in bf16.
"""

import pytest

from kernels.lab.records.data import recordings

HOPPER = ("h100-sxm", "h100-pcie", "h200")
RECORDED = [one for one in recordings("encoder") if one.gpu in HOPPER]

pytestmark = pytest.mark.skipif(not RECORDED, reason="the suite encoder is not recorded yet")


@pytest.fixture(params=RECORDED, ids=lambda one: one.gpu)
def card(request):
    return request.param


def times(card, shape, pass_, timing):
    """Microseconds of each variant of a cell."""
    where = {"op": "encoder_pre", "shape": shape, "pass_": pass_, "timing": timing}
    return {row.variant: row.time_us_p50 for row in card.select(**where)}


@pytest.mark.parametrize("shape", ["32x512x1024", "8x2048x1024"])
def test_inference_on_the_device(card, shape):
    found = times(card, shape, "fwd", "graph")
    best = min(found[name] for name in ("torch", "eager_fastpath", "compile"))
    assert best / found["fused"] >= 1.10, found


@pytest.mark.parametrize(
    ("shape", "of_graphs", "of_torch"), [("1x128x1024", 1.3, 3.0), ("8x128x1024", 1.1, 2.5)]
)
def test_inference_from_python(card, shape, of_graphs, of_torch):
    found = times(card, shape, "fwd", "host")
    assert found["compile_graphs"] / found["fused_graphs"] >= of_graphs, found
    assert found["torch"] / found["fused_graphs"] >= of_torch, found


@pytest.mark.parametrize(
    ("shape", "timing", "least"),
    [
        ("32x512x1024", "graph", 1.25),
        ("8x2048x1024", "graph", 1.25),
        ("8x128x1024", "host", 1.5),
    ],
)
def test_a_training_step(card, shape, timing, least):
    found = times(card, shape, "train", timing)
    # From Python a small step is one that is replayed.
    ours = found["fused"] if timing == "graph" else found["fused_graphs"]
    assert found["compile"] / ours >= least, found
    assert found["torch"] / ours >= least, found


@pytest.mark.parametrize("shape", ["1x128x1024", "8x128x1024"])
def test_a_training_step_replayed_from_python(card, shape):
    found = times(card, shape, "train", "host")
    if "fused_graphs" not in found:
        pytest.skip(f"{card.gpu} has recorded no step that is replayed")
    assert found["fused"] / found["fused_graphs"] >= 1.5, found
    assert found["compile_graphs"] / found["fused_graphs"] >= 1.1, found
