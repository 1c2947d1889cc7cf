"""What chapter 15 says of a layer's memory, its checkpoints, its gradients and its run."""

import ast
import functools
import json
import re
import shutil
import types

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from book.tools import build
from kernels.lab import plots
from kernels.lab.counting import aten
from kernels.lab.counting.kept import training_step
from kernels.lab.measuring import step_memory
from kernels.lab.measuring.shown import recorded
from kernels.lab.measuring.step_memory import step_memories
from kernels.lab.records.data import recordings, write_suite
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.products import linear
from kernels.ops.products.configurations import TORCH, TRITON, WAYS, Ways
from kernels.paths import DATA_DIR, ROOT
from tests.lab.test_data import a_row

CHAPTER = "15_training_the_encoder_layer.ipynb"
B, S, E, INNER = 8, 2048, 1024, 4096
GELU, ATTENTION, NORM = "gelu_checkpoint", "attn_dropout_checkpoint", "norm_checkpoint"
UNIT = 2 * B * S * E


@pytest.fixture(scope="module")
def cells():
    notebook = json.loads((ROOT / "book" / CHAPTER).read_text(encoding="utf-8"))
    return {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}


@pytest.fixture(scope="module")
def told():
    """What the cells of the executed page say, pictures by their alternative text."""
    found = {}
    for cell in build.executed(ROOT / "book" / CHAPTER, ROOT).cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            text = output.get("text", "") or data.get("text/markdown", data.get("text/html", ""))
            found[cell.id] = found.get(cell.id, "") + text
    return found


