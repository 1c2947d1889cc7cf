"""What the appendix says of the kernels written for Hopper is what their binaries hold."""

import re

from book.tools import build
from kernels.lab.records.data import recordings
from kernels.ops.attention.configurations import HOPPER
from kernels.paths import ROOT


def test_the_page_runs_and_its_counts_are_as_told():
    notebook = build.executed(ROOT / "book" / "hopper_by_hand.ipynb", ROOT)
    told = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("text", "") or output["data"].get("text/markdown", "")
            told[cell.id] = told.get(cell.id, "") + text
    shares = re.findall(r"(\d+)%", told["attention-turns"])
    assert shares == ["50", "67", "100"]
    for cell, name in (
        ("cell-006", "produce"), ("attention-step", "step_of"),
        ("attention-softmax", "softmax_step"),
    ):  # fmt: skip
        assert f"def {name}(" in told[cell]
    assert told["attention-step"].index('"sync"') < told["attention-step"].index('"arrive"')
    binary = dict(re.findall(r"^(\S+) (\d+)$", told["attention-binary"], re.M))
    assert binary["LDSM"] == "0"
    for name in ("HGMMA", "UTMALDG", "UTMASTG", "MUFU", "BAR.SYNC", "BAR.ARV"):
        assert int(binary[name]) > 0, name
    assert "products wait for one another: False" in told["attention-binary"]
    handed = re.findall(r"dimension (\d+): (\d) groups, ([\d,]+) of", told["attention-binary"])
    assert {int(d): int(groups) for d, groups, _ in handed} == {
        d: tiling.groups for d, tiling in HOPPER.items()
    }
    assert all(int(own.replace(",", "")) <= 65536 for _, _, own in handed)
    assert re.findall(r"(\d+) clocks", told["norm-clocks"]) == ["1024", "256"]
    for name in ("moments", "tile_sums"):
        assert f"def {name}(" in told["norm-sums"]
    gathered = re.findall(r"(\d+) programs, (\d+) tiles, gathered for (\d+)", told["norm-gathers"])
    assert [tuple(map(int, one)) for one in gathered] == [
        (128, 384, 128), (128, 1536, 256), (128, 3072, 128)
    ]  # fmt: skip
    norm = {n: (int(a), int(b)) for n, a, b in re.findall(
        r"^(\w+) +(\d+) alone, +(\d+) with", told["norm-binary"], re.M)}  # fmt: skip
    assert norm["HGMMA"][1] == 2 * norm["HGMMA"][0]  # the loop, with statistics and without
    assert norm["UTMALDG"][0] == norm["UTMALDG"][1]
    assert norm["LDS"][1] > 50 + norm["LDS"][0]
    assert "products wait for one another: False\nspilled: 0 bytes" in told["norm-binary"]
    in_turn, by_table = (float(x) for x in re.findall(r": (\S+)$", told["attention-table"], re.M))
    assert in_turn > 1.5
    assert by_table < 1.02
    for cell, suite in (("cell-022", "matmul"), ("attention-times", "attention")):
        if recordings(suite):
            assert "Recorded on one" in told[cell]
        else:
            assert told[cell] == f"No card has recorded `{suite}` yet."


def test_the_way_back_is_as_told():
    notebook = build.executed(ROOT / "book" / "hopper_by_hand.ipynb", ROOT)
    told = {
        cell.id: "".join(output.get("text", "") for output in cell.get("outputs", []))
        for cell in notebook.cells
    }
    clocks = re.findall(r"multiply (\d+) clocks, read both (\d+)", told["back-clocks"])
    (multiply, both), wide = clocks
    assert multiply == both  # "reading takes as long as multiplying"
    assert int(wide[1]) < int(wide[0])
    loads = re.findall(
        r"d = +(\d+) \w+ +(\d+) LDSM, +\d+ HGMMA, spilled (\d+)", told["back-binary"]
    )
    assert {(int(d), int(n) > 0) for d, n, _ in loads} == {(64, True), (128, False)}
    assert {spilled for _, _, spilled in loads} == {"0"}
