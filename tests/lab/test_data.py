"""Measured data as files: what is written comes back, and what may not stand there is refused."""

import math

import pytest

from kernels.lab.records.data import COLUMNS, Row, read_suite, recordings, write_suite

FIXED = (
    "op,variant,pass,shape,dtype,options,timing,time_us_p20,time_us_p50,time_us_p95,samples,launches,"
    "bytes_ideal,bytes_unique,bytes_requested,bytes_sectors,bytes_dram_read,bytes_dram_write,"
    "count_method,flops,error"
)


def a_row(**changes) -> Row:
    told = {
        "op": "layernorm",
        "variant": "fused",
        "pass_": "fwd",
        "shape": "64x1000",
        "dtype": "fp32",
        "timing": "graph",
        "time_us_p20": 2.5,
        "time_us_p50": 2.75,
        "time_us_p95": 3.125,
        "samples": 30,
        "launches": 1,
        "bytes_ideal": 520_000,
        "bytes_unique": 520_000,
        "count_method": "linear",
        "flops": 448_256,
        "error": 1.5e-7,
    }
    return Row(**(told | changes))


def test_columns_are_the_fixed_ones():
    assert ",".join(COLUMNS) == FIXED


def test_rows_and_provenance_come_back(tmp_path):
    rows = [a_row(), a_row(timing="host", error=None, bytes_dram_read=7)]
    path = tmp_path / "h100-sxm" / "norms.csv"
    told = {
        "card": {"name": "a card, µs"},
        "dirty": False,
        "nothing": {},
        "profile": {"cells": [{"kernels": [1, 2]}, {"kernels": []}], "problems": ["a", "b"]},
        "timelines": {"a cell": [["k", 0.0, 1.5], ["l", 1.5, 2.0]], "another": []},
    }
    write_suite(path, rows, told)
    assert read_suite(path) == (rows, told)
    assert path.read_text().splitlines()[0] == FIXED
    lines = path.with_suffix(".json").read_text(encoding="utf-8").splitlines()
    assert '    "a cell": [["k", 0.0, 1.5], ["l", 1.5, 2.0]],' in lines  # a line for each cell
    assert '      {"kernels": [1, 2]},' in lines


def test_an_unmeasured_cell_is_empty(tmp_path):
    path = tmp_path / "norms.csv"
    write_suite(path, [a_row(launches=None, error=None)], {})
    (row,) = path.read_text().splitlines()[1:]
    assert row.endswith(",448256,")
    assert read_suite(path)[0][0].launches is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_are_never_written(tmp_path, value):
    with pytest.raises(ValueError, match="leave a cell empty"):
        write_suite(tmp_path / "norms.csv", [a_row(error=value)], {})


def test_nan_in_a_file_is_refused(tmp_path):
    path = tmp_path / "norms.csv"
    write_suite(path, [a_row()], {})
    path.write_text(path.read_text().replace("1.5e-07", "nan"))
    with pytest.raises(ValueError, match="'error'"):
        read_suite(path)


def test_options_are_a_part_of_what_names_a_row(tmp_path):
    rows = [a_row(), a_row(options="causal window=64"), a_row(options="causal", pass_="bwd")]
    write_suite(tmp_path / "norms.csv", rows, {})
    assert read_suite(tmp_path / "norms.csv")[0] == rows
    assert len({row.cell for row in rows}) == 3
    assert rows[1].place == "layernorm:fused:64x1000:fp32:causal+window=64"
    assert rows[2].place == "layernorm:fused:64x1000:fp32:causal:bwd"
    assert rows[2].cell_name == "layernorm 64x1000 fp32 causal bwd"


def test_a_file_from_before_there_were_options_is_read(tmp_path):
    path = tmp_path / "norms.csv"
    write_suite(path, [a_row()], {})
    path.write_text(
        path.read_text().replace(",dtype,options,", ",dtype,").replace("fp32,,", "fp32,")
    )
    assert "options" not in path.read_text()
    assert read_suite(path)[0] == [a_row()]


def test_a_row_stands_once(tmp_path):
    path = tmp_path / "norms.csv"
    with pytest.raises(ValueError, match="twice in norms.csv"):
        write_suite(path, [a_row(), a_row(time_us_p50=9.0)], {})
    assert not path.exists()


def test_another_file_is_refused_by_its_columns(tmp_path):
    path = tmp_path / "norms.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="it must begin with"):
        read_suite(path)


def test_recordings_of_all_cards(tmp_path):
    for gpu in ("t4", "h100-sxm"):
        write_suite(tmp_path / gpu / "norms.csv", [a_row(), a_row(variant="copy")], {})
    found = recordings("norms", tmp_path)
    assert [recording.gpu for recording in found] == ["h100-sxm", "t4"]
    assert found[0].one(variant="copy", timing="graph") == a_row(variant="copy")
    assert recordings("attention", tmp_path) == []
    with pytest.raises(LookupError, match="2 rows of h100-sxm/norms"):
        found[0].one(op="layernorm")