def table(text):
    """The lines of the tables in a text, each as its cells."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


# ------------------------------------------------------------------------------------- what is kept


def test_what_is_kept_is_as_predicted(told, cells):
    assert "torch keeps 19.04 units, 639 MB" in told["sizes"]
    assert "fused keeps 15.04 units, 504 MB; a unit is 33.6 MB" in told["sizes"]
    theirs, ours = (part for part in told["kept-table"].split("\n\n"))
    sizes = [
        {row[0]: float(row[1]) for row in table(part)[2:] if "statistics" not in row[0]}
        for part in (theirs, ours)
    ]
    masks = {name: size for name, size in sizes[0].items() if name.startswith("mask")}
    assert sum(masks.values()) == 3
    assert sizes[1] == {"qkv": 3, "o": 1, "L": 0.03, "LN(h)": 1, "h": 1, "u": 4, "a": 4, "y": 1}
    bare = {name.removesuffix(" laid out anew"): size for name, size in sizes[0].items()}
    assert bare == {**sizes[1], **masks, "LN(x)": 1}
    readers = {row[0]: row[3] for row in table(ours)[2:]}
    assert readers["y"] == "nobody: the output"
    assert all(readers[name] for name in sizes[1])
    assert "That is 15, and ours has no more." in cells["kept-text"]
    assert "That is 19." in cells["kept-text"]
    assert told["kept-formula"].count("as by formula: True") == 3


def test_where_the_gradient_of_u_comes(cells):
    """Two operators behind the peak, when a and a gradient are gone."""
    words = {"batch_first": True, "norm_first": True, "activation": "gelu", "dropout": 0.1}
    layer = FusedEncoderLayer(256, 2, 1024, device="meta", dtype=torch.bfloat16, **words)
    x = torch.empty(2, 64, 256, dtype=torch.bfloat16, device="meta")
    step = training_step(layer, x)
    place = step.moments.index(step.peak)
    later = step.moments[place + 2]
    assert [one.back for one in step.moments[place - 2 : place]] == [False, True]
    assert later.operator == "dropped_backward"
    assert int(later.bytes / x.nbytes) == 19
    assert "$20 - 4 - 1 + 4 = 19$" in cells["unseen-text"]


def test_a_mask_in_bits_would_be_tenths_of_a_unit():
    assert 0.1 < (2 + 4) * B * S * E / 8 / UNIT < 0.5


def test_the_peaks(told, cells):
    rows = {row[0]: row for row in table(told["peak-alive"])[2:]}
    peaks = {name: float(row[2]) for name, row in rows.items()}
    assert [round(one, 1) for one in peaks.values()] == [23.5, 20.0, 15.0]
    assert "$15 + 1 + 4 = 20$" in cells["peak-text"]
    assert "$23.5$" in cells["peak-text"]
    assert rows["torch"][4].endswith("gradient by native_dropout_backward 1, gradient by mm 4")
    assert "mask behind the MLP" not in rows["torch"][4]
    alive = rows["fused"][4]
    assert alive.endswith("gradient by dropped_backward 1, gradient by linear_grad_x 4")
    assert rows["fused"][3] == f"{round((8 * E + 3 * INNER) * 2 * B * S / 1e6 + 1):,}"
    assert "a again 4" in rows["fused, with both checkpoints"][4]
    assert "gradient by linear_grad_x" not in rows["fused, with both checkpoints"][4]
    assert "23.5, 20.0, 15.0 units" in told["over-step"]


def test_without_dropout_the_lists_differ_by_two_norms(cells):
    assert "16 units and 14" in cells["fails"]
    for kind, units in ((torch.nn.TransformerEncoderLayer, 16), (FusedEncoderLayer, 14)):
        words = {"batch_first": True, "norm_first": True, "activation": "gelu", "dropout": 0.0}
        layer = kind(64, 2, 256, device="meta", dtype=torch.bfloat16, **words)
        x = torch.empty(2, 8, 64, dtype=torch.bfloat16, device="meta")
        assert int(training_step(layer, x).kept_bytes / x.nbytes) == units


def test_adams_state_against_what_is_kept(cells):
    tokens = 8 * 12 * E * E / (2 * 15 * E)
    assert tokens / E == pytest.approx(3.2)
    assert "$3.2E$ tokens, some 3,300 here" in cells["fails"]
    assert round(tokens, -2) == 3300


# ------------------------------------------------------------------------------------- checkpoints


def test_the_recipe_and_the_prices(told, cells):
    plain, recipe, same = told["recipe-run"].strip().splitlines()
    assert plain.endswith("in units: gelu 4, mm 1")
    assert recipe.endswith("in units: mm 1")
    assert same == "same gradients: True"
    assert "without flags: launches forward 10, back 20" in told["price"]
    assert "with both: launches forward 10, back 22" in told["price"]
    rows = table(told["price-table"])[2:]
    assert [row[1:4] for row in rows] == [
        ["4.0", "4.0", "+1"], ["1.0", "1.0", "+1"], ["14.0", "0.0", "+10"]
    ]  # fmt: skip
    assert [row[5] for row in rows] == ["+0%", "+7%", "+30%"]
    of_step = 3 * 24 + 4.5 * 8  # in E² a token, at S = 2E
    assert [f"{x / of_step:.0%}" for x in (8, 32)] == ["7%", "30%"]
    assert "$72 + 36 = 108$" in cells["price-text"]
    assert of_step == 108
    gelu, o, whole = (float(row[7]) for row in rows)
    assert gelu < whole < o  # the order of the price
    (ceilings,) = (one for one in recordings("ceilings") if one.gpu == "h100-sxm")
    ridge = plots.ceilings_of(ceilings, "bf16").ridge
    assert o / gelu == pytest.approx(S / ridge, rel=0.01)
    assert 200 < 2 * ridge < 1000  # "some hundreds of tokens"


def test_the_norm_between(told, cells):
    all_three, alone = told["norm-between-counted"].strip().splitlines()
    assert all_three == "kept 9.0 units, peak 14.0, 59.6% of PyTorch's"
    assert alone == "the norm's flag alone: 1 launch more"
    assert "$15 - 4 - 1 - 1 = 9$" in cells["norm-between"]
    assert "$20 - 6 = 14$" in cells["norm-between"]


def test_where_a_checkpoint_frees_nothing(told, cells):
    rows = table(told["nothing"])[2:]
    for ratio, *peaks, where in rows:
        inner = float(ratio)
        assert [float(one) for one in peaks] == [
            max(10, 8 + 3 * inner), max(10, 8 + 2 * inner), max(10, 7 + 2 * inner)
        ]  # fmt: skip
        assert where == ("attention" if 7 + 2 * inner < 10 else "the MLP")
    assert "$3 + 1 + 1 + 3 + 1 + 1 = 10E$" in cells["nothing-text"]


def test_stacks(told, cells):
    rows = {row[0]: row for row in table(told["stack"])[2:]}
    twelve = {name: int(float(row[2])) for name, row in rows.items()}
    assert twelve["ours"] == 12 * 15 + 5 == 185
    assert twelve["`gelu_checkpoint`"] == 12 * 11 + 5 == 137
    assert twelve["both flags"] == 12 * 10 + 5 == 125
    assert twelve["each layer checkpointed whole"] == 12 + 19 == 31
    for number in (185, 137, 125, 31):
        assert f"= {number}$" in cells["stack-text"]
    inside = [twelve[f"whole, and `{flag}` in it"] for flag in (GELU, ATTENTION)]
    assert inside[0] == 31 - 4  # its operator never keeps a
    assert inside[1] == 31 + 12 * 4  # the trap
    hint = cells["fails"]
    assert "6 \\cdot 15 + 6 + 19 = 115" in hint
    assert "6 \\cdot 15 + 6 + 5 = 101" in hint


def test_post_ln(cells):
    """What the hint of the page's first task says."""
    words = {"batch_first": True, "activation": "gelu", "dropout": 0.1}
    layer = FusedEncoderLayer(256, 2, 1024, device="meta", dtype=torch.bfloat16, **words)
    x = torch.empty(2, 64, 256, dtype=torch.bfloat16, device="meta")
    step = training_step(layer, x)
    assert int(step.kept_bytes / x.nbytes) == 16
    assert int(step.peak.bytes / x.nbytes) == 21
    assert "16 units" in cells["fails"]
    assert "$16 - 1 + 1 + 1 + 4 = 21$" in cells["fails"]


