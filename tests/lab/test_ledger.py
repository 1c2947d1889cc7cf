"""Adding up and extending ledgers."""

from dataclasses import replace

import pytest

from kernels.lab.counting.ledger import Ledger, Step, TensorTraffic, extend_rows


def at(rows, weight=100, extra=0):
    tensors = (
        TensorTraffic("x", 40 * rows, 80 * rows, 0, 0),
        TensorTraffic("weight", weight, 100 * rows + extra, 0, 0),
        TensorTraffic("y", 0, 0, 40 * rows, 40 * rows),
    )
    return Ledger((Step("kernel", "launch", tensors, (rows, 1, 1), 30 * rows, 3 * rows),))


def test_totals_and_one_tensor():
    ledger = Ledger(at(4).steps + at(4).steps)
    assert ledger.launches == 2
    assert ledger.read_unique == 2 * (160 + 100)
    assert ledger.write_unique == 2 * 160
    assert ledger.bytes_unique == ledger.read_unique + ledger.write_unique
    assert ledger.bytes_requested == 2 * (320 + 400 + 160)
    assert ledger.tensor("x").times_read == 2.0
    assert ledger.tensor("weight").times_read == 4.0
    with pytest.raises(KeyError, match="touched: x, weight, y"):
        ledger.tensor("z")


def test_a_line_through_three_counts_is_extended():
    assert extend_rows([(4, at(4)), (8, at(8)), (12, at(12))], 4096).steps == at(4096).steps
    assert extend_rows([(4, at(4)), (8, at(8)), (12, at(12))], 4096).method == "linear"


def test_sectors_are_extended_too_and_known_where_every_step_has_them():
    def counted(rows):
        return Ledger(tuple(replace(step, bytes_sectors=64 * rows) for step in at(rows)))

    few = [(rows, counted(rows)) for rows in (4, 8, 12)]
    assert extend_rows(few, 4096).bytes_sectors == 64 * 4096
    assert at(4).bytes_sectors is None
    assert Ledger(counted(4).steps + at(4).steps).bytes_sectors is None


def test_what_is_not_a_line_is_not_extended():
    with pytest.raises(ValueError, match="not linear"):
        extend_rows([(4, at(4)), (8, at(8)), (12, at(12, extra=1))], 4096)
    with pytest.raises(ValueError, match="third count"):
        extend_rows([(4, at(4)), (8, at(8))], 4096)
    with pytest.raises(ValueError, match="steps differ"):
        extend_rows([(4, at(4)), (8, at(8)), (12, Ledger(at(12).steps * 2))], 4096)


def test_the_table_names_every_tensor_and_the_totals():
    table = at(4).table()
    for word in ("weight", "160", "**all**", f"{at(4).read_unique:,}"):
        assert word in table
