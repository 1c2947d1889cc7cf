"""Answers to the questions of set 07: right ones written differently, and known-wrong ones."""

import torch
import triton
import triton.language as tl


# 07.1
def bytes_by_launch(rows, cols, itemsize, programs):
    parts = 2 * 4 * programs * cols
    first = (3 * rows + 1) * cols * itemsize + 8 * rows + parts
    return first, parts + 2 * cols * itemsize


def bytes_by_tensor(rows, cols, itemsize, programs):
    matrix, vector = rows * cols * itemsize, cols * itemsize
    read = [matrix, matrix, vector, 4 * rows, 4 * rows]
    parts = [4 * programs * cols] * 2
    return [sum(read + parts) + matrix, sum(parts) + sum([vector, vector])]


def bytes_by_columns(rows, cols, itemsize, programs):
    second = cols * (8 * programs + 2 * itemsize)
    return second + cols * itemsize * (3 * rows - 1) + 8 * rows, second


def bytes_with(first=None, second=None):
    """The right numbers, each with something added that a reader may count or forget."""

    def backward_bytes(*args):
        right = bytes_by_launch(*args)
        return tuple(
            number + (off(*args) if off else 0)
            for number, off in zip(right, (first, second), strict=True)
        )

    return backward_bytes


# 07.2
def _rest(x_hat, weight=None):
    """Numbers without a mean and without a part along x_hat."""
    generator = torch.Generator().manual_seed(3)
    r = torch.randn(x_hat.numel(), dtype=torch.float64, generator=generator)
    return r - r.mean() - x_hat * (r * x_hat).mean()


def upstream_by_parts(hidden, x_hat, weight):
    if hidden == "no weight":
        return (2 + x_hat) / (weight - 1)
    a, b = (0, 1) if hidden == "no mean" else (1, 0)
    return (a + b * x_hat + _rest(x_hat)) / weight


def upstream_by_cubes(hidden, x_hat, weight):
    g = {"no mean": 5 * x_hat + x_hat**2, "no projection": x_hat**2 + 1}.get(hidden)
    if g is None:
        return (1 - x_hat) / (weight - 1)
    # One Gram-Schmidt step against the direction that has to go.
    gone = torch.ones_like(x_hat) if hidden == "no mean" else x_hat
    return (g - gone * (g * gone).mean()) / weight


def upstream_by_least_squares(hidden, x_hat, weight):
    """Solve for the two numbers that have to be 0."""
    basis = torch.stack([torch.ones_like(x_hat), x_hat], 1)
    if hidden == "no weight":
        return (basis @ torch.tensor([1.0, 0.5], dtype=torch.float64)) / (weight - 1)
    target = x_hat**4
    rest = target - basis @ torch.linalg.lstsq(basis, target[:, None]).solution[:, 0]
    return (rest / rest.norm() * basis.norm() + basis[:, int(hidden == "no mean")]) / weight


def upstream_random(hidden, x_hat, weight):
    return _rest(x_hat) + 0.02 * x_hat


def upstream_of_ones(hidden, x_hat, weight):
    return torch.ones_like(x_hat) / weight


def upstream_mean_of_dy(hidden, x_hat, weight):
    """Take the mean out of dy, where it had to leave g."""
    dy = x_hat + x_hat**2
    return dy - dy.mean()


def upstream_hides_both(hidden, x_hat, weight):
    return (
        upstream_by_parts(hidden, x_hat, weight) if hidden == "no weight" else _rest(x_hat) / weight
    )


def upstream_for_weight_one(hidden, x_hat, weight):
    """Take g for dy where dy had to be divided."""
    return 1 + x_hat if hidden == "no weight" else upstream_by_parts(hidden, x_hat, weight)


