"""What a chapter shows: recorded rows by card, each with where it comes from."""

import pytest
import torch

from kernels.lab.measuring import shown
from kernels.lab.records.data import read_suite, write_suite
from tests.lab.test_data import a_row

KEY = ("layernorm", (64, 1000), torch.float32)

CELL = {"op": "layernorm", "variant": "fused", "shape": "64x1000", "dtype": "fp32", "pass_": "fwd"}


@pytest.fixture
def two_cards(tmp_path):
    for slug, name in (("a-card", "Card A"), ("b-card", "Card B")):
        told = {
            "card": {"name": name},
            "date": "2026-11-28T01:02:03Z",
            "timelines": {"layernorm:fused:64x1000:fp32": [["k", 0.0, 1.5]]},
            "profile": {"cells": [CELL | {"kernels": [{"name": "k", "dram_read": 8}]}]},
        }
        write_suite(tmp_path / slug / "norms.csv", [a_row()], told)
    return tmp_path


def test_what_was_profiled_with_other_options_is_another_cell(two_cards):
    path = two_cards / "a-card" / "norms.csv"
    rows, told = read_suite(path)
    cells = told["profile"]["cells"]
    cells.insert(0, cells[0] | {"options": "p=0", "kernels": [{"name": "another"}]})
    write_suite(path, rows, told)
    (one,) = shown.recorded(*KEY, gpu="a-card", data_dir=two_cards)
    assert one.kernels("fused") == [{"name": "k", "dram_read": 8}]


def test_recorded_rows_of_every_card_or_of_one(two_cards):
    found = shown.recorded(*KEY, data_dir=two_cards)
    assert [m.card for m in found] == ["Card A", "Card B"]
    (one,) = shown.recorded(*KEY, gpu="b-card", data_dir=two_cards)
    assert one.note() == (
        "Recorded on one Card B on 2026-11-28 by `python -m kernels.lab bench norms`."
    )
    assert one.row("fused") == a_row()
    assert one.graph("fused", "torch") == [a_row()] == one.graph()
    assert one.timeline("fused") == [("k", 0.0, 1.5)]
    assert one.kernels("fused") == [{"name": "k", "dram_read": 8}]
    with pytest.raises(LookupError, match="'torch' was not profiled on Card B"):
        one.kernels("torch")
    with pytest.raises(LookupError, match="no graph row of 'torch' was measured on Card B"):
        one.row("torch")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU measures live")
def test_nothing_to_show_is_one_sentence(tmp_path):
    with pytest.raises(LookupError, match="recorded on no card"):
        shown.measured(*KEY, data_dir=tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU measures live")
def test_the_roof_of_a_machine_without_a_gpu_is_a_recorded_one(tmp_path):
    with pytest.raises(LookupError, match="no card's ceilings"):
        shown.ceilings_here("bf16", data_dir=tmp_path)
    write_suite(tmp_path / "a-card" / "ceilings.csv", [a_row(op="copy")], {"card": {"name": "A"}})
    assert shown.ceilings_here("bf16", data_dir=tmp_path).gpu == "a-card"
