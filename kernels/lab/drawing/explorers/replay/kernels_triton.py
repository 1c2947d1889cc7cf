"""The kernels in Triton that are replayed: those of chapters 03, 06 and 07, a product, attention.

Those of chapters stand here as the chapters show them; a test holds the two together. The product
and the attention are of teaching size: as short as they can be, with sizes that divide.
"""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x, mask=i < n)


@triton.jit
def row_sum(x_ptr, sums_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
    tl.store(sums_ptr + row, tl.sum(x))


@triton.jit
def transpose(x_ptr, y_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)
    tile = tl.load(x_ptr + rows[:, None] * n_cols + cols[None, :], mask=inside)
    tl.store(y_ptr + cols[None, :] * n_rows + rows[:, None], tile, mask=inside)


@triton.jit
def layer_norm_loops(
    x_ptr, weight_ptr, bias_ptr, y_ptr, x_row_stride, n_cols, eps, BLOCK_COLS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    x_row_ptr = x_ptr + row * x_row_stride
    total = tl.zeros([BLOCK_COLS], tl.float32)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        total += tl.load(x_row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n_cols
    squares = tl.zeros([BLOCK_COLS], tl.float32)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        x = tl.load(x_row_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        centred = tl.where(cols < n_cols, x - mean, 0.0)
        squares += centred * centred
    inv_std = tl.rsqrt(tl.sum(squares, axis=0) / n_cols + eps)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        y = (tl.load(x_row_ptr + cols, mask=mask, other=0.0).to(tl.float32) - mean) * inv_std
        y *= tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        y += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def layer_norm_row(
    x_ptr, weight_ptr, bias_ptr, y_ptr, x_row_stride, n_cols, eps, BLOCK_COLS: tl.constexpr
):
    # The block holds the row: it is loaded once, and stays in registers until it is normalised.
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * x_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n_cols
    # Masked lanes hold 0, not the mean: without the select each would add mean² to the sum.
    centred = tl.where(mask, x - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / n_cols
    y = centred * tl.rsqrt(variance + eps)
    if weight_ptr is not None:
        y *= tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def layer_norm_tiles(
    x_ptr, weight_ptr, bias_ptr, y_ptr, x_row_stride, n_cols, eps, BLOCK_COLS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    mean, squares = 0.0, 0.0
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x = tl.load(x_ptr + row * x_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
        size = tl.minimum(n_cols - start, BLOCK_COLS).to(tl.float32)
        tile_mean = tl.sum(x, axis=0) / size
        centred = tl.where(mask, x - tile_mean, 0.0)
        delta = tile_mean - mean
        share = size / (start + size)
        mean += delta * share
        squares += delta * delta * start * share + tl.sum(centred * centred, axis=0)
    inv_std = tl.rsqrt(squares / n_cols + eps)
    for start in range(0, n_cols, BLOCK_COLS):
        cols = start + tl.arange(0, BLOCK_COLS)
        mask = cols < n_cols
        x = tl.load(x_ptr + row * x_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
        y = (x - mean) * inv_std * tl.load(weight_ptr + cols, mask=mask).to(tl.float32)
        y += tl.load(bias_ptr + cols, mask=mask).to(tl.float32)
        tl.store(y_ptr + row * n_cols + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def input_gradient(g, x_hat, inv_std, n_cols):
    dx = g - x_hat * (tl.sum(g * x_hat, axis=-1, keep_dims=True) / n_cols)
    dx -= tl.sum(g, axis=-1, keep_dims=True) / n_cols
    return dx * inv_std


@triton.jit
def add_row_atomically(
    dy_ptr, x_ptr, mean_ptr, inv_std_ptr, dweight_ptr, n_cols, BLOCK_COLS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    dy = tl.load(dy_ptr + row * n_cols + cols, mask=mask).to(tl.float32)
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask).to(tl.float32)
    x_hat = (x - tl.load(mean_ptr + row)) * tl.load(inv_std_ptr + row)
    tl.atomic_add(dweight_ptr + cols, dy * x_hat, mask=mask)


@triton.jit
def share_rows(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, inv_std_ptr, dx_ptr, dweight_ptr, dbias_ptr,
    n_rows, rows_each, n_cols, BLOCK_COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, BLOCK_COLS)
    mask = cols < n_cols
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    dweight = tl.zeros([BLOCK_COLS], tl.float32)
    dbias = tl.zeros([BLOCK_COLS], tl.float32)
    first = tl.program_id(0).to(tl.int64) * rows_each
    last = tl.minimum(first + rows_each, n_rows)
    for row in tl.range(first, last, num_stages=STAGES):
        at = row * n_cols + cols
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(tl.float32)
        inv_std = tl.load(inv_std_ptr + row)
        x_hat = (x - tl.load(mean_ptr + row)) * inv_std
        dweight += dy * x_hat
        dbias += dy
        dx = input_gradient(dy * weight, x_hat, inv_std, n_cols)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    out = tl.program_id(0) * n_cols + cols
    tl.store(dweight_ptr + out, dweight, mask=mask)
    tl.store(dbias_ptr + out, dbias, mask=mask)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, n_inner, n_cols, TILE: tl.constexpr):
    # A program makes one tile of c: it walks along a strip of a and down a strip of b.
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    cols = tl.program_id(1) * TILE + tl.arange(0, TILE)[None, :]
    total = tl.zeros([TILE, TILE], tl.float32)
    for start in range(0, n_inner, TILE):
        inner = start + tl.arange(0, TILE)
        a = tl.load(a_ptr + rows * n_inner + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * n_cols + cols)
        total += tl.dot(a, b)
    tl.store(c_ptr + rows * n_cols + cols, total)


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, out_ptr, scale, DIM: tl.constexpr, TILE: tl.constexpr):
    # A program makes one tile of out: it keeps its queries, and walks over keys up to its own.
    dims, places = tl.arange(0, DIM)[None, :], tl.arange(0, TILE)
    rows = tl.program_id(0) * TILE + places[:, None]
    q = tl.load(q_ptr + rows * DIM + dims)
    largest = tl.full([TILE, 1], -float("inf"), tl.float32)
    weights = tl.zeros([TILE, 1], tl.float32)
    out = tl.zeros([TILE, DIM], tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * TILE, TILE):
        keys = start + places[:, None]
        k = tl.load(k_ptr + keys * DIM + dims)
        v = tl.load(v_ptr + keys * DIM + dims)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(start + places[None, :] <= rows, scores, -float("inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1, keep_dims=True))
        e = tl.exp(scores - larger)
        shrink = tl.exp(largest - larger)
        weights = weights * shrink + tl.sum(e, axis=1, keep_dims=True)
        out = out * shrink + tl.dot(e, v)
        largest = larger
    tl.store(out_ptr + rows * DIM + dims, out / weights)