def test_every_second_layer_checkpointed():
    """What the hint of the page's third task says, in units."""
    words = {"batch_first": True, "norm_first": True, "activation": "gelu", "dropout": 0.1}
    x = torch.empty(2, 8, 256, dtype=torch.bfloat16, device="meta")
    found = []
    for whole in ([0, 1] * 6, [1, 0] * 6, [1] * 11 + [0], [1] * 12):
        made = [
            FusedEncoderLayer(256, 2, 1024, device="meta", dtype=x.dtype, **words) for _ in whole
        ]
        layers = [
            Whole(one) if is_whole else one for one, is_whole in zip(made, whole, strict=True)
        ]
        found.append(int(training_step(torch.nn.Sequential(*layers), x).peak.bytes / x.nbytes))
    assert found == [115, 101, 31, 31]


class Whole(torch.nn.Module):
    """A layer that keeps its input alone."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False, preserve_rng_state=False)


# ----------------------------------------------------------------------------------- the way back


def test_the_launches_of_the_way_back(told, cells):
    assert "Ours: 10 forward, 20 back." in told["back-table"]
    assert "PyTorch's layer: 16 operators forward, 28 back" in told["back-table"]
    back = [row[3].strip("`") for row in table(told["back-table"])[2:]]
    kinds = {
        "products": ("gradient_tile", "gradient_persistent"),
        "dropouts": ("dropped_backward_tile",),
        "norms": ("norm_backward_rows", "sum_partials", "norm_row"),
        "attention": ("attention_dq", "attention_dkdv", "stack"),
        "sum": ("add",),
    }
    counts = [sum(back.count(name) for name in names) for names in kinds.values()]
    assert counts == [8, 3, 5, 3, 1]  # as the answer adds them up
    assert "$8 + 2 + 3 + 3 + 3 + 1 = 20$" in cells["back-text"]


def test_with_pytorchs_products_a_bias_costs_a_launch(cells, monkeypatch):
    """As on a GPU, whatever its capability."""
    assert all(way.grad_x == way.grad_weight == TORCH for way in WAYS.values())
    monkeypatch.setattr(linear, "EVERYWHERE", Ways(TRITON, TORCH, TORCH))
    words = {"batch_first": True, "norm_first": True, "activation": "gelu"}
    layer = FusedEncoderLayer(16, 2, 64, **words, dtype=torch.bfloat16)
    x = torch.zeros(1, 8, 16, dtype=torch.bfloat16).requires_grad_()
    names = [[step.name for step in ledger.steps] for ledger in aten.count_training(layer, x)]
    assert [len(one) for one in names] == [10, 24]
    assert names[1].count("column_sums") == 4
    assert "24 in place of 20" in cells["back-read"]


SUMMED = ("dropped_backward_sums", "dropped_norm_backward_sums", "add_parts")


@pytest.mark.parametrize("recording", recordings("encoder"), ids=lambda one: one.gpu)
def test_a_hopper_card_goes_back_by_more_launches(recording, cells):
    timeline = recording.provenance["timelines"]["encoder_pre:fused:8x2048x1024:bf16:p=0.1:train"]
    names = [name for name, _, _ in timeline]
    back = names[names.index("dropped_backward_sums") :]
    its_own = ["attention_rows", "hopper_dkdv", "hopper_dq"]  # the forward has left the bits
    first = back.index(its_own[0])
    assert back[first : first + len(its_own)] == its_own
    assert back.count("column_sums") == 2  # of QKV's bias
    assert [name for name in back if name in SUMMED] == [
        *("dropped_backward_sums", "add_parts") * 2,
        *("dropped_norm_backward_sums", "add_parts"),
    ]
    launches = len(back) - sum("splitK" in name and "reduce" in name for name in back)
    assert launches == 22
    assert f"$27 - 1 - 1 - 3 = {launches}$" in cells["summed-text"]
    # `add`, `stack` and the launch for the bits are gone.
    assert "$dK$ and $dV$, then $dQ$: 30, and one more" in cells["back-read"]
    assert "27 launches for 30" in cells["back-read"]


def test_sums_in_other_launches_save_more_than_their_bytes(told, cells):
    unit = 2 * 8 * 2048 * 1024
    read, passed_on = 1 + 4 + 1, 1  # by the launches that summed; from the norm to the dropout
    least_us = 1e6 * (read + passed_on) * unit / 4.8e12
    assert (
        f"are {(read + passed_on) * unit / 1e6:.0f} MB, {least_us:.0f} µs" in cells["summed-text"]
    )
    took = float(re.search(r"H200 in all: (\d+) µs", told["summed"])[1])
    before = float(re.search(r"they took (\d+) µs on an H200", cells["summed-read"])[1])
    assert round(before - took, -1) == 80
    assert f"some 80 µs are gone where bytes tell of {least_us:.0f}" in cells["summed-read"]
    of_norm = float(re.search(r"dropped_norm_backward_sums +(\S+) µs", told["summed"])[1])
    assert of_norm < 47


def test_dropout_is_replayed(told):
    same, other = (float(x) for x in re.findall(r"gradient (\S+)", told["replay"]))
    assert same < 1e-5 < 0.3 < other


def test_what_may_be_overwritten(told):
    rows = {row[0]: row for row in table(told["overwritten"])[2:]}
    assert [name for name, row in rows.items() if row[3] == "by its reader"] == ["o·Wo", "a·W2"]
    assert rows["y"][2] == "no"
    found = dict(re.findall(r"y over (.*?): (?:errors of dx, dW: )?(.*)", told["in-place-run"]))
    errors = {name: found[name].split(", ") for name in ("the sums", "LN(x)", "x")}
    assert errors["the sums"] == ["0e+00", "0e+00"]
    assert errors["LN(x)"][0] == errors["x"][1] == "0e+00"
    assert float(errors["LN(x)"][1]) > 0.05
    assert float(errors["x"][0]) > 0.05
    assert "modified by" in found["x, seen by PyTorch"]


def test_over_da_the_flag_lowers_the_peak(told, cells):
    """du beside da would stand with u: qkv, o, LN(h), h, y, a gradient, and three of width I."""
    assert "the flag would lower the peak by nothing" in cells["in-place-read"]
    assert 3 + 1 + 1 + 1 + 1 + 1 + 3 * 4 == 20


def test_the_inverted_norm(told):
    lines = re.findall(r"gamma +(\S+): from the output (\S+); with beta 0.5 (\S+)",
                       told["invertible"])  # fmt: skip
    assert [one[0] for one in lines] == ["1.0", "0.1", "0.01", "0.001", "0.0"]
    *some, none = lines
    assert none[1:] == ("nan", "nan")
    plain = float(re.search(r"error of x_hat (\S+)", told["invertible"])[1])
    for gamma, without, beside in some:
        assert float(without) == pytest.approx(plain, rel=0.2)  # no harm
        assert float(beside) < 2**-8 * (0.5 / float(gamma) + 4)
    assert float(some[-1][2]) > 0.5  # mostly rounding


def test_fp16_is_as_near_beside_a_gamma_an_eighth_as_large():
    """What the hint of the page's fifth task says."""
    torch.manual_seed(0)
    x_hat = torch.nn.functional.layer_norm(torch.randn(64, 256, dtype=torch.float64), (256,))

    def error(gamma, beta, dtype):
        y = (x_hat * gamma + beta).to(dtype).double()
        return (((y - beta) / gamma - x_hat).norm() / x_hat.norm()).item()

    for gamma, beta, ratio in ((0.01, 0.5, 1), (0.001, 0.5, 1), (0.1, 0.0, 8), (0.001, 0.0, 8)):
        both = error(8 * gamma, beta, torch.bfloat16), error(gamma, beta, torch.float16)
        assert both[0] / both[1] == pytest.approx(ratio, rel=0.05)


