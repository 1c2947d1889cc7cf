"""A product with an epilogue written by hand for Hopper, in Gluon, Triton's lower level.

It is `products/hopper_kernels.py`'s kernel, warps, stages and tiles, but for what a group does with
its finished sums before it packs them in 16 bits: bias and GELU, a gate, a residual, or the layout
of heads. The plain product stays a kernel of its own, so that nothing here changes its binary.

- A gate's stage has 128 rows of `gate` over 128 of `up`, by two copies: the sums of a tile are
  those of both products, left and right, and the weights lie in memory as they always do.
- A finished tile is packed and sent off beside the next tile's first products, as there. What is
  done to it before, GELU above all, is hidden by no product of its group, and by the other group's
  only as far as that is behind. So it is told in few instructions (`hopper_activations`).
- LATE hides it: the sums are packed with their bias alone, and a chunk is activated when it leaves,
  beside products of its own group. What is activated is rounded to 16 bits first, as it is where
  GELU is a launch of its own.
- APART keeps the second group two steps behind the first, so that one finishes its tile while the
  other multiplies. Both need the same stages, so that two steps are about as far as they can be.
- A residual comes by the copy engine into the group's two buffers, which are idle once the tile
  before has left: two chunks, which go to registers half way along K, and then the other two.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from kernels.ops.epilogues.hopper_activations import activated
from kernels.ops.products.hopper_kernels import (
    CHUNK,
    FIRST_STEPS,
    GROUP_ROWS,
    STAGES,
    TILE_COLS,
    TILE_K,
    TILE_ROWS,
    bias_of,
    give_back,
    multiply,
    place_of,
    produce,
)
from kernels.ops.products.hopper_parts import QUARTER, SUMS, allocated, quarters
from kernels.ops.shared.gluon import FREE_BARRIER, meet, named_barrier

HALF_COLS = ttgl.constexpr(TILE_COLS.value // 2)  # of y in a tile with a gate
SIZES = [
    *("n_rows", "n_col_eights", "k_steps", "tiles_down", "tiles_across"),
    *("positions", "n_heads", "n_batches", "n_parts"),
]


@gluon.jit
def produce_two(
    x_desc,
    gate_desc,
    up_desc,
    x_stages,
    w_stages,
    full,
    empty,
    k_steps,
    tiles_down,
    tiles_across,
    GROUP: ttgl.constexpr,
):
    # As `produce`, with a tile of gate and one of up, one over the other, in each stage.
    step = 0
    n_tiles = tiles_down * tiles_across
    for tile in range(ttgl.program_id(0), n_tiles, ttgl.num_programs(0)):
        down, across = place_of(tile, tiles_down, tiles_across, GROUP)
        for k in range(k_steps):
            stage = step % STAGES
            mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
            filled = full.index(stage)
            mbarrier.expect(filled, (TILE_ROWS + TILE_COLS) * TILE_K * 2)
            row, col = down * TILE_ROWS, k * TILE_K
            x_above = x_stages.index(2 * stage)
            x_below = x_stages.index(2 * stage + 1)
            below, of_w = row + GROUP_ROWS, across * HALF_COLS
            of_gate = w_stages.index(stage).slice(0, HALF_COLS)
            of_up = w_stages.index(stage).slice(HALF_COLS, HALF_COLS)
            tma.async_copy_global_to_shared(x_desc, [row, col], filled, x_above)
            tma.async_copy_global_to_shared(x_desc, [below, col], filled, x_below)
            tma.async_copy_global_to_shared(gate_desc, [of_w, col], filled, of_gate)
            tma.async_copy_global_to_shared(up_desc, [of_w, col], filled, of_up)
            step += 1


@gluon.jit
def send(
    chunk,
    C: ttgl.constexpr,
    WHICH: ttgl.constexpr,
    y_desc,
    buffers,
    row,
    col,
    n_rows,
    positions,
    n_heads,
    n_batches,
    n_parts,
    HEAD_SIZE: ttgl.constexpr,
):
    # Chunk C of a finished tile to memory. With heads y is a matrix of all heads' positions, and
    # 64 rows by 64 columns lie in one head: positions and the size of a head are multiples of 64.
    tma.store_wait(1)  # the chunk before the last has left this buffer
    meet()
    buffer = buffers.index(2 * WHICH + C % 2)
    buffer.store(chunk)
    fence_async_shared()  # the copy engine reads what the warps stored
    meet()
    at_row, at_col = row, col + C * CHUNK
    if HEAD_SIZE is not None:
        head = at_col // HEAD_SIZE
        at_col = at_col % HEAD_SIZE
        batch = row // positions
        before = (head // n_heads * n_batches + batch) * n_heads + head % n_heads
        # What lies outside of the product must lie outside of y, not in another part of it.
        inside = row < n_rows
        outside = n_parts * n_batches * n_heads * positions
        at_row = ttgl.where(inside, before * positions + row % positions, outside)
    tma.async_copy_shared_to_global(y_desc, [at_row, at_col], buffer)


@gluon.jit
def leaving(
    held,
    beside,
    dtype: ttgl.constexpr,
    ACTIVATION: ttgl.constexpr,
    GATED: ttgl.constexpr,
    LATE: ttgl.constexpr,
):
    # What leaves of a chunk that is held: itself, or with LATE what it is activated to.
    if LATE:
        y = activated(held.to(ttgl.float32), ACTIVATION)
        if GATED:
            y *= beside.to(ttgl.float32)
        return y.to(dtype)
    else:
        return held


@gluon.jit
def ask_residual(
    residual_desc, buffers, arrived, row, col, C: ttgl.constexpr, WHICH: ttgl.constexpr
):  # fmt: skip
    # Chunks C and C + 1 of the residual's tile into this group's buffers.
    filled = arrived.index(WHICH)
    mbarrier.expect(filled, 2 * GROUP_ROWS * CHUNK * 2)
    first, second = buffers.index(2 * WHICH), buffers.index(2 * WHICH + 1)
    tma.async_copy_global_to_shared(residual_desc, [row, col + C * CHUNK], filled, first)
    tma.async_copy_global_to_shared(residual_desc, [row, col + (C + 1) * CHUNK], filled, second)


@gluon.jit
def take_residual(buffers, arrived, PARITY: ttgl.constexpr, WHICH: ttgl.constexpr):
    # The two chunks that were asked for. A tile asks twice: its barrier's bit is 0, then 1.
    mbarrier.wait(arrived.index(WHICH), PARITY)
    return buffers.index(2 * WHICH).load(QUARTER), buffers.index(2 * WHICH + 1).load(QUARTER)


@gluon.jit
def multiply_on(acc, step, first, last, x_stages, w_stages, full, empty, WHICH: ttgl.constexpr):
    # Steps along K from the first to the last, each given back when the next has begun.
    for _ in range(first, last):
        acc = multiply(acc, step, x_stages, w_stages, full, WHICH, False)
        acc = warpgroup_mma_wait(1, deps=[acc])
        give_back(step, empty)
        step += 1
    return acc, step


@gluon.jit
def consume(
    WHICH: ttgl.constexpr,
    y_desc,
    residual_desc,
    bias_ptr,
    x_stages,
    w_stages,
    buffers,
    full,
    empty,
    arrived,
    n_rows,
    n_cols,
    k_steps,
    tiles_down,
    tiles_across,
    positions,
    n_heads,
    n_batches,
    n_parts,
    GROUP: ttgl.constexpr,
    HAS_BIAS: ttgl.constexpr,
    ACTIVATION: ttgl.constexpr,
    GATED: ttgl.constexpr,
    HEAD_SIZE: ttgl.constexpr,
    HAS_RESIDUAL: ttgl.constexpr,
    LATE: ttgl.constexpr,
    APART: ttgl.constexpr,
):
    dtype: ttgl.constexpr = y_desc.dtype
    packed0 = ttgl.zeros([GROUP_ROWS, CHUNK], dtype, layout=QUARTER)
    packed1 = ttgl.zeros([GROUP_ROWS, CHUNK], dtype, layout=QUARTER)
    packed2 = ttgl.zeros([GROUP_ROWS, CHUNK], dtype, layout=QUARTER)
    packed3 = ttgl.zeros([GROUP_ROWS, CHUNK], dtype, layout=QUARTER)
    row, col = n_rows, 0  # of the tile that is packed: none yet
    step = 0
    n_tiles = tiles_down * tiles_across
    for tile in range(ttgl.program_id(0), n_tiles, ttgl.num_programs(0)):
        down, across = place_of(tile, tiles_down, tiles_across, GROUP)
        acc = ttgl.zeros([GROUP_ROWS, TILE_COLS], ttgl.float32, layout=SUMS)
        if APART and WHICH == 1:  # until the other group has begun two steps of this tile
            named_barrier("sync", FREE_BARRIER, 256)
        for c in ttgl.static_range(FIRST_STEPS):
            acc = multiply(acc, step, x_stages, w_stages, full, WHICH, c == 0)
            if c == 0:
                chunk = leaving(packed0, packed2, dtype, ACTIVATION, GATED, LATE)
                send(chunk, 0, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads,
                     n_batches, n_parts, HEAD_SIZE)  # fmt: skip
            if c == 1:
                chunk = leaving(packed1, packed3, dtype, ACTIVATION, GATED, LATE)
                send(chunk, 1, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads,
                     n_batches, n_parts, HEAD_SIZE)  # fmt: skip
            if c == 2 and not GATED:
                chunk = leaving(packed2, packed2, dtype, ACTIVATION, GATED, LATE)
                send(chunk, 2, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads,
                     n_batches, n_parts, HEAD_SIZE)  # fmt: skip
            if c == 3 and not GATED:
                chunk = leaving(packed3, packed3, dtype, ACTIVATION, GATED, LATE)
                send(chunk, 3, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads,
                     n_batches, n_parts, HEAD_SIZE)  # fmt: skip
            acc = warpgroup_mma_wait(1, deps=[acc])
            if c > 0:
                give_back(step, empty)
            if APART and WHICH == 0 and c == 1:
                named_barrier("arrive", FREE_BARRIER, 256)
            step += 1
        row = down * TILE_ROWS + WHICH * GROUP_ROWS
        col = across * (HALF_COLS if GATED else TILE_COLS)
        half = FIRST_STEPS
        if HAS_RESIDUAL:
            tma.store_wait(0)  # the tile before has left both buffers
            meet()
            ask_residual(residual_desc, buffers, arrived, row, col, 0, WHICH)
            half = (FIRST_STEPS + k_steps) // 2
            acc, step = multiply_on(
                acc, step, FIRST_STEPS, half, x_stages, w_stages, full, empty, WHICH
            )
            residual0, residual1 = take_residual(buffers, arrived, 0, WHICH)
            meet()  # all have read
            ask_residual(residual_desc, buffers, arrived, row, col, 2, WHICH)
        acc, step = multiply_on(acc, step, half, k_steps, x_stages, w_stages, full, empty, WHICH)
        if HAS_BIAS:  # asked for while the last products run
            bias0 = bias_of(bias_ptr, col, n_cols, 0, QUARTER)
            bias1 = bias_of(bias_ptr, col, n_cols, 1, QUARTER)
            bias2 = bias_of(bias_ptr, col, n_cols, 2, QUARTER)
            bias3 = bias_of(bias_ptr, col, n_cols, 3, QUARTER)
        acc = warpgroup_mma_wait(0, deps=[acc])
        give_back(step, empty)
        y0, y1, y2, y3 = quarters(acc)
        if HAS_BIAS:
            y0 += bias0
            y1 += bias1
            y2 += bias2
            y3 += bias3
        else:  # as they are, ptxas takes them for read while products run
            y0 += 0.0
            y1 += 0.0
            y2 += 0.0
            y3 += 0.0
        if HAS_RESIDUAL:
            residual2, residual3 = take_residual(buffers, arrived, 1, WHICH)
            y0 += residual0.to(ttgl.float32)
            y1 += residual1.to(ttgl.float32)
            y2 += residual2.to(ttgl.float32)
            y3 += residual3.to(ttgl.float32)
        if LATE:
            packed0 = y0.to(dtype)
            packed1 = y1.to(dtype)
            packed2 = y2.to(dtype)
            packed3 = y3.to(dtype)
        elif GATED:
            packed0 = (activated(y0, ACTIVATION) * y2).to(dtype)
            packed1 = (activated(y1, ACTIVATION) * y3).to(dtype)
        else:
            packed0 = activated(y0, ACTIVATION).to(dtype)
            packed1 = activated(y1, ACTIVATION).to(dtype)
            packed2 = activated(y2, ACTIVATION).to(dtype)
            packed3 = activated(y3, ACTIVATION).to(dtype)
    chunk = leaving(packed0, packed2, dtype, ACTIVATION, GATED, LATE)
    send(chunk, 0, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads,
         n_batches, n_parts, HEAD_SIZE)  # fmt: skip
    chunk = leaving(packed1, packed3, dtype, ACTIVATION, GATED, LATE)
    send(chunk, 1, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads,
         n_batches, n_parts, HEAD_SIZE)  # fmt: skip
    if not GATED:
        chunk = leaving(packed2, packed2, dtype, ACTIVATION, GATED, LATE)
        send(chunk, 2, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads,
             n_batches, n_parts, HEAD_SIZE)  # fmt: skip
        chunk = leaving(packed3, packed3, dtype, ACTIVATION, GATED, LATE)
        send(chunk, 3, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads,
             n_batches, n_parts, HEAD_SIZE)  # fmt: skip
    tma.store_wait(0)


# One binary for all shapes: the compiler knows that 8 divides the columns, no more.
@gluon.jit(do_not_specialize=SIZES)
def hopper_epilogue(
    x_desc,
    w_desc,
    up_desc,
    y_desc,
    residual_desc,
    bias_ptr,
    n_rows,
    n_col_eights,
    k_steps,
    tiles_down,
    tiles_across,
    positions,
    n_heads,
    n_batches,
    n_parts,
    GROUP: ttgl.constexpr,
    HAS_BIAS: ttgl.constexpr,
    ACTIVATION: ttgl.constexpr,
    GATED: ttgl.constexpr,
    HEAD_SIZE: ttgl.constexpr,
    HAS_RESIDUAL: ttgl.constexpr,
    LATE: ttgl.constexpr,
    APART: ttgl.constexpr,
):
    # A program an SM, which takes every so many-th tile; see `products.hopper_kernels`.
    n_cols = n_col_eights * 8
    x_stages, w_stages, buffers, full, empty = allocated(x_desc, w_desc, y_desc)
    arrived = full
    if HAS_RESIDUAL:
        arrived = ttgl.allocate_shared_memory(ttgl.int64, [2, 1], mbarrier.MBarrierLayout())
        for which in ttgl.static_range(2):
            mbarrier.init(arrived.index(which), count=1)
        fence_async_shared()
    if GATED:
        ttgl.warp_specialize(
            [
                (consume, (0, y_desc, residual_desc, bias_ptr, x_stages, w_stages, buffers,
                           full, empty, arrived, n_rows, n_cols, k_steps, tiles_down,
                           tiles_across, positions, n_heads, n_batches, n_parts, GROUP,
                           HAS_BIAS, ACTIVATION, GATED, HEAD_SIZE, HAS_RESIDUAL, LATE,
                           APART)),
                (consume, (1, y_desc, residual_desc, bias_ptr, x_stages, w_stages, buffers,
                           full, empty, arrived, n_rows, n_cols, k_steps, tiles_down,
                           tiles_across, positions, n_heads, n_batches, n_parts, GROUP,
                           HAS_BIAS, ACTIVATION, GATED, HEAD_SIZE, HAS_RESIDUAL, LATE,
                           APART)),
                (produce_two, (x_desc, w_desc, up_desc, x_stages, w_stages, full, empty,
                               k_steps, tiles_down, tiles_across, GROUP)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        ttgl.warp_specialize(
            [
                (consume, (0, y_desc, residual_desc, bias_ptr, x_stages, w_stages, buffers,
                           full, empty, arrived, n_rows, n_cols, k_steps, tiles_down,
                           tiles_across, positions, n_heads, n_batches, n_parts, GROUP,
                           HAS_BIAS, ACTIVATION, GATED, HEAD_SIZE, HAS_RESIDUAL, LATE,
                           APART)),
                (consume, (1, y_desc, residual_desc, bias_ptr, x_stages, w_stages, buffers,
                           full, empty, arrived, n_rows, n_cols, k_steps, tiles_down,
                           tiles_across, positions, n_heads, n_batches, n_parts, GROUP,
                           HAS_BIAS, ACTIVATION, GATED, HEAD_SIZE, HAS_RESIDUAL, LATE,
                           APART)),
                (produce, (x_desc, w_desc, x_stages, w_stages, full, empty, k_steps,
                           tiles_down, tiles_across, GROUP)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
