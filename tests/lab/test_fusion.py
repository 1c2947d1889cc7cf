"""The fusion explorer's sums: by hand, beside the ledger and beside the layer's memory."""

import shutil

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels.lab import Step, fusion
from kernels.lab.counting import aten, traffic
from kernels.lab.counting.alive import Alive
from kernels.lab.counting.op_ledger import count_op
from kernels.lab.drawing.explorers.fusion import model
from kernels.lab.drawing.explorers.fusion.call import NAMED
from kernels.lab.drawing.explorers.fusion.chain import total
from kernels.lab.records.data import recordings
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.layers.workspace import workspace_bytes
from kernels.ops.prologues import ways
from kernels.registry import get
from tests.ops.test_encoder_counted import (
    BATCH,
    BF16,
    HEADS,
    INNER,
    LENGTH,
    WIDTH,
    X,
    made,
    names,
    peak,
)

SMALL = (16, 1000)
POINTWISE = [name for name in NAMED if not name.startswith("encoder")]
needs_gpp = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")
both_norms = pytest.mark.parametrize("pre", [True, False], ids=["pre", "post"])


def layer(pre, closed="open", inner=INNER):
    name = "encoder_pre" if pre else "encoder_post"
    return fusion(name, (BATCH, LENGTH, WIDTH), heads=HEADS, inner=inner, closed=closed)


def moved(plan_or_ledger):
    """Bytes read and written, launch by launch."""
    if isinstance(plan_or_ledger, model.Plan):
        return [(one.read, one.write) for one in plan_or_ledger.launches]
    return [(step.read_unique, step.write_unique) for step in plan_or_ledger.steps]


# --------------------------------------------------------------------------------------- by hand


def a_chain(closed=(False, False, False), kept=()):
    steps = [
        Step("first", ["x", "w"], ["a"], flops=100),
        Step("second", ["a"], ["b", "more"]),
        Step("third", ["b", "x"], ["c"], flops=5e6, arithmetic="bf16"),
        Step("fourth", ["c", "a"], ["y"], holds=["b"]),
    ]
    tensors = {"x": 1000, "w": 10, "a": 100, "b": 200, "more": 7, "c": 300, "y": 50}
    return fusion(steps, tensors=tensors, kept=kept, closed=closed)


@pytest.mark.parametrize(
    ("closed", "reads", "writes", "alive"),
    [
        # b is held to the end; more and y are outputs, which nobody reads.
        ((0, 0, 0), (1010, 100, 1200, 400), (100, 207, 300, 50), (100, 307, 607, 657)),
        # a is written for the fourth step; x is read once by each launch.
        ((1, 0, 0), (1010, 1200, 400), (307, 300, 50), (307, 607, 657)),
        ((0, 1, 0), (1010, 1100, 400), (100, 307, 50), (100, 407, 457)),
        ((1, 1, 0), (1010, 400), (407, 50), (407, 457)),
        ((1, 1, 1), (1010,), (57,), (57,)),
    ],
)
def test_bytes_and_memory_by_hand(closed, reads, writes, alive):
    found = a_chain([bool(shut) for shut in closed]).plan()
    assert tuple(one.read for one in found.launches) == reads
    assert tuple(one.write for one in found.launches) == writes
    assert tuple(one.alive for one in found.launches) == alive
    assert found.bytes_moved == sum(reads) + sum(writes)
    assert found.memory_bytes == max(alive)


def test_what_is_kept_is_written_and_stays_alive():
    found = a_chain([True, True, True], kept=["c"]).plan()
    assert [(one.write, one.alive) for one in found.launches] == [(357, 357)]
    assert a_chain(kept=["a"]).plan().launches[-1].alive == a_chain().plan().launches[-1].alive
    assert a_chain(kept=["c"]).plan().memory_bytes == 657
    assert a_chain(kept=["a", "b"]).plan().launches[2].alive == 607


CARD = {
    "key": "a-card",
    "slug": "a",
    "name": "Card A",
    "label": "made up",
    "bandwidth": 1e9,  # 1000 bytes are 1 µs
    "peaks": {"fp32": 1e9, "bf16": 1e12},
    "sources": [{"text": "a test", "url": ""}],
    "launch_us": 0.5,
    "host_us": 3.0,
    "launch_of": "Card B",
}


