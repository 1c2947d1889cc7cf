"""The pictures of a tiled product show what its trace holds."""

import pytest
import torch

from kernels.lab import traffic
from kernels.lab.drawing.tiles import program_tiles, stored_tiles, tile_orders
from kernels.ops.products.configurations import Tiling
from kernels.ops.products.forward import forward


def traced(m, k, n, block, group=1):
    inputs = (torch.randn(m, k).half(), torch.randn(n, k).half(), None)
    return traffic.trace(forward, *inputs, Tiling(*block, num_warps=4, num_stages=1, group=group))


def boxes(axes, gid):
    return sorted(
        (*patch.get_xy(), patch.get_width(), patch.get_height())
        for patch in axes.patches
        if patch.get_gid() == gid
    )


def test_programs_go_row_by_row_or_in_groups():
    by_rows = stored_tiles(traced(48, 16, 64, (16, 16, 16)), "y_ptr", 64, (16, 16))
    assert by_rows == [(m, n) for m in range(3) for n in range(4)]
    grouped = stored_tiles(traced(48, 16, 64, (16, 16, 16), group=2), "y_ptr", 64, (16, 16))
    assert grouped[:4] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert grouped[8:] == [(2, n) for n in range(4)]


def test_a_program_of_several_tiles_is_refused():
    trace = traced(32, 16, 32, (32, 32, 16))
    with pytest.raises(ValueError, match="program 0 stores in 4 tiles"):
        stored_tiles(trace, "y_ptr", 32, (16, 16))
    with pytest.raises(ValueError, match="no program stores in 'z_ptr'"):
        stored_tiles(trace, "z_ptr", 32, (16, 16))


def test_the_picture_of_a_program_has_its_blocks_where_they_lie():
    figure = program_tiles(traced(64, 48, 96, (32, 32, 16)), 4, (64, 48, 96), "program 4")
    _, weight, x, y = figure.axes
    # (left, top, width, height): the lower half of x, the middle third of the weight.
    assert boxes(x, "load") == [(0, 32, 16, 32), (16, 32, 16, 32), (32, 32, 16, 32)]
    assert boxes(weight, "load") == [(32, 0, 32, 16), (32, 16, 32, 16), (32, 32, 32, 16)]
    assert boxes(y, "store") == [(32, 32, 32, 32)]
    assert [text.get_text() for text in x.texts] == ["0", "1", "2"]


def test_an_order_marks_what_its_first_wave_shares():
    order = [(m, n) for m in range(3) for n in range(4)]
    figure = tile_orders({"row by row": order}, (3, 4), 5, "a wave")
    (axes,) = figure.axes
    assert len(boxes(axes, "tile")) == 12
    assert len(boxes(axes, "mark")) == 2 + 4
    assert axes.get_xlabel() == "2 blocks of rows,\n4 of columns"
    assert [text.get_text() for text in axes.texts] == ["0", "1", "2", "3", "4"]
    with pytest.raises(ValueError, match="orders is empty"):
        tile_orders({}, (3, 4), 5, "nothing")