# 07.3 and 07.4: dx a row a program, with a switch for each fault.
@triton.jit
def dx_kernel(
    x_ptr,
    dy_ptr,
    weight_ptr,
    mean_ptr,
    inv_ptr,
    dx_ptr,
    n_cols,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    if FAULT == "unmasked":
        x = tl.load(x_ptr + row * n_cols + cols).to(tl.float32)
    else:
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    if FAULT == "twice":
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    if FAULT == "no other":
        dy = tl.load(dy_ptr + row * n_cols + cols, mask=mask)
    else:
        dy = tl.load(dy_ptr + row * n_cols + cols, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
    inv = tl.load(inv_ptr + row)
    g = dy.to(tl.float32)
    if FAULT == "half":
        g = dy * weight
    elif FAULT != "no weight":
        g *= weight.to(tl.float32)
    n = BLOCK if FAULT == "block" or FAULT == "given" else n_cols
    if FAULT == "sum":
        n = 1
    x_hat = x * inv
    mean = 0.0
    if mean_ptr is not None:
        if FAULT != "x":
            x_hat = (x - tl.load(mean_ptr + row)) * inv
        if FAULT != "no mean":
            mean = tl.sum(g, axis=0) / n
    elif FAULT == "centred":
        mean = tl.sum(g, axis=0) / n
    if FAULT == "one x_hat":
        x_hat = x
    if FAULT == "half":
        x_hat = x_hat.to(dy.dtype)
    if FAULT == "dy" or FAULT == "given":
        along = tl.sum(dy.to(tl.float32) * x_hat, axis=0) / n
    else:
        along = tl.sum(g * x_hat, axis=0) / n
    if FAULT == "no projection":
        along = 0.0
    if FAULT == "added":
        along = -along
    dx = (g - mean - x_hat * along) * inv
    if FAULT == "no factor":
        dx = g - mean - x_hat * along
    if FAULT == "half":
        dx = ((g - x_hat * along.to(g.dtype)).to(g.dtype) * inv.to(g.dtype)).to(g.dtype)
    tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)


def layer_norm_dx_with(fault, block=None):
    def layer_norm_dx(x, dy, weight, mean, inv_std):
        dx = torch.empty_like(x)
        rows, n = x.shape
        lanes = block or triton.next_power_of_2(n)
        dx_kernel[(rows,)](x, dy, weight, mean, inv_std, dx, n, FAULT=fault, BLOCK=lanes)
        return dx

    return layer_norm_dx


def rms_norm_dx_with(fault, block=None):
    def rms_norm_dx(x, dy, weight, inv_rms):
        return layer_norm_dx_with(fault, block)(x, dy, weight, None, inv_rms)

    return rms_norm_dx


@triton.jit
def dx_tile_kernel(
    x_ptr,
    dy_ptr,
    weight_ptr,
    mean_ptr,
    inv_ptr,
    dx_ptr,
    n_rows,
    n_cols,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A tile of whole rows a program; what is masked is masked again before it is summed."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (rows < n_rows) & (cols < n_cols)
    places = rows * n_cols + cols
    inv = tl.load(inv_ptr + rows, mask=rows < n_rows, other=0.0)
    x_hat = tl.load(x_ptr + places, mask=mask).to(tl.float32) * inv
    if mean_ptr is not None:
        x_hat -= tl.load(mean_ptr + rows, mask=rows < n_rows, other=0.0) * inv
    g = tl.load(dy_ptr + places, mask=mask).to(tl.float32)
    g = tl.where(mask, g * tl.load(weight_ptr + cols, mask=cols < n_cols), 0.0)
    along = tl.sum(tl.where(mask, g * x_hat, 0.0), axis=1)[:, None] / n_cols
    dx = g - x_hat * along
    if mean_ptr is not None:
        dx -= tl.sum(g, axis=1)[:, None] / n_cols
    tl.store(dx_ptr + places, (dx * inv).to(dx_ptr.dtype.element_ty), mask=mask)


def tiled_layer_norm_dx(x, dy, weight, mean, inv_std):
    dx = torch.empty_like(x)
    rows, n = x.shape
    dx_tile_kernel[(triton.cdiv(rows, 2),)](
        *(x, dy, weight, mean, inv_std, dx, rows, n),
        ROWS=2,
        BLOCK=triton.next_power_of_2(n),
        num_warps=8,
    )
    return dx


def tiled_rms_norm_dx(x, dy, weight, inv_rms):
    return tiled_layer_norm_dx(x, dy, weight, None, inv_rms)


@triton.jit
def dx_expanded_kernel(
    x_ptr, dy_ptr, weight_ptr, mean_ptr, inv_ptr, dx_ptr, n_cols, BLOCK: tl.constexpr
):
    """The factor inv drawn into the brackets, and the dot product taken of x itself."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    inv = tl.load(inv_ptr + row)
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(dy_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    g *= tl.load(weight_ptr + cols, mask=mask, other=0.0)
    dx = g * inv
    if mean_ptr is not None:
        x = tl.where(mask, x - tl.load(mean_ptr + row), 0.0)
        dx -= inv * tl.sum(g) / n_cols
    dx -= x * (inv * inv * inv * tl.sum(g * x) / n_cols)
    tl.store(dx_ptr + row * n_cols + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)


def expanded_layer_norm_dx(x, dy, weight, mean, inv_std):
    dx = torch.empty_like(x)
    rows, n = x.shape
    block = triton.next_power_of_2(n)
    dx_expanded_kernel[(rows,)](x, dy, weight, mean, inv_std, dx, n, BLOCK=block)
    return dx


def expanded_rms_norm_dx(x, dy, weight, inv_rms):
    return expanded_layer_norm_dx(x, dy, weight, None, inv_rms)


def one_program_dx(x, dy, weight, inv_rms):
    """All rows in one program: right, and no use of a GPU."""
    dx = torch.empty_like(x)
    rows, n = x.shape
    dx_tile_kernel[(1,)](
        *(x, dy, weight, None, inv_rms, dx, rows, n),
        ROWS=triton.next_power_of_2(rows),
        BLOCK=triton.next_power_of_2(n),
    )
    return dx


def rms_norm_dx_of_its_own(x, dy, weight, inv_rms):
    """By statistics of its own, with the usual eps."""
    own = torch.rsqrt((x.float() ** 2).mean(-1) + 1e-5)
    return rms_norm_dx_with("")(x, dy, weight, own)


def rms_norm_dx_by_pytorch(x, dy, weight, inv_rms):
    x_hat, g = x.float() * inv_rms[:, None], dy.float() * weight
    return ((g - x_hat * (g * x_hat).mean(-1, keepdim=True)) * inv_rms[:, None]).to(x.dtype)