def test_times_by_hand():
    chain = a_chain()._chains["own"]
    found = model.plan(chain, {}, [False, False, False], CARD)
    assert [one.time_us for one in found.launches] == pytest.approx([1.11, 0.307, 5.0, 0.45])
    assert [one.bound for one in found.launches] == ["memory", "memory", "compute", "memory"]
    assert found.time_us == pytest.approx(1.11 + 0.307 + 5.0 + 0.45 + 4 * 0.5)
    # From Python a launch takes 3 µs: four of them are longer than what the card needs.
    assert model.plan(chain, {}, [False, False, False], CARD, "host").time_us == 12
    assert model.plan(chain, {}, [True, True, True], CARD, "host").time_us == pytest.approx(5.5)
    without = CARD | {"peaks": {"fp32": 1e9}}
    assert model.plan(chain, {}, [False, False, False], without).time_us is None
    assert model.plan(chain, {}, [False, False, False], None).time_us is None


def test_a_launch_takes_what_was_recorded():
    cards = {card["key"]: card for card in fusion("encoder_pre").cards}
    (recording,) = (one for one in recordings("ceilings") if one.gpu == "h200")
    took = {row.timing: row.time_us_p50 for row in recording.select(op="launch")}
    for key in ("h200-measured", "h200-maker"):
        assert (cards[key]["launch_us"], cards[key]["host_us"]) == (took["graph"], took["host"])
        assert cards[key]["launch_of"] == recording.provenance["card"]["name"]
    assert cards["t4-maker"]["launch_of"] != "Tesla T4"  # another's, and the page says so


# ----------------------------------------------------------------------------- beside the ledger


@needs_gpp
@pytest.mark.parametrize("name", POINTWISE)
@pytest.mark.parametrize(("closed", "variant"), [("open", "unfused_cuda"), ("everything", "fused")])
def test_a_chain_of_pointwise_steps_moves_what_the_ledger_counts(name, closed, variant):
    found = fusion(name, SMALL, closed=closed)
    assert moved(found.plan()) == moved(count_op(get(name), variant, SMALL, BF16))
    cost = get(name).cost(SMALL, BF16, "fwd")
    chain = found._chains[name]
    assert sum(total(step.flops, found.sizes) for step in chain.steps) == cost.flops


def test_pytorchs_chain_moves_its_mask_and_its_statistics_too():
    name, (rows, cols) = "layernorm_gelu_dropout_residual", SMALL
    theirs = count_op(get(name), "torch", SMALL, BF16)
    mask, statistics, seed = rows * cols, 2 * 4 * rows, 16
    found = fusion(name, SMALL).plan()
    assert len(found.launches) == theirs.aten_ops
    assert theirs.bytes_unique == found.bytes_moved + mask + statistics - seed


@both_norms
def test_this_books_layer_moves_what_the_ledger_counts(pre):
    counted = aten.count(made(norm_first=pre).eval(), X)
    assert moved(layer(pre, "book").plan()) == moved(counted)


@both_norms
def test_its_training_moves_what_the_ledger_counts(pre):
    counted, _ = aten.count_training(made(norm_first=pre), X)
    assert moved(layer(pre, "training").plan()) == moved(counted)


def test_on_hopper_both_norms_go_into_their_products(monkeypatch):
    monkeypatch.setattr(ways, "folds", lambda *_: True)  # `test_prologues` holds when it says so
    counted = traffic.count(made(norm_first=True).eval().requires_grad_(False), X)
    found = layer(True, "hopper").plan()
    assert len(found.launches) == len(names(counted)) == 5
    assert found.memory_bytes == layer(True, "book").plan().memory_bytes
    # γ and β are in the weights; in their place each column has a sum of its weights, in fp32, and
    # its bias is in fp32 too.
    columns = {0: 3 * WIDTH, 3: INNER}
    pairs = zip(moved(found), moved(counted), strict=True)
    for number, ((read, write), (theirs, their_write)) in enumerate(pairs):
        assert write == their_write
        more = columns[number] * (4 + 4 - 2) - 2 * WIDTH * 2 if number in columns else 0
        assert theirs - read == more


