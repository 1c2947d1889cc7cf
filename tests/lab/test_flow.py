"""The data flow of a layer: what moves held to launches that ran, memory held to the workspace."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from kernels.lab.counting import traffic
from kernels.lab.counting.by_torch import launches_by_torch
from kernels.lab.counting.flow import Carried, flow
from kernels.lab.drawing.lifetimes import arcs, lifetimes, offsets
from kernels.launch import assume_capability
from kernels.ops.layers import workspace
from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.layers.workspace import workspace_bytes
from kernels.ops.prologues import ways

BATCH, LENGTH, WIDTH, HEADS, INNER = 2, 6, 16, 2, 24
BF16 = torch.bfloat16
X = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0)).to(BF16)
pre_and_post = pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])


def made(inner=INNER, width=WIDTH, **changes):
    told = {"dropout": 0.1, "activation": "gelu", "batch_first": True, "dtype": BF16, **changes}
    return FusedEncoderLayer(width, HEADS, inner, **told)


def moved(ledger):
    """Kernel by kernel what is read, what is written and the grid."""
    return [(s.name, s.read_unique, s.write_unique, s.grid) for s in ledger]


@pre_and_post
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("capability", [75, 80])
def test_it_moves_what_launches_that_ran_moved(monkeypatch, norm_first, folded, capability):
    # Sums of folded weights are padded to whole tiles, which a flow takes for read: here they fit.
    wide = 256 if folded else WIDTH
    layer, x = made(256, wide, norm_first=norm_first).eval(), torch.randn(1, 3, wide).to(BF16)
    with assume_capability(capability), torch.no_grad():
        found = flow(layer, x, folded=folded)
        monkeypatch.setattr(ways, "folds", lambda *_: folded)
        assert moved(found.ledger) == moved(traffic.count(layer, x))
    assert len(found.ledger.steps) == (5 if folded and norm_first else 7)


@pre_and_post
@pytest.mark.parametrize("masks", [{"is_causal": True}, {"src_key_padding_mask": True}])
def test_masks_are_given(norm_first, masks):
    masks = {
        name: torch.zeros(BATCH, LENGTH, dtype=torch.bool) if "padding" in name else told
        for name, told in masks.items()
    }
    layer = made(norm_first=norm_first).eval()
    with assume_capability(80), torch.no_grad():
        assert moved(flow(layer, X, **masks).ledger) == moved(traffic.count(layer, X, **masks))


@pre_and_post
@pytest.mark.parametrize("inner", [8, INNER, 64])
@pytest.mark.parametrize("folded", [False, True])
def test_memory_is_the_workspace(norm_first, inner, folded):
    layer = made(inner, norm_first=norm_first)
    with assume_capability(80):
        found = flow(layer, X, folded=folded)
        stack = flow(FusedEncoder(layer, 3, nn.LayerNorm(WIDTH, dtype=BF16)), X, folded=folded)
    assert found.peak == workspace_bytes(layer, BATCH, LENGTH, 2, grain=1)
    whole = FusedEncoder(layer, 3, nn.LayerNorm(WIDTH, dtype=BF16))
    assert stack.peak == workspace_bytes(whole, BATCH, LENGTH, 2, grain=1)
    # Step by step: a step of the formula is an operator, whose last launch has all of it.
    told = workspace.lifetimes(layer, folded=folded and norm_first)
    last = {operator: number for number, operator in enumerate(found.operators, 1)}
    tokens = BATCH * LENGTH * 2
    sizes = [sorted(c.size for c in found.alive(number)) for number in last.values()]
    wanted = [sorted(width * tokens for width in one.tensors.values()) for one in told]
    norms = [one for one in told if one.step == "LN"]
    if norm_first and not folded:  # the operator of LN and the product has both of these steps
        wanted.remove(sorted(width * tokens for width in norms[0].tensors.values()))
    assert sizes == wanted


def test_post_ln_holds_what_nobody_reads():
    with assume_capability(80):
        pre, post = (flow(made(norm_first=first), X) for first in (True, False))
    assert all(one.until == one.needed_until for one in pre.carried if one.readers)
    idle = {one.name: one.until - one.needed_until for one in post.carried if one.readers}
    assert {name for name, launches in idle.items() if launches} == {"o", "h", "a"}
    tokens = BATCH * LENGTH * 2
    assert post.peak == max(4 * WIDTH, 3 * WIDTH + INNER) * tokens
    needed = max(post.bytes_needed(number) for number in range(1, 8))
    assert needed == max(4 * WIDTH, 2 * WIDTH + INNER) * tokens


@pre_and_post
def test_tensors_have_the_names_of_the_equations(norm_first):
    with assume_capability(80):
        found = flow(made(norm_first=norm_first), X)
    widths = {one.name: one.size // (BATCH * LENGTH * 2) for one in found.carried}
    assert widths.pop("qkv") == 3 * WIDTH
    assert widths.pop("a") == INNER
    assert set(widths.values()) == {WIDTH}
    readers = {one.name: one.readers for one in found.carried}
    assert readers["h"] == ((5, 7) if norm_first else (5, 6))
    assert readers["y"] == ()
    given = {t.tensor for step in found.activations for t in step.tensors} - set(readers)
    assert given == {"x"}
    assert found.parameters == dict(made(norm_first=norm_first).named_parameters()).keys()


def test_a_rule_says_which_norms_are_folded():
    asked = []

    def rule(rows, depth, columns):
        asked.append((rows, depth, columns))
        return columns == INNER

    with assume_capability(80):
        names = [c.name for c in flow(made(norm_first=True), X, folded=rule).carried]
    assert names == ["LN(x)", "qkv", "o", "h", "a", "y"]
    assert asked == [(BATCH * LENGTH, WIDTH, 3 * WIDTH), (BATCH * LENGTH, WIDTH, INNER)]


def test_relu_is_a_launch_of_its_own():
    with assume_capability(80):
        found = flow(made(norm_first=True, activation="relu"), X)
    (before,) = (one for one in found.carried if one.name == "u")
    (behind,) = (one for one in found.carried if one.name == "a")
    assert before.readers == (behind.writer,)
    assert before.size == behind.size
    assert len(found.ledger.steps) == 8


def test_a_stack_says_whose_tensor_it_is():
    with assume_capability(80):
        names = [c.name for c in flow(FusedEncoder(made(norm_first=True), 2), X).carried]
    assert names[:2] == ["1.LN(x)", "1.qkv"]
    assert names[-1] == "2.y"


@pre_and_post
def test_where_products_are_pytorchs_a_layer_takes_ten(norm_first):
    found = launches_by_torch(norm_first)
    products, norms = found.count("addmm"), found.count("norm_row")
    assert (products, norms, found.count("attention_forward")) == (4, 2, 1)
    assert (found.count("add"), found.count("dropped_tile")) == (2, 1)  # residuals, GELU
    assert len(found) == 10


def test_a_call_with_other_operators_is_refused():
    with pytest.raises(ValueError, match="aten::clone moves bytes; a flow is of launches alone"):
        flow(made(batch_first=False), X)


def test_the_layer_is_left_as_it_was():
    layer = made()
    before = {name: one.clone() for name, one in layer.state_dict().items()}
    flow(layer, X)
    assert layer.training
    assert all(torch.equal(one, before[name]) for name, one in layer.state_dict().items())


# ------------------------------------------------------------------------------------------ drawn


def carried(*told):
    return [Carried(str(n), size, first, (last,), last) for n, (size, first, last) in
            enumerate(told)]  # fmt: skip


def test_a_tensor_lies_in_the_first_gap_that_it_fits_into():
    assert offsets(carried((4, 1, 2), (2, 1, 3), (3, 3, 4), (5, 4, 4), (1, 4, 4))) == [
        *(0, 4, 0, 3, 8)
    ]


@pre_and_post
def test_no_two_tensors_share_memory_and_the_picture_is_as_high_as_the_peak(norm_first):
    with assume_capability(80):
        found = flow(made(4 * WIDTH, norm_first=norm_first), X)
    places = offsets(found.carried)
    for number in range(1, 8):
        spans = sorted(
            (place, place + one.size)
            for place, one in zip(places, found.carried, strict=True)
            if one in found.alive(number)
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert max(p + c.size for p, c in zip(places, found.carried, strict=True)) == found.peak
    axes = lifetimes(found, "A layer").axes[0]
    boxes = [box for box in axes.patches if box.get_gid() in ("needed", "held")]
    held = [box for box in boxes if box.get_gid() == "held"]
    assert len(boxes) - len(held) == len(found.carried)
    assert len(held) == (0 if norm_first else 3)
    for one, box in zip(found.carried, [b for b in boxes if b not in held], strict=True):
        assert box.get_x() == one.writer - 0.5
        assert box.get_height() * 1e3 == pytest.approx(one.size)


def test_an_arc_leads_from_a_writer_to_each_reader():
    with assume_capability(80):
        found = flow(made(norm_first=True), X)
    figure = arcs(found.ledger, "A layer", found.parameters)
    drawn = [box for box in figure.axes[0].patches if box.get_gid() == "arc"]
    ends = sorted((box.center[1] - box.height / 2, box.center[1] + box.height / 2) for box in drawn)
    pairs = [(one.writer, reader) for one in found.carried for reader in one.readers]
    assert ends == sorted([(0, 1), (0, 4), *pairs])  # x is given: to the norm, to the residual
    with pytest.raises(ValueError, match="no step reads a tensor"):
        arcs(found.ledger, "", frozenset(found.ledger.tensors))
