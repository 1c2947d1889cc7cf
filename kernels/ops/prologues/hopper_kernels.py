"""A norm and a product in one kernel, written by hand for Hopper, in Gluon.

    y = (x · fᵀ − mean · sums) · inv_std + bias,      x (M, K), f (N, K), y (M, N) in 16 bits

f are weights with the norm's folded in (`folding`). This is `products.hopper_kernels` with two
things more: what loads, how tiles are placed and how a result leaves are that kernel's own.

- *Statistics beside the products.* A group's next tile of x lies in shared memory when its product
  begins. While the tensor cores multiply it, the group's threads read it too, and add up x − shift
  and its square, the shift being the mean of the row's first 64. That costs no byte of memory.
- *Once a row of tiles.* The grid is a multiple of GROUP, the rows of tiles that go together, so
  that a program's next tile is mostly of the same rows: it keeps mean and inv_std in registers, and
  gathers nothing until it comes to other rows. The two kinds of tile are two copies of the loop.
- *What is added* (sums and bias of 256 columns, in fp32) is loaded when a tile begins, and waits in
  the buffer by which the tile before has left: loaded late it would be waited for, and held in
  registers it would spill.

With ACTIVATION GELU is taken of y at once, and the groups go APART or not, as in
`epilogues.hopper_kernels`. To activate a chunk late, beside products, would take registers that
hold the statistics: it spills.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma_wait

from kernels.ops.epilogues.hopper_activations import activated
from kernels.ops.products.hopper_kernels import (
    CHUNK,
    FIRST_STEPS,
    GROUP_ROWS,
    STAGES,
    TILE_COLS,
    TILE_K,
    TILE_ROWS,
    give_back,
    multiply,
    place_of,
    produce,
    send,
)
from kernels.ops.products.hopper_parts import QUARTER, SUMS, allocated, quarters
from kernels.ops.shared.gluon import FREE_BARRIER, meet, named_barrier

SIZES = ["n_rows", "k_steps", "tiles_down", "tiles_across"]


@gluon.jit
def moments(x, shift, CENTRED: ttgl.constexpr):
    # Of a tile of x, (64, 64): each thread's own sums of x - shift and its square,
    # (64, 8). Threads add theirs up once, after the last step.
    if CENTRED:
        x = x - ttgl.expand_dims(shift, 1)
    eights = ttgl.reshape(x, [GROUP_ROWS, TILE_K // 8, 8])
    return ttgl.sum(eights, 2), ttgl.sum(eights * eights, 2)


@gluon.jit
def tile_sums(
    packed0,
    packed1,
    packed2,
    packed3,
    row,
    col,
    inv_std,
    off,
    step,
    added,
    across,
    sums_ptr,
    bias_ptr,
    y_desc,
    x_stages,
    w_stages,
    buffers,
    full,
    empty,
    k_steps,
    inv_k,
    eps,
    WHICH: ttgl.constexpr,
    CENTRED: ttgl.constexpr,
    GATHER: ttgl.constexpr,
    ACTIVATION: ttgl.constexpr,
    APART: ttgl.constexpr,
):
    # One tile's product, the tile before leaving beside it. With GATHER also the
    # statistics of its rows: inv_std, and off = -mean.
    # x as it is read for the statistics: 16 bytes a thread, 8 threads a row.
    by_rows: ttgl.constexpr = ttgl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [4, 0], [8, 0]],
        [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]],
        [[16, 0], [32, 0]],
        [],
        [64, 64],
    )
    across_cols: ttgl.constexpr = ttgl.BlockedLayout([2], [32], [4], [0])
    cols = across * TILE_COLS + ttgl.arange(0, TILE_COLS, layout=across_cols)
    acc = ttgl.zeros([GROUP_ROWS, TILE_COLS], ttgl.float32, layout=SUMS)
    shift = ttgl.zeros([GROUP_ROWS], ttgl.float32, layout=ttgl.SliceLayout(1, by_rows))
    if APART and WHICH == 1:  # until the other group has begun two steps of this tile
        named_barrier("sync", FREE_BARRIER, 256)
    for c in ttgl.static_range(FIRST_STEPS):
        acc = multiply(acc, step, x_stages, w_stages, full, WHICH, c == 0)
        if GATHER and CENTRED and c == 0:
            x = x_stages.index(2 * (step % STAGES) + WHICH).load(by_rows)
            shift = ttgl.sum(x.to(ttgl.float32), 1) * (1.0 / TILE_K)
        if c == 0:
            send(packed0, 0, WHICH, y_desc, buffers, row, col)
        if c == 1:
            send(packed1, 1, WHICH, y_desc, buffers, row, col)
        if c == 2:
            send(packed2, 2, WHICH, y_desc, buffers, row, col)
        if c == 3:
            send(packed3, 3, WHICH, y_desc, buffers, row, col)
        acc = warpgroup_mma_wait(1, deps=[acc])
        if c > 0:
            give_back(step, empty)
        if APART and WHICH == 0 and c == 1:
            named_barrier("arrive", FREE_BARRIER, 256)
        if c == 1:  # asked for when half of the tile before has left its registers
            bias = ttgl.load(bias_ptr + cols)  # padded to whole tiles: no mask
            if CENTRED:
                col_sums = ttgl.load(sums_ptr + cols)
        if GATHER:
            x = x_stages.index(2 * (step % STAGES) + WHICH).load(by_rows).to(ttgl.float32)
            if c == 0:
                total, squares = moments(x, shift, CENTRED)
            else:
                more, more_squares = moments(x, shift, CENTRED)
                total += more
                squares += more_squares
        step += 1
    tma.store_wait(0)  # the tile before has left: its buffer is free for what is added
    meet()
    added.slice(TILE_COLS, TILE_COLS).store(bias)
    if CENTRED:
        added.slice(0, TILE_COLS).store(col_sums)
    for _ in range(FIRST_STEPS, k_steps):
        acc = multiply(acc, step, x_stages, w_stages, full, WHICH, False)
        acc = warpgroup_mma_wait(1, deps=[acc])
        give_back(step, empty)
        if GATHER:
            x = x_stages.index(2 * (step % STAGES) + WHICH).load(by_rows).to(ttgl.float32)
            more, more_squares = moments(x, shift, CENTRED)
            total += more
            squares += more_squares
        step += 1
    if GATHER:
        rows: ttgl.constexpr = ttgl.SliceLayout(1, by_rows)
        variance = ttgl.convert_layout(ttgl.sum(squares, 1), rows) * inv_k
        if CENTRED:
            d = ttgl.convert_layout(ttgl.sum(total, 1), rows) * inv_k
            variance = ttgl.maximum(variance - d * d, 0.0)
            off = ttgl.convert_layout(-(shift + d), ttgl.SliceLayout(1, QUARTER))
        inv_std = ttgl.rsqrt(variance + eps)
        inv_std = ttgl.convert_layout(inv_std, ttgl.SliceLayout(1, QUARTER))
    acc = warpgroup_mma_wait(0, deps=[acc])
    return acc, step, inv_std, off


@gluon.jit
def corrected(
    y,
    inv_std,
    off,
    added,
    C: ttgl.constexpr,
    CENTRED: ttgl.constexpr,
    layout: ttgl.constexpr,
):
    # A quarter of a tile, from x · fᵀ to y.
    across: ttgl.constexpr = ttgl.SliceLayout(0, layout)
    bias = ttgl.expand_dims(added.slice(TILE_COLS + C * CHUNK, CHUNK).load(across), 0)
    if CENTRED:
        col_sums = ttgl.expand_dims(added.slice(C * CHUNK, CHUNK).load(across), 0)
        y += ttgl.expand_dims(off, 1) * col_sums
    return y * ttgl.expand_dims(inv_std, 1) + bias


@gluon.jit
def consume(
    WHICH: ttgl.constexpr,
    y_desc,
    sums_ptr,
    bias_ptr,
    x_stages,
    w_stages,
    buffers,
    full,
    empty,
    n_rows,
    k_steps,
    tiles_down,
    tiles_across,
    inv_k,
    eps,
    GROUP: ttgl.constexpr,
    CENTRED: ttgl.constexpr,
    ACTIVATION: ttgl.constexpr,
    APART: ttgl.constexpr,
):
    dtype: ttgl.constexpr = y_desc.dtype
    packed0 = ttgl.zeros([GROUP_ROWS, CHUNK], dtype, layout=QUARTER)
    packed1 = ttgl.zeros([GROUP_ROWS, CHUNK], dtype, layout=QUARTER)
    packed2 = ttgl.zeros([GROUP_ROWS, CHUNK], dtype, layout=QUARTER)
    packed3 = ttgl.zeros([GROUP_ROWS, CHUNK], dtype, layout=QUARTER)
    inv_std = ttgl.zeros([GROUP_ROWS], ttgl.float32, layout=ttgl.SliceLayout(1, QUARTER))
    off = ttgl.zeros([GROUP_ROWS], ttgl.float32, layout=ttgl.SliceLayout(1, QUARTER))
    # The first of this group's two buffers, as 2048 fp32 numbers side by side.
    flat: ttgl.constexpr = ttgl.SwizzledSharedLayout(1, 1, 1, [0])
    added = buffers.index(2 * WHICH)._reinterpret(ttgl.float32, [2048], flat)
    row, col = n_rows, 0  # of the tile that is packed: none yet
    step = 0
    known = -1  # the row of tiles whose statistics are in registers
    n_tiles = tiles_down * tiles_across
    for tile in range(ttgl.program_id(0), n_tiles, ttgl.num_programs(0)):
        down, across = place_of(tile, tiles_down, tiles_across, GROUP)
        if down == known:
            acc, step, inv_std, off = tile_sums(
                packed0, packed1, packed2, packed3, row, col, inv_std, off, step, added, across,
                sums_ptr, bias_ptr, y_desc, x_stages, w_stages, buffers, full, empty, k_steps,
                inv_k, eps, WHICH, CENTRED, False, ACTIVATION, APART,
            )  # fmt: skip
        else:
            acc, step, inv_std, off = tile_sums(
                packed0, packed1, packed2, packed3, row, col, inv_std, off, step, added, across,
                sums_ptr, bias_ptr, y_desc, x_stages, w_stages, buffers, full, empty, k_steps,
                inv_k, eps, WHICH, CENTRED, True, ACTIVATION, APART,
            )  # fmt: skip
        known = down
        row = down * TILE_ROWS + WHICH * GROUP_ROWS
        col = across * TILE_COLS
        give_back(step, empty)
        y0, y1, y2, y3 = quarters(acc)
        y0 = corrected(y0, inv_std, off, added, 0, CENTRED, QUARTER)
        packed0 = activated(y0, ACTIVATION).to(dtype)
        y1 = corrected(y1, inv_std, off, added, 1, CENTRED, QUARTER)
        packed1 = activated(y1, ACTIVATION).to(dtype)
        y2 = corrected(y2, inv_std, off, added, 2, CENTRED, QUARTER)
        packed2 = activated(y2, ACTIVATION).to(dtype)
        y3 = corrected(y3, inv_std, off, added, 3, CENTRED, QUARTER)
        packed3 = activated(y3, ACTIVATION).to(dtype)
    send(packed0, 0, WHICH, y_desc, buffers, row, col)
    send(packed1, 1, WHICH, y_desc, buffers, row, col)
    send(packed2, 2, WHICH, y_desc, buffers, row, col)
    send(packed3, 3, WHICH, y_desc, buffers, row, col)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=SIZES)
def hopper_norm_product(
    x_desc,
    w_desc,
    y_desc,
    sums_ptr,
    bias_ptr,
    n_rows,
    k_steps,
    tiles_down,
    tiles_across,
    inv_k,
    eps,
    GROUP: ttgl.constexpr,
    CENTRED: ttgl.constexpr,
    ACTIVATION: ttgl.constexpr,
    APART: ttgl.constexpr,
):
    # A program an SM, or nearly, which takes every so many-th tile.
    x_stages, w_stages, buffers, full, empty = allocated(x_desc, w_desc, y_desc)
    ttgl.warp_specialize(
        [
            (consume, (0, y_desc, sums_ptr, bias_ptr, x_stages, w_stages, buffers,
                       full, empty, n_rows, k_steps, tiles_down, tiles_across,
                       inv_k, eps, GROUP, CENTRED, ACTIVATION, APART)),
            (consume, (1, y_desc, sums_ptr, bias_ptr, x_stages, w_stages, buffers,
                       full, empty, n_rows, k_steps, tiles_down, tiles_across,
                       inv_k, eps, GROUP, CENTRED, ACTIVATION, APART)),
            (produce, (x_desc, w_desc, x_stages, w_stages, full, empty, k_steps,
                       tiles_down, tiles_across, GROUP)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
