"""The distinct tiles of a wave: closed form, enumeration and the trace of the kernel agree."""

import itertools
from dataclasses import replace

import pytest
import torch

from kernels.lab.counting import tile_order, traffic
from kernels.lab.counting.tile_order import Wave
from kernels.ops.products.configurations import Tiling
from kernels.ops.products.forward import forward

SMALL = Tiling(16, 32, 16, num_warps=4, num_stages=2)


@pytest.mark.parametrize("group", [1, 2, 3, 8, 100])
@pytest.mark.parametrize(("tiles_m", "tiles_n"), [(1, 1), (7, 5), (8, 12), (16, 3), (3, 40)])
def test_every_tile_comes_once_and_the_closed_form_is_the_enumeration(tiles_m, tiles_n, group):
    tiles = [tile_order.tile_at(i, tiles_m, tiles_n, group) for i in range(tiles_m * tiles_n)]
    assert sorted(tiles) == list(itertools.product(range(tiles_m), range(tiles_n)))
    for programs in range(1, tiles_m * tiles_n + 3):
        seen = tile_order.wave(tiles_m, tiles_n, programs, group)
        assert tile_order.first_wave(tiles_m, tiles_n, programs, group) == seen


def test_the_sentences_of_the_module():
    # 4096 × 3072 in tiles of 128 × 256, a wave of 132 programs: 32 × 12 tiles.
    assert tile_order.first_wave(32, 12, 132) == Wave(11, 12)
    assert tile_order.first_wave(64, 48, 132) == Wave(3, 48)
    assert tile_order.first_wave(64, 48, 132, group=8) == Wave(8, 17)
    with pytest.raises(ValueError, match="tile 6 is none of 2 × 3"):
        tile_order.tile_at(6, 2, 3, 1)


@pytest.mark.parametrize("group", [1, 2, 8])
@pytest.mark.parametrize("first", [0, 3])
def test_the_trace_touches_what_the_order_says(group, first):
    m, k, n, programs = 90, 40, 100, 5
    x, weight = torch.randn(m, k).half(), torch.randn(n, k).half()
    tiling = replace(SMALL, group=group)
    trace = traffic.trace(forward, x, weight, None, tiling)
    tiles_m, tiles_n = -(-m // tiling.block_m), -(-n // tiling.block_n)
    numbers = range(first, first + programs)
    tiles = [tile_order.tile_at(i, tiles_m, tiles_n, group) for i in numbers]

    def rows(blocks, block, size):
        return sum(min(block, size - b * block) for b in set(blocks))

    seen = tile_order.touched(trace, programs, first)
    assert seen["x_ptr"] == rows([t[0] for t in tiles], tiling.block_m, m) * k * 2
    assert seen["weight_ptr"] == rows([t[1] for t in tiles], tiling.block_n, n) * k * 2
    wave = tile_order.wave(tiles_m, tiles_n, programs, group, first)
    assert wave == Wave(len({t[0] for t in tiles}), len({t[1] for t in tiles}))
    stored = tile_order.touched(trace, programs, first, kind="store")
    assert stored["y_ptr"] == 2 * sum(
        min(tiling.block_m, m - i * tiling.block_m) * min(tiling.block_n, n - j * tiling.block_n)
        for i, j in tiles
    )


def test_every_wave_is_counted():
    found = list(tile_order.waves(7, 5, 8, group=2))
    assert len(found) == 5
    assert found[-1] == tile_order.wave(7, 5, 3, group=2, first=32)
    assert found[0].blocks <= 8 + 5