def test_the_gradients(told):
    rows = {row[0]: tuple(map(float, row[1:])) for row in table(told["errors"])[2:-1]}
    assert len(rows) == 13
    assert all(ours < 2 * theirs + 0.1 and ours < 20 for theirs, ours in rows.values())
    lost = re.findall(r"NaN (\d+) of 12, error (\S+)", told["no-key"])
    assert int(lost[0][0]) == 11  # by operators; then PyTorch's on a CPU, and ours
    assert [one[0] for one in lost[1:]] == ["0", "0"]
    assert all(float(one[1]) < 1e-5 for one in lost[1:])


def test_the_run(told):
    assert "on this CPU, interpreted" in told["run-told"]
    apart = float(re.search(r"differ by (\S+) of", told["run-told"])[1])
    assert apart < 1e-4
    assert "On a GPU this cell makes 200 steps." in told["run-told"]


def test_sums_in_other_orders(told):
    assert torch.finfo(torch.float32).eps * 32 / 12**0.5 == pytest.approx(1e-6, rel=0.2)
    large, one = (torch.tensor(x, dtype=torch.float32) for x in (2.0**24, 1.0))
    assert (large + one) + one == large
    assert large + (one + one) == 2.0**24 + 2
    errors = {name.strip(): float(error) for name, error in
              re.findall(r"(.*) -?\d+\.\d+, off by (\S+)", told["order"])}  # fmt: skip
    assert len(errors) == 6
    assert max(errors["by halves"], errors["64 parts"]) < errors["as they come"] / 5
    assert 5 <= int(told["order"].rpartition(" ")[2]) <= 6


