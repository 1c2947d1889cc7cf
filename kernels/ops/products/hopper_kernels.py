"""The product of a linear layer written by hand for Hopper, in Gluon, Triton's lower level.

    y = x · wᵀ + bias,      x (M, K), w (N, K), y (M, N), 16 bits in and out, fp32 inside

One persistent kernel. A program has three kinds of warps, each with its own function:

- one warp, `produce`, asks the copy engine (TMA) for tiles of x and w, four stages ahead;
- two groups of four warps, `consume`, each multiply 64 rows of x with 256 of w (`wgmma`) and hold
  the sums, 128 registers a thread.

Barriers in shared memory say that a stage is full (its bytes have come) or empty (both groups have
used it). A group keeps a finished tile packed in 16 bits, and sends it off, a quarter at a time,
between the first products of its next tile: so the tensor cores don't wait for the way to memory.

At most 224 kB of shared memory: 4 stages of (128 + 256) x 64 numbers, and two buffers of 64 x 64 a
group for what leaves. Rows and columns that are not there read as zeros and are not written: the
copy engine sees to both, so that M, N and K need not divide by anything.

Source: NVIDIA, "PTX ISA", wgmma, mbarrier, cp.async.bulk.tensor.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.ops.products.configurations import HOPPER_COLS, HOPPER_ROWS
from kernels.ops.shared.gluon import meet

TILE_ROWS = ttgl.constexpr(HOPPER_ROWS)
TILE_COLS = ttgl.constexpr(HOPPER_COLS)
TILE_K = ttgl.constexpr(64)
GROUP_ROWS = ttgl.constexpr(64)  # of a group of four warps
CHUNK = ttgl.constexpr(64)  # columns that leave at a time
STAGES = ttgl.constexpr(4)
SIZES = ["n_rows", "n_col_eights", "k_steps", "tiles_down", "tiles_across"]
# Steps along K beside which the tile before leaves, a chunk each.
FIRST_STEPS = ttgl.constexpr(4)


@gluon.jit
def place_of(tile, tiles_down, tiles_across, GROUP: ttgl.constexpr):
    # The tiles in their order: GROUP rows of tiles, column by column, then the next
    # GROUP rows. So programs that run together share tiles of x and w in the L2.
    a_group = GROUP * tiles_across
    first = tile // a_group * GROUP
    rows = ttgl.minimum(tiles_down - first, GROUP)
    rest = tile % a_group
    return first + rest % rows, rest // rows


@gluon.jit
def produce(
    x_desc,
    w_desc,
    x_stages,
    w_stages,
    full,
    empty,
    k_steps,
    tiles_down,
    tiles_across,
    GROUP: ttgl.constexpr,
):
    step = 0
    n_tiles = tiles_down * tiles_across
    for tile in range(ttgl.program_id(0), n_tiles, ttgl.num_programs(0)):
        down, across = place_of(tile, tiles_down, tiles_across, GROUP)
        for k in range(k_steps):
            stage = step % STAGES
            # A barrier's bit flips with each round. Nobody has filled a stage
            # before the first, so that waiting for bit 1 passes at once.
            mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
            filled = full.index(stage)
            mbarrier.expect(filled, (TILE_ROWS + TILE_COLS) * TILE_K * 2)
            row, col = down * TILE_ROWS, k * TILE_K
            x_above = x_stages.index(2 * stage)
            x_below = x_stages.index(2 * stage + 1)
            below, of_w = row + GROUP_ROWS, across * TILE_COLS
            w_tile = w_stages.index(stage)
            tma.async_copy_global_to_shared(x_desc, [row, col], filled, x_above)
            tma.async_copy_global_to_shared(x_desc, [below, col], filled, x_below)
            tma.async_copy_global_to_shared(w_desc, [of_w, col], filled, w_tile)
            step += 1


@gluon.jit
def halves(x):
    # (64, n) to its left and its right (64, n / 2): registers get other names.
    pairs = ttgl.reshape(x, [x.shape[0], 2, x.shape[1] // 2])
    return ttgl.split(ttgl.permute(pairs, [0, 2, 1]))


@gluon.jit
def send(
    chunk, C: ttgl.constexpr, WHICH: ttgl.constexpr, y_desc, buffers, row, col
):  # fmt: skip
    # Chunk C of a finished tile to memory, by one of this group's two buffers. Rows
    # past the last, as those of the first call, which has no tile yet, the copy
    # engine leaves out.
    tma.store_wait(1)  # the chunk before the last has left this buffer
    meet()
    buffer = buffers.index(2 * WHICH + C % 2)
    buffer.store(chunk)
    fence_async_shared()  # the copy engine reads what the warps stored
    meet()
    tma.async_copy_shared_to_global(y_desc, [row, col + C * CHUNK], buffer)


@gluon.jit
def multiply(
    acc,
    step,
    x_stages,
    w_stages,
    full,
    WHICH: ttgl.constexpr,
    FIRST: ttgl.constexpr,
):
    # One step along K, begun once its stage is full. Its products go on while the
    # caller does other things.
    stage = step % STAGES
    mbarrier.wait(full.index(stage), step // STAGES & 1)
    x_tile = x_stages.index(2 * stage + WHICH)
    w_tile = w_stages.index(stage).permute((1, 0))
    return warpgroup_mma(x_tile, w_tile, acc, use_acc=not FIRST, is_async=True)


@gluon.jit
def give_back(step, empty):
    # The step before `step` is over: its stage may be filled again.
    mbarrier.arrive(empty.index((step - 1) % STAGES), count=1)


@gluon.jit
def bias_of(bias_ptr, col, n_cols, C: ttgl.constexpr, layout: ttgl.constexpr):
    within = ttgl.arange(0, CHUNK, layout=ttgl.SliceLayout(0, layout))
    cols = col + C * CHUNK + within
    bias = ttgl.load(bias_ptr + cols, mask=cols < n_cols, other=0.0)
    return ttgl.expand_dims(bias.to(ttgl.float32), 0)


@gluon.jit
def consume(
    WHICH: ttgl.constexpr,
    y_desc,
    bias_ptr,
    x_stages,
    w_stages,
    buffers,
    full,
    empty,
    n_rows,
    n_cols,
    k_steps,
    tiles_down,
    tiles_across,
    GROUP: ttgl.constexpr,
    HAS_BIAS: ttgl.constexpr,
):
    dtype: ttgl.constexpr = y_desc.dtype
    of_wgmma: ttgl.constexpr = ttgl.NVMMADistributedLayout
    sums: ttgl.constexpr = of_wgmma([3, 0], [4, 1], [16, 256, 16])
    quarter: ttgl.constexpr = of_wgmma([3, 0], [4, 1], [16, 64, 16])
    packed0 = ttgl.zeros([GROUP_ROWS, CHUNK], dtype, layout=quarter)
    packed1 = ttgl.zeros([GROUP_ROWS, CHUNK], dtype, layout=quarter)
    packed2 = ttgl.zeros([GROUP_ROWS, CHUNK], dtype, layout=quarter)
    packed3 = ttgl.zeros([GROUP_ROWS, CHUNK], dtype, layout=quarter)
    row, col = n_rows, 0  # of the tile that is packed: none yet
    step = 0
    n_tiles = tiles_down * tiles_across
    for tile in range(ttgl.program_id(0), n_tiles, ttgl.num_programs(0)):
        down, across = place_of(tile, tiles_down, tiles_across, GROUP)
        acc = ttgl.zeros([GROUP_ROWS, TILE_COLS], ttgl.float32, layout=sums)
        for c in ttgl.static_range(FIRST_STEPS):
            acc = multiply(acc, step, x_stages, w_stages, full, WHICH, c == 0)
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
            step += 1
        for _ in range(FIRST_STEPS, k_steps):
            acc = multiply(acc, step, x_stages, w_stages, full, WHICH, False)
            acc = warpgroup_mma_wait(1, deps=[acc])
            give_back(step, empty)
            step += 1
        row = down * TILE_ROWS + WHICH * GROUP_ROWS
        col = across * TILE_COLS
        if HAS_BIAS:  # asked for while the last products run
            bias0 = bias_of(bias_ptr, col, n_cols, 0, quarter)
            bias1 = bias_of(bias_ptr, col, n_cols, 1, quarter)
            bias2 = bias_of(bias_ptr, col, n_cols, 2, quarter)
            bias3 = bias_of(bias_ptr, col, n_cols, 3, quarter)
        acc = warpgroup_mma_wait(0, deps=[acc])
        give_back(step, empty)
        left, right = halves(acc)
        y0, y1 = halves(left)
        y2, y3 = halves(right)
        y0 = ttgl.convert_layout(y0, quarter, assert_trivial=True)
        y1 = ttgl.convert_layout(y1, quarter, assert_trivial=True)
        y2 = ttgl.convert_layout(y2, quarter, assert_trivial=True)
        y3 = ttgl.convert_layout(y3, quarter, assert_trivial=True)
        if HAS_BIAS:
            y0 += bias0
            y1 += bias1
            y2 += bias2
            y3 += bias3
        else:  # packed as they are, ptxas takes them for read while products run
            y0 += 0.0
            y1 += 0.0
            y2 += 0.0
            y3 += 0.0
        packed0 = y0.to(dtype)
        packed1 = y1.to(dtype)
        packed2 = y2.to(dtype)
        packed3 = y3.to(dtype)
    send(packed0, 0, WHICH, y_desc, buffers, row, col)
    send(packed1, 1, WHICH, y_desc, buffers, row, col)
    send(packed2, 2, WHICH, y_desc, buffers, row, col)
    send(packed3, 3, WHICH, y_desc, buffers, row, col)
    tma.store_wait(0)


# One binary for all shapes: the compiler knows that 8 divides the columns, no more.
@gluon.jit(do_not_specialize=SIZES)
def hopper_product(
    x_desc,
    w_desc,
    y_desc,
    bias_ptr,
    n_rows,
    n_col_eights,
    k_steps,
    tiles_down,
    tiles_across,
    GROUP: ttgl.constexpr,
    HAS_BIAS: ttgl.constexpr,
):
    # A program an SM, which takes every so many-th tile.
    dtype: ttgl.constexpr = x_desc.dtype
    n_cols = n_col_eights * 8
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
    # The tuples stand here: given a name first, their constants would become
    # tensors. Registers a thread: 168 at the launch, then 240 and, to load, 24.
    ttgl.warp_specialize(
        [
            (consume, (0, y_desc, bias_ptr, x_stages, w_stages, buffers, full,
                       empty, n_rows, n_cols, k_steps, tiles_down, tiles_across,
                       GROUP, HAS_BIAS)),
            (consume, (1, y_desc, bias_ptr, x_stages, w_stages, buffers, full,
                       empty, n_rows, n_cols, k_steps, tiles_down, tiles_across,
                       GROUP, HAS_BIAS)),
            (produce, (x_desc, w_desc, x_stages, w_stages, full, empty, k_steps,
                       tiles_down, tiles_across, GROUP)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
