"""The picture of peaks shows the measured shares, and nothing where nothing was measured."""

import pytest

from kernels.lab.drawing.peaks import peak_shares

SHARES = {
    "fast": {"dram_pct": 90.0, "issue_pct": 4.0, "occupancy_pct": 50.0, "duration_us": 3.0},
    "slow": {"dram_pct": 20.4, "issue_pct": None},
}


def bars(figure):
    (axes,) = figure.axes
    return {(p.get_gid(), round(p.get_width(), 1)) for p in axes.patches}


def test_a_bar_is_as_long_as_its_share_and_what_was_not_measured_has_none():
    figure = peak_shares(SHARES, "title")
    assert bars(figure) == {
        ("share:dram_pct", 90.0),
        ("share:issue_pct", 4.0),
        ("share:occupancy_pct", 50.0),
        ("share:dram_pct", 20.4),
    }
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fast", "slow"]
    assert {text.get_text() for text in axes.texts} == {
        "DRAM 90 %",
        "issue 4 %",
        "warps 50 %",
        "DRAM 20 %",
    }


def test_only_the_peaks_asked_for_are_drawn():
    assert bars(peak_shares(SHARES, "title", ["dram_pct"])) == {
        ("share:dram_pct", 90.0),
        ("share:dram_pct", 20.4),
    }


def test_an_unknown_peak_and_an_empty_figure_are_refused():
    with pytest.raises(ValueError, match="'l2_pct' is unknown; it takes one of: dram_pct"):
        peak_shares(SHARES, "title", ["l2_pct"])
    with pytest.raises(ValueError, match="at least one kernel"):
        peak_shares({}, "title")