@pytest.fixture
def one_thread():
    """Tensors so small are no work for two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_stochastic_mode(told, cells):
    assert "launches back: 20 in a fixed order, 18 with atomics" in told["stochastic"]
    assert "in the place of two, twice: norm_backward_adding" in told["stochastic"]
    programs = int(re.search(r"parts of (\d+) programs", told["stochastic"])[1])
    moved = float(re.search(r"(\S+) MB; a unit", told["stochastic"])[1])
    assert moved == pytest.approx(32 * programs * E / 1e6, abs=0.05)
    assert moved * 1e6 / UNIT == pytest.approx(1 / 8, rel=0.1)  # "an eighth of a unit"
    worst, differ = re.search(r"gradient (\S+); two runs: (\d+) of 13", told["stochastic"]).groups()
    assert float(worst) < 1e-5
    assert differ == "0"  # interpreted
    assert "$32PE$ bytes" in cells["stochastic-text"]


def test_a_step_moves_more_than_a_hundred_units():
    """Of a layer small enough to be counted, whose weights are beside the tokens as if few."""
    words = {"batch_first": True, "norm_first": True, "activation": "gelu"}
    layer = FusedEncoderLayer(16, 2, 64, **words, dtype=torch.bfloat16)
    x = torch.zeros(1, 8, 16, dtype=torch.bfloat16).requires_grad_()
    total, ledgers = 0, aten.count_training(layer, x)
    (stack,) = (step for step in ledgers[1].steps if step.name == "stack")
    assert stack.bytes_unique == 6 * x.nbytes  # "6 units of bytes a step for no arithmetic"
    for ledger in ledgers:
        for step in ledger.steps:
            large = [one for one in step.tensors if "weight" not in one.tensor]
            total += sum(one.unique for one in large)
    assert total > 100 * x.nbytes


@pytest.mark.usefixtures("one_thread")
def test_two_hundred_steps_may_be_compared_so(cells):
    """By PyTorch's layer twice: other masks alone move the end of the run by less than 3 %."""
    names = {"device": "cpu"}
    for cell in ("imports", "run-model", "run-losses"):
        exec(cells[cell], names)
    theirs, model, ends = names["nn"].TransformerEncoderLayer, names["Backwards"], []
    for seed in (0, 5):

        def seeded(*args, seed=seed):
            made = model(*args)
            torch.manual_seed(seed)
            return made

        names["Backwards"] = seeded
        losses = names["losses"](theirs, 0.1, 200, 32)
        ends.append(sum(losses[-20:]) / 20)
        assert losses[0] > 1.3 * ends[-1]  # something was learnt
    assert 0 < abs(ends[0] / ends[1] - 1) < 0.03