@both_norms
def test_pytorchs_layer_moves_its_statistics_too(pre):
    counted = aten.count(made(nn.TransformerEncoderLayer, norm_first=pre).eval(), X)
    found = layer(pre, "torch").plan()
    assert len(found.launches) == counted.aten_ops
    statistics = 2 * 4 * BATCH * LENGTH  # of a norm two numbers of fp32 a row
    for one, step in zip(found.launches, counted.steps, strict=True):
        more = statistics if step.name == "native_layer_norm" else 0
        assert step.write_unique == one.write + more
        assert step.read_unique == one.read


@both_norms
def test_its_flops_are_the_costs_of_its_operations(pre):
    page = layer(pre)
    (chain, _) = page._chains.values()
    each = {step.name: total(step.flops, page.sizes) for step in chain.steps}
    tokens = BATCH * LENGTH
    products = {
        ("QKV",): ("linear", (tokens, WIDTH, 3 * WIDTH)),
        ("LayerNorm 2",): ("layernorm", (tokens, WIDTH)),
        ("scores", "weights · V"): ("attention", (BATCH, HEADS, LENGTH, WIDTH // HEADS)),
        ("out", "residual 1"): ("linear_bias_residual", (tokens, WIDTH, WIDTH)),
        ("up", "GELU"): ("linear_bias_gelu", (tokens, WIDTH, INNER)),
        ("down", "residual 2"): ("linear_bias_residual", (tokens, INNER, WIDTH)),
    }
    for steps, (name, shape) in products.items():
        cost = get(name).cost(shape, BF16, "fwd")
        assert sum(each[step] for step in steps) == cost.flops, name


@both_norms
@pytest.mark.parametrize("inner", [8, INNER, 64])
def test_its_memory_is_the_layers_workspace_and_what_is_alive(pre, inner):
    torch.manual_seed(0)
    told = {"batch_first": True, "norm_first": pre, "activation": "gelu", "dtype": BF16}
    ours = FusedEncoderLayer(WIDTH, HEADS, inner, **told)
    found = layer(pre, "book", inner).plan().memory_bytes
    assert found == workspace_bytes(ours, BATCH, LENGTH, 2, grain=1)
    assert peak(ours) - found in (0, 4)  # attention returns one fp32 for its absent log-sum-exp


@both_norms
def test_its_memory_in_training_is_what_is_alive_in_the_forward(pre):
    with FakeTensorMode():
        ours, x = made(norm_first=pre), torch.empty(X.shape, dtype=BF16, requires_grad=True)
        with Alive(list(ours.parameters()), x) as alive:
            y = ours(x)
            behind = alive.now
    found = layer(pre, "training").plan()
    assert found.memory_bytes == alive.peak
    last = found.launches[-1]
    assert behind == last.alive - y.nbytes  # what the last launch read and nobody keeps is gone


# --------------------------------------------------------------------------------------- choices


def every_chain():
    found = {}
    for name in NAMED:
        shape = (2, 64, 128) if name.startswith("encoder") else SMALL
        found |= {key: (one, name, shape) for key, one in fusion(name, shape)._chains.items()}
    return found


@pytest.mark.parametrize("key", every_chain())
def test_presets_can_be_chosen_and_the_last_leaves_nothing_to_close(key):
    chain, name, shape = every_chain()[key]
    launches = []
    for one in chain.presets:
        closed = chain.closed(one)
        assert model.fault(chain, closed) is None
        assert set(one.closed_behind) <= {step.name for step in chain.steps[:-1]}
        page = fusion(name, shape, closed=one.key)
        assert (page.chain, page.closed) == (key, closed)
        launches.append(len(page.plan().launches))
    assert launches == sorted(launches, reverse=True)
    assert launches[0] == len(chain.steps)
    most = chain.closed(chain.presets[-1])
    assert all(shut or model.barred(chain, most, at) for at, shut in enumerate(most))


def test_a_joint_is_barred_by_what_stands_in_one_launch_with_its_neighbours():
    chain = layer(True)._chains["encoder_pre"]
    place = {step.name: at for at, step in enumerate(chain.steps)}
    closed = [False] * chain.joints
    behind = place["residual 1"]
    assert model.barred(chain, closed, behind) is None  # a norm behind a sum of two tensors
    closed[place["out"]] = True  # and now behind a product
    assert model.barred(chain, closed, behind).startswith("A norm needs the whole row")
    closed[behind] = True
    assert model.fault(chain, closed).startswith("'out' and 'LayerNorm 2' can't be one launch: A")
    assert model.barred(chain, closed, place["QKV"]).startswith("A query's scores need the keys")
