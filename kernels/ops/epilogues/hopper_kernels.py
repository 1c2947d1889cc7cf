"""A product with an epilogue written by hand for Hopper, in Gluon, Triton's lower level.

It is `products/hopper_kernels.py`'s kernel, warps, stages and tiles, but for what a group does with
its finished sums before it packs them in 16 bits: bias and GELU, a gate, or the layout of heads.
The plain product stays a kernel of its own, so that nothing here changes its binary.

- A gate's stage has 128 rows of `gate` over 128 of `up`, by two copies: the sums of a tile are
  those of both products, left and right, and the weights lie in memory as they always do.
- A finished tile is packed and sent off beside the next tile's first products, as there. What is
  done to it before, GELU above all, is hidden by no product of its group, and by the other group's
  only as far as that is behind. So it is told in few instructions: GELU takes one for 2^x and one
  for 1 / x, or in the form with the error function 2^p(|x|), p a polynomial of degree 6.
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

from kernels.ops.chains.activations import CUBIC, LINEAR, LOG2E
from kernels.ops.epilogues.epilogue_kernels import FARTHEST, P0, P1, P2, P3, P4, P5, P6
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
from kernels.ops.shared.gluon import meet

HALF_COLS = ttgl.constexpr(TILE_COLS.value // 2)  # of y in a tile with a gate
SIZES = [
    *("n_rows", "n_col_eights", "k_steps", "tiles_down", "tiles_across"),
    *("positions", "n_heads", "n_batches", "n_parts"),
]


@gluon.jit
def one_over(x):
    # 1 / x by one instruction, to 2⁻²³; of infinity it is 0.
    asm: ttgl.constexpr = "rcp.approx.ftz.f32 $0, $1;"
    return ttgl.inline_asm_elementwise(asm, "=f,f", [x], dtype=ttgl.float32, is_pure=True, pack=1)


@gluon.jit
def gelu_tanh(h):
    # As `activations.gelu`: h · σ(2u).
    return h * one_over(1.0 + ttgl.exp2(h * (h * h * CUBIC + LINEAR)))


@gluon.jit
def gelu_erf(h):
    # As `epilogue_kernels.gelu_erf_by_power`: max(h, 0) − a · 2^p(a) with a = |h|.
    a = ttgl.minimum(ttgl.abs(h), FARTHEST)
    p = ((a * P6 + P5) * a + P4) * a + P3
    p = ((p * a + P2) * a + P1) * a + P0
    return ttgl.maximum(h, 0.0) - a * ttgl.exp2(p)


@gluon.jit
def activated(h, ACTIVATION: ttgl.constexpr):
    if ACTIVATION == "silu":
        return h * one_over(1.0 + ttgl.exp2(h * -LOG2E))
    elif ACTIVATION == "gelu_tanh":
        return gelu_tanh(h)
    elif ACTIVATION == "gelu_erf":
        return gelu_erf(h)
    else:
        return h


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
    positions,
    n_heads,
    n_batches,
    n_parts,
    GROUP: ttgl.constexpr,
    HAS_BIAS: ttgl.constexpr,
    ACTIVATION: ttgl.constexpr,
    GATED: ttgl.constexpr,
    HEAD_SIZE: ttgl.constexpr,
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
        for c in ttgl.static_range(FIRST_STEPS):
            acc = multiply(acc, step, x_stages, w_stages, full, WHICH, c == 0)
            if c == 0:
                send(packed0, 0, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads,
                     n_batches, n_parts, HEAD_SIZE)  # fmt: skip
            if c == 1:
                send(packed1, 1, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads,
                     n_batches, n_parts, HEAD_SIZE)  # fmt: skip
            if c == 2 and not GATED:
                send(packed2, 2, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads,
                     n_batches, n_parts, HEAD_SIZE)  # fmt: skip
            if c == 3 and not GATED:
                send(packed3, 3, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads,
                     n_batches, n_parts, HEAD_SIZE)  # fmt: skip
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
        col = across * (HALF_COLS if GATED else TILE_COLS)
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
        if GATED:
            packed0 = (activated(y0, ACTIVATION) * y2).to(dtype)
            packed1 = (activated(y1, ACTIVATION) * y3).to(dtype)
        else:
            packed0 = activated(y0, ACTIVATION).to(dtype)
            packed1 = activated(y1, ACTIVATION).to(dtype)
            packed2 = activated(y2, ACTIVATION).to(dtype)
            packed3 = activated(y3, ACTIVATION).to(dtype)
    send(packed0, 0, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads, n_batches,
         n_parts, HEAD_SIZE)  # fmt: skip
    send(packed1, 1, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads, n_batches,
         n_parts, HEAD_SIZE)  # fmt: skip
    if not GATED:
        send(packed2, 2, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads, n_batches,
             n_parts, HEAD_SIZE)  # fmt: skip
        send(packed3, 3, WHICH, y_desc, buffers, row, col, n_rows, positions, n_heads, n_batches,
             n_parts, HEAD_SIZE)  # fmt: skip
    tma.store_wait(0)


# One binary for all shapes: the compiler knows that 8 divides the columns, no more.
@gluon.jit(do_not_specialize=SIZES)
def hopper_epilogue(
    x_desc,
    w_desc,
    up_desc,
    y_desc,
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
):
    # A program an SM, which takes every so many-th tile; see `products.hopper_kernels`.
    n_cols = n_col_eights * 8
    x_stages, w_stages, buffers, full, empty = allocated(x_desc, w_desc, y_desc)
    if GATED:
        ttgl.warp_specialize(
            [
                (consume, (0, y_desc, bias_ptr, x_stages, w_stages, buffers, full,
                           empty, n_rows, n_cols, k_steps, tiles_down, tiles_across,
                           positions, n_heads, n_batches, n_parts, GROUP, HAS_BIAS,
                           ACTIVATION, GATED, HEAD_SIZE)),
                (consume, (1, y_desc, bias_ptr, x_stages, w_stages, buffers, full,
                           empty, n_rows, n_cols, k_steps, tiles_down, tiles_across,
                           positions, n_heads, n_batches, n_parts, GROUP, HAS_BIAS,
                           ACTIVATION, GATED, HEAD_SIZE)),
                (produce_two, (x_desc, w_desc, up_desc, x_stages, w_stages, full, empty,
                               k_steps, tiles_down, tiles_across, GROUP)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        ttgl.warp_specialize(
            [
                (consume, (0, y_desc, bias_ptr, x_stages, w_stages, buffers, full,
                           empty, n_rows, n_cols, k_steps, tiles_down, tiles_across,
                           positions, n_heads, n_batches, n_parts, GROUP, HAS_BIAS,
                           ACTIVATION, GATED, HEAD_SIZE)),
                (consume, (1, y_desc, bias_ptr, x_stages, w_stages, buffers, full,
                           empty, n_rows, n_cols, k_steps, tiles_down, tiles_across,
                           positions, n_heads, n_batches, n_parts, GROUP, HAS_BIAS,
                           ACTIVATION, GATED, HEAD_SIZE)),
                (produce, (x_desc, w_desc, x_stages, w_stages, full, empty, k_steps,
                           tiles_down, tiles_across, GROUP)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