# ------------------------------------------------------------------ cells that wait for records

# How many of the cells "measured", "ahead", "kinds" a cell calls functions of.
BEFORE = {"ahead": 1, "captured-costs": 1, "kinds": 2, "dropped": 3, "price-measured": 3}


@pytest.fixture
def shown(cells):
    """What a cell of measured numbers tells from a folder of records."""

    def run(cell, data_dir):
        names = {"B": B, "S": S, "E": E, "steps": {}, "one_by_one": {}, "FLAGS": {}}
        exec(cells["imports"], names)
        names["recordings"] = functools.partial(recordings, data_dir=data_dir)
        names["recorded"] = functools.partial(recorded, data_dir=data_dir)
        names["step_memories"] = functools.partial(step_memories, data_dir=data_dir)
        peak = types.SimpleNamespace(peak=types.SimpleNamespace(bytes=600e6))
        names["steps"] = {"torch": peak, "fused": peak}
        of_layer = [torch.empty(12 * E * E + 13 * E, dtype=torch.bfloat16, device="meta")]
        layer = types.SimpleNamespace(parameters=lambda: of_layer)
        names |= {"step_of": lambda _: peak, "layer_of": lambda *_, **__: layer, "ours": None}
        names |= {"all_three": peak, "UNIT": UNIT, "attends": 4 * B * S * S * E}
        names |= {"H": 16, "BF16": torch.bfloat16}
        for before in ("measured", "ahead", "kinds")[: BEFORE.get(cell, 0)]:
            exec(cells[before], names)
        *rest, last = ast.parse(cells[cell]).body
        exec(compile(ast.Module(rest, []), cell, "exec"), names)
        return eval(compile(ast.Expression(last.value), cell, "eval"), names).data

    return run


def test_without_records_the_page_says_what_makes_them(shown, tmp_path):
    unwanted = shutil.ignore_patterns("encoder.*", "memory.json")
    shutil.copytree(DATA_DIR, tmp_path / "data", ignore=unwanted)
    text = shown("measured", tmp_path / "data")
    assert text.startswith("No card has recorded this layer's training step yet")
    assert "`python -m kernels.lab bench encoder`" in text
    text = shown("peaks-measured", tmp_path / "data")
    assert text.startswith("No card has recorded it yet: `python -m kernels.lab memory`")
    assert shown("ahead", tmp_path / "data").startswith("Nothing to say before a card has")
    assert shown("kinds", tmp_path / "data").startswith("No card has recorded a timeline")
    assert shown("dropped", tmp_path / "data").startswith("No card has recorded a timeline")
    assert shown("price-measured", tmp_path / "data").startswith("No card has recorded a step")


def test_the_page_fills_itself_when_records_come(shown, tmp_path):
    about = json.loads((DATA_DIR / "h100-sxm" / "ceilings.json").read_text(encoding="utf-8"))
    times = {"torch": 6000.0, "fused": 4000.0, "fused_checkpointed": 4400.0}
    rows = [
        a_row(op="encoder_pre", variant=variant, pass_="train", shape=shape, dtype="bf16",
              options="p=0.1", time_us_p20=us, time_us_p50=us, time_us_p95=us)
        for shape in ("8x2048x1024", "1x128x768") for variant, us in times.items()
    ]  # fmt: skip
    write_suite(tmp_path / "h100-sxm" / "encoder.csv", rows, about)
    text = shown("measured", tmp_path)
    assert "| encoder_pre, a step | torch | fused | fused_checkpointed | torch / fused |" in text
    assert "| 8×2048×1024 | 6,000 µs | 4,000 µs | 4,400 µs | 1.50 |" in text
    assert "| 1×128×768 | " in text
    assert "bf16, B×S×E, recorded on one NVIDIA H100" in text
    assert "encoder_post" not in text


