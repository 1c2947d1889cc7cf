"""What the kernels that follow `hopper_kernels` share with each other: how they begin, and a tile.

The plain product has the same lines of its own, so that nothing here changes its binary.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from kernels.ops.products.hopper_kernels import (
    CHUNK,
    GROUP_ROWS,
    STAGES,
    TILE_COLS,
    TILE_K,
    halves,
)

# How a group's registers hold its sums, 64 x 256, and a quarter of them, 64 x 64.
SUMS = ttgl.constexpr(ttgl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
QUARTER = ttgl.constexpr(ttgl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))


@gluon.jit
def allocated(x_desc, w_desc, y_desc):
    # The stages of x and w, the buffers by which y leaves, and the barriers, ready for use.
    dtype: ttgl.constexpr = x_desc.dtype
    allocate: ttgl.constexpr = ttgl.allocate_shared_memory
    of_x: ttgl.constexpr = [2 * STAGES, GROUP_ROWS, TILE_K]
    of_w: ttgl.constexpr = [STAGES, TILE_COLS, TILE_K]
    x_stages = allocate(dtype, of_x, x_desc.layout)
    w_stages = allocate(dtype, of_w, w_desc.layout)
    buffers = allocate(dtype, [4, GROUP_ROWS, CHUNK], y_desc.layout)
    full = allocate(ttgl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = allocate(ttgl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in ttgl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)  # two groups give a stage back
    fence_async_shared()
    return x_stages, w_stages, buffers, full, empty


@gluon.jit
def quarters(sums):
    # A group's sums as four tiles of 64 columns, from left to right: registers get other names.
    left, right = halves(sums)
    y0, y1 = halves(left)
    y2, y3 = halves(right)
    y0 = ttgl.convert_layout(y0, QUARTER, assert_trivial=True)
    y1 = ttgl.convert_layout(y1, QUARTER, assert_trivial=True)
    y2 = ttgl.convert_layout(y2, QUARTER, assert_trivial=True)
    y3 = ttgl.convert_layout(y3, QUARTER, assert_trivial=True)
    return y0, y1, y2, y3
