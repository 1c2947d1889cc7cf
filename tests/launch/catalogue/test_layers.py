"""Kernels in the manner of libraries of layers: norms, SwiGLU, RoPE, cross-entropy, group norm."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.libdevice import rsqrt, tanh

from tests.launch.catalogue.proof import every_dtype, filled, prove


@triton.jit
def rms_norm_forward(Y_ptr, Y_row_stride, X_ptr, X_row_stride, W_ptr, RSTD_ptr, n_cols, eps,
                     offset, BLOCK_SIZE: tl.constexpr):  # fmt: skip
    row_idx = tl.program_id(0).to(tl.int64)
    col_offsets = tl.arange(0, BLOCK_SIZE)
    mask = col_offsets < n_cols
    x_base = X_ptr + row_idx * X_row_stride
    X_row = tl.load(x_base + col_offsets, mask=mask, other=0)
    X_row_dtype = X_row.dtype
    W_row = tl.load(W_ptr + col_offsets, mask=mask, other=0)
    X_row = X_row.to(tl.float32)
    eps = eps.to(tl.float32)
    offset = offset.to(tl.float32)
    mean_square = tl.sum(X_row * X_row, axis=0) / n_cols
    rstd = rsqrt(mean_square + eps)
    tl.store(RSTD_ptr + row_idx, rstd)
    Y_row = X_row * rstd * (offset + W_row)
    tl.store(Y_ptr + row_idx * Y_row_stride + col_offsets, Y_row.to(X_row_dtype), mask=mask)


@every_dtype
def test_an_rms_norm_with_float_arguments(dtype):
    rows, cols, eps = 5, 45, 1e-6
    x, w = filled((rows, cols), dtype), filled((cols,), dtype, 1)
    y, rstd = torch.empty_like(x), torch.empty(rows)
    size = x.element_size()
    scale = (x.double().square().mean(1) + eps).rsqrt()
    prove(
        lambda: rms_norm_forward[(rows,)](
            y, y.stride(0), x, x.stride(0), w, rstd, cols, eps, 1.0, BLOCK_SIZE=64
        ),
        dtype,
        [(y, x.double() * scale[:, None] * (1 + w.double())), (rstd, scale)],
        {"X": rows * cols * size, "W": (cols * size, rows * cols * size)},
        {"Y": rows * cols * size, "RSTD": rows * 4},
        units=8,
    )


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def swiglu_forward(a_ptr, b_ptr, c_ptr, stride, n_cols: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    program_id = tl.program_id(0).to(tl.int64)
    a_ptr += program_id * stride
    b_ptr += program_id * stride
    c_ptr += program_id * stride
    col_offsets = tl.arange(0, BLOCK_SIZE)
    mask = col_offsets < n_cols
    a_row = tl.load(a_ptr + col_offsets, mask=mask, other=0).to(tl.float32)
    b_row = tl.load(b_ptr + col_offsets, mask=mask, other=0)
    c_row = silu(a_row).cast(b_row.dtype) * b_row
    tl.store(c_ptr + col_offsets, c_row, mask=mask)


@triton.jit
def swiglu_backward(dc_ptr, a_ptr, b_ptr, stride, n_cols: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    program_id = tl.program_id(0).to(tl.int64)
    dc_ptr += program_id * stride
    a_ptr += program_id * stride
    b_ptr += program_id * stride
    col_offsets = tl.arange(0, BLOCK_SIZE)
    mask = col_offsets < n_cols
    dc_row = tl.load(dc_ptr + col_offsets, mask=mask, other=0)
    a_row = tl.load(a_ptr + col_offsets, mask=mask, other=0).to(tl.float32)
    b_row = tl.load(b_ptr + col_offsets, mask=mask, other=0)
    sig_a = tl.sigmoid(a_row)
    silu_a = a_row * sig_a
    db_row = dc_row * silu_a
    da_row = dc_row * (silu_a * (1 - sig_a) + sig_a) * b_row
    tl.store(a_ptr + col_offsets, da_row, mask=mask)
    tl.store(b_ptr + col_offsets, db_row, mask=mask)


@every_dtype
def test_swiglu_and_its_backward_in_place(dtype):
    rows, cols = 3, 51
    a, b, dc = (filled((rows, cols), dtype, seed) for seed in range(3))
    c = torch.empty_like(a)
    leaves = [t.double().requires_grad_() for t in (a, b)]
    right = torch.nn.functional.silu(leaves[0]) * leaves[1]
    right.backward(dc.double())
    size = rows * cols * a.element_size()
    prove(
        lambda: swiglu_forward[(rows,)](a, b, c, cols, n_cols=cols, BLOCK_SIZE=64, num_warps=2),
        dtype,
        [(c, right.detach())],
        {"a": size, "b": size},
        {"c": size},
        units=4,
    )
    da, db = a.clone(), b.clone()
    prove(
        lambda: swiglu_backward[(rows,)](dc, da, db, cols, n_cols=cols, BLOCK_SIZE=64),
        dtype,
        [(da, leaves[0].grad), (db, leaves[1].grad)],
        {"dc": size, "a": size, "b": size},
        {"a": size, "b": size},
        units=4,
    )


@triton.jit
def rope(q_ptr, q_row_stride, k_ptr, k_row_stride, cos, cos_row_stride, sin, sl,
         n_qh: tl.constexpr, n_kh: tl.constexpr, hd: tl.constexpr, pad_n_qh: tl.constexpr,
         pad_n_kh: tl.constexpr, pad_hd: tl.constexpr,
         BACKWARD_PASS: tl.constexpr = False):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    q_ptr = q_ptr + pid * q_row_stride
    k_ptr = k_ptr + pid * k_row_stride
    position = pid % sl
    cos = cos + position * cos_row_stride
    sin = sin + position * cos_row_stride
    cos_offsets = tl.arange(0, pad_hd // 2)
    cos_mask = cos_offsets < hd // 2
    cos_row = tl.load(cos + cos_offsets, mask=cos_mask, other=0)
    sin_row = tl.load(sin + cos_offsets, mask=cos_mask, other=0)

    half = tl.arange(0, pad_hd // 2)[None, :]
    first_half_q_offsets = tl.arange(0, pad_n_qh)[:, None] * hd + half
    first_half_k_offsets = tl.arange(0, pad_n_kh)[:, None] * hd + half
    first_q_mask = (tl.arange(0, pad_n_qh)[:, None] < n_qh) & (half < hd // 2)
    first_k_mask = (tl.arange(0, pad_n_kh)[:, None] < n_kh) & (half < hd // 2)
    q_tile_1 = tl.load(q_ptr + first_half_q_offsets, mask=first_q_mask, other=0).to(sin_row.dtype)
    k_tile_1 = tl.load(k_ptr + first_half_k_offsets, mask=first_k_mask, other=0).to(sin_row.dtype)
    second_half_q_offsets = first_half_q_offsets + (hd // 2)
    second_half_k_offsets = first_half_k_offsets + (hd // 2)
    q_tile_2 = tl.load(q_ptr + second_half_q_offsets, mask=first_q_mask, other=0)
    k_tile_2 = tl.load(k_ptr + second_half_k_offsets, mask=first_k_mask, other=0)
    if not BACKWARD_PASS:
        new_q_tile_1 = q_tile_1 * cos_row - q_tile_2 * sin_row
        new_q_tile_2 = q_tile_2 * cos_row + q_tile_1 * sin_row
        new_k_tile_1 = k_tile_1 * cos_row - k_tile_2 * sin_row
        new_k_tile_2 = k_tile_2 * cos_row + k_tile_1 * sin_row
    else:
        new_q_tile_1 = q_tile_1 * cos_row + q_tile_2 * sin_row
        new_q_tile_2 = q_tile_2 * cos_row - q_tile_1 * sin_row
        new_k_tile_1 = k_tile_1 * cos_row + k_tile_2 * sin_row
        new_k_tile_2 = k_tile_2 * cos_row - k_tile_1 * sin_row
    tl.store(q_ptr + first_half_q_offsets, new_q_tile_1, mask=first_q_mask)
    tl.store(q_ptr + second_half_q_offsets, new_q_tile_2, mask=first_q_mask)
    tl.store(k_ptr + first_half_k_offsets, new_k_tile_1, mask=first_k_mask)
    tl.store(k_ptr + second_half_k_offsets, new_k_tile_2, mask=first_k_mask)


def rotated(x, cos, sin):
    first, second = x.double().chunk(2, -1)
    cos, sin = (t.double()[None, :, None] for t in (cos, sin))
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


@every_dtype
def test_rope_in_place_of_grouped_heads(dtype):
    batch, length, q_heads, k_heads, head = 2, 5, 6, 3, 10
    q = filled((batch, length, q_heads, head), dtype)
    k = filled((batch, length, k_heads, head), dtype, 1)
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(head // 2) / (head // 2))
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    right = [rotated(x, cos, sin) for x in (q, k)]
    size = q.element_size()
    table = (length * head // 2 * size, batch * length * head // 2 * size)
    prove(
        lambda: rope[(batch * length,)](
            q, q.stride(1), k, k.stride(1), cos, cos.stride(0), sin, length,
            n_qh=q_heads, n_kh=k_heads, hd=head, pad_n_qh=8, pad_n_kh=4, pad_hd=16,
        ),
        dtype,
        list(zip((q, k), right, strict=True)),
        {"q": q.numel() * size, "k": k.numel() * size, "cos": table, "sin": table},
        {"q": q.numel() * size, "k": k.numel() * size},
        units=4,
    )  # fmt: skip


@triton.jit
def cross_entropy(X_ptr, X_stride, Y_ptr, loss_ptr, n_cols, n_non_ignore, ignore_index,
                  label_smoothing: tl.constexpr, lse_square_scale, softcap,
                  BLOCK_SIZE: tl.constexpr, HAS_SOFTCAPPING: tl.constexpr):  # fmt: skip
    program_id = tl.program_id(0).to(tl.int64)
    y = tl.load(Y_ptr + program_id)
    X_ptr += program_id * X_stride
    if y == ignore_index:
        for i in range(0, n_cols, BLOCK_SIZE):
            X_offsets = i + tl.arange(0, BLOCK_SIZE)
            tl.store(X_ptr + X_offsets, 0.0, mask=X_offsets < n_cols)
        return
    loss_ptr += program_id
    m = float("-inf")
    d = 0.0
    ori_X_y = tl.load(X_ptr + y).cast(tl.float32)
    if HAS_SOFTCAPPING:
        ori_X_y = softcap * tanh(ori_X_y / softcap)
    scaled_x_sum = 0.0
    eps = label_smoothing / n_cols
    for i in range(0, n_cols, BLOCK_SIZE):
        X_offsets = i + tl.arange(0, BLOCK_SIZE)
        X_block = tl.load(X_ptr + X_offsets, mask=X_offsets < n_cols, other=float("-inf")).cast(
            tl.float32
        )
        if HAS_SOFTCAPPING:
            X_block = softcap * tanh(X_block / softcap)
            X_block = tl.where(X_offsets < n_cols, X_block, float("-inf"))  # it made -inf finite
        block_max = tl.max(X_block)
        if label_smoothing > 0:
            scaled_x_sum += tl.sum(tl.where(X_offsets < n_cols, -eps * X_block, 0.0))
        m_new = tl.maximum(m, block_max)
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(X_block - m_new))
        m = m_new
    lse = m + tl.log(d)
    for i in range(0, n_cols, BLOCK_SIZE):
        X_offsets = i + tl.arange(0, BLOCK_SIZE)
        X_block = tl.load(X_ptr + X_offsets, mask=X_offsets < n_cols, other=float("-inf")).cast(
            tl.float32
        )
        if HAS_SOFTCAPPING:
            inner = tanh(X_block / softcap)
            X_block = softcap * inner
        probabilities = tl.exp(X_block - m) / d
        gradient = probabilities + 2 * lse_square_scale * lse * probabilities - eps
        gradient = tl.where(X_offsets != y, gradient, gradient - (1 - label_smoothing))
        gradient = gradient / n_non_ignore
        if HAS_SOFTCAPPING:
            gradient = gradient * (1 - inner * inner)
        tl.store(X_ptr + X_offsets, gradient, mask=X_offsets < n_cols)
    tl.debug_barrier()
    loss = lse - ori_X_y
    if label_smoothing > 0:
        smooth_loss = scaled_x_sum + label_smoothing * lse
        loss = loss * (1 - label_smoothing) + smooth_loss
    loss += lse_square_scale * lse * lse
    tl.store(loss_ptr, loss / n_non_ignore)


@every_dtype
def test_cross_entropy_that_stores_its_gradient_in_place(dtype):
    rows, cols, ignored, smoothing, square, cap = 6, 43, -100, 0.1, 1e-4, 5.0
    x, y = filled((rows, cols), dtype), torch.randint(0, cols, (rows,))
    y[2] = ignored
    count = rows - 1
    leaf = x.double().requires_grad_()
    capped = cap * torch.tanh(leaf / cap)
    lse = capped.logsumexp(1)
    each = torch.nn.functional.cross_entropy(
        capped, y, reduction="none", label_smoothing=smoothing, ignore_index=ignored
    )
    each = (each + square * lse**2 * (y != ignored)) / count
    each.sum().backward()
    loss = torch.zeros(rows)
    size = x.element_size()
    prove(
        lambda: cross_entropy[(rows,)](
            x, x.stride(0), y, loss, cols, count, ignored, label_smoothing=smoothing,
            lse_square_scale=square, softcap=cap, BLOCK_SIZE=16, HAS_SOFTCAPPING=True,
        ),
        dtype,
        [(x, leaf.grad), (loss, each.detach())],
        # Each row twice and the label's number once; an ignored row is zeroed unread.
        {"X": (count * cols * size, count * (2 * cols + 1) * size), "Y": rows * 8},
        {"X": rows * cols * size, "loss": count * 4},
        units=16,
    )  # fmt: skip


@triton.jit
def group_norm_forward(Y_ptr, X_ptr, Mean_ptr, RSTD_ptr, hidden_size, channels_per_group, W_ptr,
                       B_ptr, num_groups, eps, BLOCK_SIZE: tl.constexpr):  # fmt: skip
    batch_idx = tl.program_id(0)
    group_idx = tl.program_id(1)
    row = batch_idx * num_groups + group_idx
    X_ptr += row * hidden_size
    Y_ptr += row * hidden_size
    block_range = tl.arange(0, BLOCK_SIZE)
    s = 0.0
    squared_sum = 0.0
    shift = tl.load(X_ptr).to(tl.float32)  # the sum of squares would cancel without it
    for i in tl.range(0, hidden_size, BLOCK_SIZE):
        hidden_size_offsets = i + block_range
        mask = hidden_size_offsets < hidden_size
        X = tl.load(X_ptr + hidden_size_offsets, mask=mask, other=0.0).to(tl.float32)
        X = tl.where(mask, X - shift, 0.0)
        s += tl.sum(X)
        squared_sum += tl.sum(X * X)
    m = s / hidden_size
    variance = (squared_sum / hidden_size) - (m * m)
    rstd = libdevice.rsqrt(variance + eps)
    m = m + shift
    hidden_size_per_channel = hidden_size // channels_per_group
    for channel_idx in tl.range(
        group_idx * channels_per_group, (group_idx + 1) * channels_per_group
    ):
        W = tl.load(W_ptr + channel_idx)
        B = tl.load(B_ptr + channel_idx)
        for i in range(0, hidden_size_per_channel, BLOCK_SIZE):
            hidden_size_offsets = i + block_range
            mask = hidden_size_offsets < hidden_size_per_channel
            X = tl.load(X_ptr + hidden_size_offsets, mask=mask, other=m)
            Y = (X - m) * rstd * W + B
            tl.store(Y_ptr + hidden_size_offsets, Y, mask=mask)
        X_ptr += hidden_size_per_channel
        Y_ptr += hidden_size_per_channel
    tl.store(Mean_ptr + row, m)
    tl.store(RSTD_ptr + row, rstd)


@every_dtype
def test_group_norm_with_float_arguments_and_libdevice(dtype):
    batch, channels, space, groups, eps = 2, 6, 21, 3, 1e-5
    x = filled((batch, channels, space), dtype) + 3
    w, b = filled((channels,), dtype, 1), filled((channels,), dtype, 2)
    y, mean, rstd = torch.empty_like(x), torch.empty(batch * groups), torch.empty(batch * groups)
    right = torch.nn.functional.group_norm(x.double(), groups, w.double(), b.double(), eps)
    whole = x.double().reshape(batch * groups, -1)
    size, programs = x.element_size(), batch * groups
    elements = x.numel()
    prove(
        lambda: group_norm_forward[(batch, groups)](
            y, x, mean, rstd, channels // groups * space, channels // groups, w, b, groups, eps,
            BLOCK_SIZE=16,
        ),
        dtype,
        [(y, right), (mean, whole.mean(1)), (rstd, (whole.var(1, False) + eps).rsqrt())],
        {"X": (elements * size, (2 * elements + programs) * size),
         "W": (channels * size, batch * channels * size),
         "B": (channels * size, batch * channels * size)},
        {"Y": elements * size, "Mean": programs * 4, "RSTD": programs * 4},
        units=8,
    )  # fmt: skip