def test_the_replayed_step_is_the_layers_and_refuses_two_open_calls(told):
    assert told["captured"] == "same gradients: True\n"
    masks, refusal = told["captured-refused"].splitlines()
    assert masks == "same masks: False"
    assert refusal == "a later call has overwritten the activations of this one"


@pytest.mark.parametrize("replayed", [True, False])
def test_what_a_replayed_step_takes_from_python(shown, tmp_path, replayed):
    about = json.loads((DATA_DIR / "h100-sxm" / "ceilings.json").read_text(encoding="utf-8"))
    times = {"fused": 2800.0, "compile": 3100.0, "compile_graphs": 1300.0, "fused_graphs": 420.0}
    if not replayed:
        del times["fused_graphs"]
    rows = [
        a_row(op="encoder_pre", variant=variant, pass_="train", shape="8x128x1024", dtype="bf16",
              options="p=0.1", timing=timing, time_us_p20=us, time_us_p50=us, time_us_p95=us)
        for timing, found in (("host", times), ("graph", {"fused": 290.0}))
        for variant, us in found.items()
    ]  # fmt: skip
    write_suite(tmp_path / "h100-sxm" / "encoder.csv", rows, about)
    text = shown("captured-costs", tmp_path)
    in_and_out, of_gradients = 4 * 2 * (2 * 8 * 128 * E), 4 * 2 * (12 * E * E + 13 * E)
    assert f"of x, y, dy and dx {in_and_out / 1e6:.1f} MB, of the gradients twice " in text
    assert f"twice {of_gradients / 1e6:.1f} MB." in text
    last = "420 µs" if replayed else "–"
    assert f"| 8×128×1024 | 290 µs | 2,800 µs | 3,100 µs | 1,300 µs | {last} |" in text
    assert ("8×128×1024: replayed in 15% of the time of `fused` from Python." in text) == replayed
    assert "The first column in a graph, the others from Python; NVIDIA H100" in text
    lacks = "has no replayed step (`fused_graphs`) yet: `python -m kernels.lab bench encoder`"
    assert (lacks in text) != replayed
    assert "| 1×128×1024 | – | – | – | – | – |" in text


TIMELINES = {  # µs by kernel
    "fused": {"attention_dq": 900.0, "hopper_product": 500.0, "dropped_tile": 100.0},
    "compile": {
        "cudnn_sdpa_fprop": 300.0, "cudnn_sdpa_bprop": 400.0, "nvjet": 510.0,
        "triton_red_fused_sum": 30.0, "triton_gelu": 90.0,
    },
    "fused_checkpointed": {
        "attention_dq": 900.0, "attention_forward": 400.0, "hopper_product": 500.0,
        "void at::native::reduce_kernel<128>": 60.0, "norm_row": 20.0, "dropped_tile": 200.0,
        "CatArrayBatchedCopy": 40.0,
    },
}  # fmt: skip


