"""The pictures of warps: what they draw is what the emulator recorded and counted."""

import shutil

import numpy as np
import pytest
import torch

from kernels.cuda import cuda
from kernels.lab.drawing import warps

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")

SOURCE = """\
template <typename T> __global__ void touch(const T* x, T* y, int stride, int offset) {
    y[threadIdx.x] = x[offset + threadIdx.x * stride];
}
"""
TREE = """\
__global__ void tree(const float* x, float* part, float* sum) {
    part[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int half_way = blockDim.x / 2; half_way > 0; half_way /= 2) {
        if (threadIdx.x < half_way) part[threadIdx.x] += part[threadIdx.x + half_way];
        __syncthreads();
    }
    if (threadIdx.x == 0) *sum = part[0];
}
"""
TYPES = {
    1: ("unsigned char", torch.uint8),
    2: ("short", torch.int16),
    4: ("float", torch.float32),
    8: ("float2", torch.float32),
    16: ("float4", torch.float32),
}
MODULE = cuda(SOURCE, instances=[f"touch<{name}>" for name, _ in TYPES.values()])


def touched(width, stride, offset):
    """The load of one warp, lane i at (offset + i · stride) · width bytes, and its counted line."""
    name, dtype = TYPES[width]
    numbers = width // dtype.itemsize
    x = torch.zeros((offset + 31 * stride + 1) * numbers, dtype=dtype)
    y = torch.zeros(32 * numbers, dtype=dtype)
    counts = MODULE[f"touch<{name}>"][1, 32].traced(x, y, stride, offset)
    (load,) = (access for access in counts.trace if access.kind == "load")
    (line,) = (line for line in counts.lines if line.kind == "load")
    return load, line


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def patches(figure, gid):
    return [patch for axes in figure.axes for patch in axes.patches if patch.get_gid() == gid]


@pytest.mark.parametrize(
    ("width", "stride", "offset"),
    [(4, 1, 0), (4, 1, 1), (4, 0, 3), (2, 256, 0), (2, 1, 9), (1, 1, 31), (8, 3, 5), (16, 2, 1)],
)
def test_the_sectors_drawn_are_those_that_the_emulator_counts(width, stride, offset):
    load, line = touched(width, stride, offset)
    assert len(warps.sectors_of(load)) == line.sectors
    assert np.unique(warps.bytes_of(load)).size == line.bytes_distinct
    figure = warps.sector_map({"a load": load}, "title")
    (axes,) = figure.axes
    told = f"a load: {line.sectors} sector{'s'[: line.sectors > 1]}, {line.bytes_distinct} of "
    assert axes.get_title(loc="left") == told + f"{32 * line.sectors:,} bytes wanted"


def test_a_sector_map_has_a_pixel_for_each_byte():
    load, line = touched(4, 9, 2)
    (image,) = warps.sector_map({"a load": load}, "title").axes[0].get_images()
    picture = np.asarray(image.get_array())
    kinds, counts = np.unique(picture.reshape(-1, 3), axis=0, return_counts=True)
    assert len(kinds) == 4  # paper, fetched, wanted by an even and by an odd lane
    # Blue and sky have more blue than red, paper and grey hardly.
    wanted = counts[kinds[:, 2] - kinds[:, 0] > 0.2]
    assert sorted(wanted) == [64, 64]
    white = counts[(kinds == 1).all(axis=1)].sum()
    assert picture.shape[0] * 128 - white == 32 * line.sectors


def test_a_warp_map_draws_every_lane_and_tells_what_it_touched():
    copy = cuda("""__global__ void copy(const float* x, float* y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[2 * i];
    }""")
    x, y = torch.randn(200), torch.zeros(100)
    loads = [a for a in copy.copy[2, 64].traced(x, y, 100).trace if a.kind == "load"]
    figure = warps.warp_map(loads, "title")
    assert len(patches(figure, "active")) == 100
    assert len(patches(figure, "idle")) == 28
    assert texts(figure)[0] == "x: 0, 2, … 62"
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["block 0, warp 0", "block 0, warp 1", "block 1, warp 0", "block 1, warp 1"]


def test_the_rounds_of_a_tree_are_read_off_the_trace():
    x, total = torch.randn(16), torch.zeros(1)
    counts = cuda(TREE).tree[1, 16].traced(x, torch.zeros(16), total)
    torch.testing.assert_close(total[0], x.sum())
    levels = warps.levels_of(counts.trace, "part")
    assert [len(one.threads) for one in levels] == [8, 4, 2, 1]
    for half, one in zip((8, 4, 2, 1), levels, strict=True):
        assert {frozenset(pair) for pair in one.sources.T.tolist()} == {
            frozenset((i, i + half)) for i in range(half)
        }
        assert one.results.tolist() == list(range(half))
    figure = warps.tree_map(levels, 16, "title")
    assert "16" in texts(figure)  # the last box holds all sixteen numbers
    assert "1 thread adds" in texts(figure)
    assert len(patches(figure, "waits")) == 8 + 12 + 14 + 15


def test_an_exchange_map_fills_the_lanes_in_the_sum():
    figure = warps.exchange_map([1 << 5, -1], ["before", "after"], 5, "title")
    assert len(patches(figure, "inside")) == 1 + 32
    assert texts(figure) == ["1 number", "32 numbers"]


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (lambda: warps.sector_map({}, ""), "requests is empty"),
        (lambda: warps.warp_map([], ""), "requests is empty"),
        (lambda: warps.tree_map([], 16, ""), "levels is empty"),
        (lambda: warps.exchange_map([1], [], 0, ""), "held has 1 steps and labels 0"),
    ],
)
def test_nothing_to_draw_is_said(draw, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw()
