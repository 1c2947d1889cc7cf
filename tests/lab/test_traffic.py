"""The Triton ledger and the ledgers of registered operations."""

import pytest
import torch

import kernels.ops  # noqa: F401
from kernels.lab.counting import traffic
from kernels.lab.counting.op_ledger import count_op
from kernels.ops.norms.layernorm import eager, layer_norm
from kernels.registry import get
from tests.launch import kernels_under_test as k

OP = get("layernorm")


def numbers(ledger):
    return {
        name: (t.read_unique, t.read_requested, t.write_unique, t.write_requested)
        for name in ledger.tensors
        for t in [ledger.tensor(name)]
    }


def fused_by(rows):
    """The bytes of each tensor of 4096 columns in bf16: each row once, each parameter a row."""
    return {
        "x": (rows * 8_192, rows * 8_192, 0, 0),
        "weight": (8_192, rows * 8_192, 0, 0),
        "bias": (8_192, rows * 8_192, 0, 0),
        "y": (0, 0, rows * 8_192, rows * 8_192),
    }


def test_fused_layer_norm_extended_to_4096_rows():
    ledger = count_op(OP, "fused", (4096, 4096), torch.bfloat16)
    assert ledger.launches == 1
    assert ledger.method == "linear"
    assert numbers(ledger) == fused_by(4096)


def test_fused_layer_norm_with_all_rows_interpreted():
    rows = 512  # more than the few that the others are extended from
    ledger = traffic.count(layer_norm, **OP.inputs((rows, 4096), torch.bfloat16, "cpu", seed=1))
    assert ledger.launches == 1
    assert ledger.method == "full"
    assert numbers(ledger) == fused_by(rows)
    extended = count_op(OP, "fused", (rows, 4096), torch.bfloat16)
    assert extended.method == "linear"
    assert numbers(extended) == numbers(ledger)


def test_no_masked_lane_is_counted():
    ledger = traffic.count(layer_norm, **OP.inputs((64, 1000), torch.float32, "cpu", seed=1))
    assert numbers(ledger) == {
        "x": (256_000, 256_000, 0, 0),
        "weight": (4_000, 256_000, 0, 0),
        "bias": (4_000, 256_000, 0, 0),
        "y": (0, 0, 256_000, 256_000),
    }
    assert ledger.masked_lanes == 64 * 24 * 4


def test_the_ideal_bytes_are_the_fused_kernels_unique_bytes():
    for shape in OP.shapes:
        for dtype in OP.dtypes:
            cost = OP.cost(shape, dtype, "fwd")
            ledger = count_op(OP, "fused", shape, dtype)
            assert ledger.read_unique == cost.read_bytes
            assert ledger.write_unique == cost.write_bytes


def test_a_row_too_wide_for_one_block_is_read_twice():
    ledger = count_op(OP, "fused", (64, 40_000), torch.bfloat16)
    assert ledger.tensor("x").times_read == 2.0
    assert ledger.tensor("x").read_unique == 64 * 40_000 * 2


def test_an_opaque_variant_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match="can't be counted"):
        count_op(OP, "compile", (64, 64), torch.float32)


def test_a_trace_is_in_order_and_complete():
    x, y = torch.rand(64), torch.zeros(64)
    trace = traffic.trace(lambda: k.copy[(2,)](x, y, 64, BLOCK=32))
    assert [(a.program, a.argument) for a in trace] == [
        (0, "x_ptr"),
        (0, "y_ptr"),
        (1, "x_ptr"),
        (1, "y_ptr"),
    ]


def test_eager_in_fp32_operator_by_operator():
    rows, cols = 64, 1000
    full, column, parameter = rows * cols * 4, rows * 4, cols * 4
    ledger = count_op(OP, "eager", (rows, cols), torch.float32)
    assert [(step.name, step.read_unique, step.write_unique) for step in ledger] == [
        ("mean", full, column),
        ("sub", full + column, full),
        ("mul", full, full),
        ("mean", full, column),
        ("add", column, column),
        ("rsqrt", column, column),
        ("mul", full + column, full),
        ("mul", full + parameter, full),
        ("add", full + parameter, full),
    ]
    assert ledger.method == "aten"
    assert ledger.aten_ops == 9


def test_eager_in_16_bits_adds_two_conversions():
    wide = count_op(OP, "eager", (64, 1000), torch.float32)
    narrow = count_op(OP, "eager", (64, 1000), torch.bfloat16)
    assert narrow.aten_ops == wide.aten_ops + 2
    assert [narrow.steps[0].name, narrow.steps[-1].name] == ["_to_copy", "_to_copy"]


def test_eager_counts_nothing_for_what_is_missing():
    inputs = OP.inputs((8, 16), torch.float32, "cpu", seed=0)
    from kernels.lab.counting import aten

    assert aten.count(eager, inputs["x"]).aten_ops == 7