def test_the_timelines_are_told_by_kind(shown, tmp_path):
    source = DATA_DIR / "h100-sxm" / "ceilings.json"
    about = json.loads(source.read_text(encoding="utf-8"))
    shutil.copytree(source.parent, tmp_path / "h100-sxm")
    shape, rows, timelines = f"{B}x{S}x{E}", [], {}
    for variant, launches in {**TIMELINES, "copy": {"copy_words": 1.0}}.items():
        for timing, us in (("graph", sum(launches.values())), ("host", 5000.0)):
            times = dict.fromkeys(("time_us_p20", "time_us_p50", "time_us_p95"), us)
            rows.append(
                a_row(op="encoder_pre", variant=variant, pass_="train", shape=shape,
                      dtype="bf16", options="p=0.1", timing=timing, **times)
            )  # fmt: skip
        timelines[rows[-1].place] = [[name, 0.0, us] for name, us in launches.items()]
    write_suite(tmp_path / "h100-sxm" / "encoder.csv", rows, about | {"timelines": timelines})
    alone = [
        a_row(op="attention", variant="sdpa_cudnn", pass_=pass_, shape=f"{B}x16x{S}x64",
              dtype="bf16", time_us_p50=us) for pass_, us in (("fwd", 150.0), ("bwd", 250.0))
    ]  # fmt: skip
    write_suite(tmp_path / "h100-sxm" / "attention.csv", alone, about)
    rows = table(shown("dropped", tmp_path))[2:]
    assert [row[1:] for row in rows] == [
        ["300 µs", "150 µs", "400 µs", "250 µs"],
        ["0 µs", "–", "900 µs", "–"],
    ]
    text = shown("ahead", tmp_path)
    assert "| 8×2048×1024 | compile, 1,330 µs | fused, 5,000 µs | 5,000 µs |" in text
    assert "ahead of `torch` at 0 of 1 shapes, of `compile` at 0 of 1 shapes." in text
    text = shown("kinds", tmp_path)
    assert [row[1:] for row in table(text)[2:]] == [
        ["700", "900", "1,300"], ["510", "500", "500"], ["30", "0", "60"], ["90", "100", "220"],
        ["0", "0", "40"],
    ]  # fmt: skip
    assert "`fused` beside `compile`: attention +200 µs, all else -30 µs." in text
    top = plots.ceilings_of(recordings("ceilings", tmp_path)[0], "bf16")
    rows = {row[1]: row for row in table(shown("price-measured", tmp_path))[2:]}
    least = 4 * B * S * S * E / top.compute_flops_per_s * 1e6
    assert rows["o"][2:] == [f"{least:,.0f} µs", "400 µs", f"{400 / least:.1f}"]
    least = (8 + 2) * UNIT / top.bandwidth_bytes_per_s * 1e6
    assert rows["a and LN(h)"][2:] == [f"{least:,.0f} µs", "120 µs", f"{120 / least:.1f}"]


@pytest.mark.parametrize("recording", recordings("encoder"), ids=lambda one: one.gpu)
def test_a_step_by_hopper_kernels_stands_beside_those_without_dropout(recording, shown):
    text = shown("dropped", DATA_DIR)
    (row,) = (row for row in table(text) if row[0].startswith("fused"))
    assert row[0] == f"fused_hopper, {recording.provenance['card']['name']}"
    timeline = recording.provenance["timelines"]["encoder_pre:fused:8x2048x1024:bf16:p=0.1:train"]
    took = {name: us for name, _, us in timeline}
    assert row[1] == f"{took['hopper_attention']:,.0f} µs"
    passes = took["attention_rows"] + took["hopper_dkdv"] + took["hopper_dq"]
    assert "attention_dropped_bits" not in took
    assert row[3] == f"{passes:,.0f} µs"
    for pass_, cell in (("fwd", row[2]), ("bwd", row[4])):
        (alone,) = (
            one.time_us_p50
            for found in recorded("attention", (B, 16, S, 64), torch.bfloat16, pass_=pass_)
            for one in found.graph("fused_hopper")
            if one.variant == "fused_hopper" and found.card == recording.provenance["card"]["name"]
        )
        assert cell == f"{alone:,.0f} µs"


def test_a_recorded_peak_stands_beside_the_counted(shown, tmp_path):
    peaks = {"torch": 800_000_000, "compile": 700_000_000, "fused": 680_000_000}
    record = {
        "card": {"name": "a card"},
        "date": "2026-12-01T00:00",
        "peak_bytes": {"encoder_pre": {f"{B}x{S}x{E}": peaks}},
    }
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / step_memory.FILE).write_text(json.dumps(record), encoding="utf-8")
    text = shown("peaks-measured", tmp_path)
    assert "| torch | 600 MB | 800 MB | 100% | 200.0 MB |" in text
    assert "| compile | – | 700 MB | 88% | – |" in text
    assert "| fused | 600 MB | 680 MB | 85% | 80.0 MB |" in text
    weight = 2 * E * INNER / 1e6
    told = f"80.0 to 200.0 MB. The gradient of W2 itself is {weight:.1f} MB; up to "
    assert told + f"{200 - weight:.1f} MB are left, {(200 - weight) * 1e6 / UNIT:.1f} units" in text
    assert "Recorded on one a card, 2026-12-01." in text


def test_the_peaks_are_recorded_of_this_layer():
    """So that what is counted and what is measured may stand in one table."""
    assert (B, S, E) in step_memory.SHAPES
    assert step_memory.DROPOUT == 0.1
    one_by_one = {f"fused {flag}" for flag in (GELU, ATTENTION, NORM)}
    assert {"fused", "fused_checkpointed"} | one_by_one == {*step_memory.FLAGS}
