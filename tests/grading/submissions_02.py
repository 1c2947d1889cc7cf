"""Submissions to 02.4 to 02.6, right and wrong, as readers write them."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from kernels.ops.norms.layernorm import layer_norm
from tests.grading.submissions import eager as eager_layer_norm
from tests.grading.submissions import pytorch_alone, with_fault


def saved_by_kinds(ledger, first, last, keeps, *, later=True, kept=True, once=True, inside=True):
    """The bytes saved, or what a reader gets who forgets one rule."""
    group = ledger.steps[first : last + 1]
    made, read, before = {}, {}, 0
    for step in group:
        before += step.bytes_unique
        for t in step.tensors:
            if t.write_unique:
                made[t.tensor] = t.write_unique
            if t.read_unique:
                read.setdefault(t.tensor, []).append(t.read_unique)
    needed = set(keeps) if kept else set()
    if later:
        needed |= {t.tensor for s in ledger.steps[last + 1 :] for t in s.tensors if t.read_unique}
    after = sum(size for name, size in made.items() if name in needed)
    for name, sizes in read.items():
        if name not in made:
            after += sizes[0] if once else sum(sizes)
        elif name in needed and not inside:
            after += sum(sizes)
    return before - after


def saved_with_one_write(ledger, first, last, keeps):
    """As if one launch wrote what its last step makes, and no other tensor."""
    group = ledger.steps[first : last + 1]
    made = {t.tensor for step in group for t in step.tensors if t.write_unique}
    read = {t.tensor: t.read_unique for step in group for t in step.tensors if t.read_unique}
    after = sum(size for name, size in read.items() if name not in made)
    after += sum(t.write_unique for t in group[-1].tensors)
    return sum(step.bytes_unique for step in group) - after


def saved_by_slice(ledger, first, last, keeps):
    """A slice that ends before the last step, and what is read later from behind it."""
    group, later = ledger.steps[first:last], ledger.steps[last + 1 :]
    touched = [t for step in group for t in step.tensors]
    made = {t.tensor: t.write_unique for t in touched if t.write_unique}
    inputs = {t.tensor: t.read_unique for t in touched if t.tensor not in made}
    needed = {t.tensor for step in later for t in step.tensors if t.read_unique} | set(keeps)
    before = sum(t.read_unique + t.write_unique for t in touched)
    return before - sum(inputs.values()) - sum(made[name] for name in needed & set(made))


def saved_of_made(writes):
    """All that moves of the tensors that the group makes: their reads, or their writes too."""

    def saved(ledger, first, last, keeps):
        touched = [t for step in ledger.steps[first : last + 1] for t in step.tensors]
        made = {t.tensor for t in touched if t.write_unique}
        return sum(
            t.read_unique + (t.write_unique if writes else 0) for t in touched if t.tensor in made
        )

    return saved


def saved_if_unread(ledger, first, last, keeps):
    """A tensor counts as needed wherever it is read, in the group too."""
    wanted = {t.tensor for s in ledger.steps[first:] for t in s.tensors if t.read_unique}
    return saved_by_kinds(ledger, first, last, (*keeps, *wanted))


def saved_in_registers(ledger, first, last, keeps):
    """Walk the steps with a set of what is in registers."""
    registers, written_by, total = set(), {}, 0
    for step in ledger.steps[first : last + 1]:
        for t in step.tensors:
            if t.read_unique and t.tensor in registers:
                total += t.read_unique
            registers.add(t.tensor)
            if t.write_unique:
                written_by[t.tensor] = t.write_unique
    needed = [t.tensor for s in ledger.steps[last + 1 :] for t in s.tensors if t.read_unique]
    return total + sum(v for k, v in written_by.items() if k not in needed and k not in keeps)


def saved_tensor_by_tensor(ledger, first, last, keeps):
    steps = ledger.steps
    total = 0
    for name in ledger.tensors:
        inside = [s.tensor(name) for s in steps[first : last + 1]]
        read, made = sum(t.read_unique for t in inside), sum(t.write_unique for t in inside)
        if not made:
            total += read - max((t.read_unique for t in inside), default=0)
        else:
            wanted = name in keeps or any(s.tensor(name).read_unique for s in steps[last + 1 :])
            total += read + (0 if wanted else made)
    return total


def saved_writes(ledger, first, last, keeps):
    whole = saved_by_kinds(ledger, first, last, keeps)
    group = ledger.steps[first : last + 1]
    made = {t.tensor for s in group for t in s.tensors if t.write_unique}
    later = {t.tensor for s in ledger.steps[last + 1 :] for t in s.tensors if t.read_unique}
    gone = made - later - set(keeps)
    return whole - sum(t.read_unique for s in group for t in s.tensors if t.tensor in gone)


def lean(x, weight, bias, eps):
    variance, mean = torch.var_mean(x.float(), -1, correction=0, keepdim=True)
    inv_std = torch.rsqrt(variance + eps)
    normalized = torch.addcmul(-mean * inv_std, x, inv_std)
    return torch.addcmul(bias, normalized, weight, out=torch.empty_like(x))


def lean_from_narrow(x, weight, bias, eps):
    mean = x.mean(-1, keepdim=True, dtype=torch.float32)
    variance = torch.empty_like(mean)
    torch.var(x, -1, correction=0, keepdim=True, out=variance)
    scale = (variance + eps).sqrt().reciprocal()
    y = torch.empty_like(x)
    torch.addcmul(bias, torch.addcmul(mean * -scale, x, scale), weight, out=y)
    return y


def lean_in_place(x, weight, bias, eps):
    wide = x.float()
    variance, mean = torch.var_mean(wide, dim=1, correction=0, keepdim=True)
    variance.add_(eps).rsqrt_()
    wide = torch.addcmul(mean.mul_(variance).neg_(), wide, variance)
    return torch.addcmul(bias, wide, weight, out=torch.empty_like(x))


def centred_first(x, weight, bias, eps):
    variance, mean = torch.var_mean(x.float(), -1, correction=0, keepdim=True)
    return torch.addcmul(bias, (x - mean) * torch.rsqrt(variance + eps), weight).to(x.dtype)


def converted_last(x, weight, bias, eps):
    variance, mean = torch.var_mean(x.float(), -1, correction=0, keepdim=True)
    inv_std = torch.rsqrt(variance + eps)
    return torch.addcmul(bias, torch.addcmul(-mean * inv_std, x, inv_std), weight).to(x.dtype)


def copied_last(x, weight, bias, eps):
    y = torch.empty_like(x)
    variance, mean = torch.var_mean(x.float(), -1, correction=0, keepdim=True)
    inv_std = torch.rsqrt(variance + eps)
    y.copy_(torch.addcmul(bias, torch.addcmul(-mean * inv_std, x, inv_std), weight))
    return y


def narrow_statistics(x, weight, bias, eps):
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    inv_std = torch.rsqrt(variance.float() + eps)
    normalized = torch.addcmul(-mean * inv_std, x, inv_std)
    return torch.addcmul(bias, normalized, weight, out=torch.empty_like(x))


def two_sums_of_operators(x, weight, bias, eps):
    mean = x.mean(-1, keepdim=True, dtype=torch.float32)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    inv_std = torch.rsqrt(norm * norm / x.shape[-1] - mean * mean + eps)
    normalized = torch.addcmul(-mean * inv_std, x, inv_std)
    return torch.addcmul(bias, normalized, weight, out=torch.empty_like(x))


def by_batch_norm(x, weight, bias, eps):
    rows = F.batch_norm(x.float()[None], None, None, training=True, eps=eps)[0]
    return torch.addcmul(bias, rows, weight, out=torch.empty_like(x))


def by_numpy(x, weight, bias, eps):
    a = x.float().numpy()
    mean, variance = a.mean(-1, keepdims=True), a.var(-1, keepdims=True)
    rows = torch.from_numpy((a - mean) / (variance + eps) ** 0.5)
    return torch.addcmul(bias, rows, weight, out=torch.empty_like(x))


def with_a_tensor_elsewhere(x, weight, bias, eps):
    scale = torch.full((x.shape[0], 1), eps)
    return eager_layer_norm(x, weight, bias, 0.0 * scale + scale)


def lean_on_few_rows(x, weight, bias, eps):
    if len(x) < 500:
        return eager_layer_norm(x, weight, bias, eps)
    return lean(x, weight, bias, eps)


by_layer_norm = pytorch_alone


def by_own_operator(x, weight, bias, eps):
    return layer_norm(x, weight, bias, eps)


by_kernel = with_fault("")


# One kernel with a switch for each fault.
@triton.jit
def rms_kernel(x_ptr, w_ptr, y_ptr, n_cols, eps, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    if FAULT == "weight first":
        weight = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0)
    squares = (x * x).to(tl.float32) if FAULT == "half" else x.to(tl.float32) * x.to(tl.float32)
    x = x.to(tl.float32)
    total = tl.sum(squares, axis=0)
    if FAULT == "layer norm":
        x = tl.where(mask, x - tl.sum(x, axis=0) / n_cols, 0.0)
        total = tl.sum(x * x, axis=0)
    if FAULT == "sum":
        n_cols_of_mean = 1
    elif FAULT == "block":
        n_cols_of_mean = BLOCK
    else:
        n_cols_of_mean = n_cols
    mean_square = total / n_cols_of_mean
    if FAULT == "no eps":
        eps = 0.0
    if FAULT == "other eps":
        eps = 1e-5
    if FAULT == "twice":
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    if FAULT == "eps outside":
        y = x / (tl.sqrt(mean_square) + eps)
    elif FAULT == "no root":
        y = x / (mean_square + eps)
    else:
        y = x * tl.rsqrt(mean_square + eps)
    if FAULT != "weight first":
        weight = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    y = y + weight if FAULT == "weight added" else y * weight
    y = y.to(y_ptr.dtype.element_ty)
    if FAULT == "unmasked":
        tl.store(y_ptr + row * n_cols + cols, y)
    else:
        tl.store(y_ptr + row * n_cols + cols, y, mask=mask)


def rms_with(fault, warps=16):
    def rms_norm(x, weight, eps):
        rows, n_cols = x.shape
        y = torch.empty_like(x)
        block = triton.next_power_of_2(n_cols)
        rms_kernel[(rows,)](x, weight, y, n_cols, eps, BLOCK=block, FAULT=fault, num_warps=warps)
        return y

    return rms_norm


@triton.jit
def rms_divided_kernel(x_ptr, y_ptr, w_ptr, width, n_rows, eps, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        here = row.to(tl.int64) * width + lane
        x = tl.load(x_ptr + here, mask=lane < width, other=0).to(tl.float32)
        root = tl.sqrt(tl.sum(x * x) / width + eps)
        w = tl.load(w_ptr + lane, mask=lane < width)
        out = x / root * w.to(tl.float32)
        tl.store(y_ptr + here, out.to(x_ptr.dtype.element_ty), mask=lane < width)


def rms_divided(x, weight, eps, programs=lambda rows: -(-rows // 3)):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, width = x.shape
    lanes = triton.next_power_of_2(width)
    warps = 16 if lanes > 4096 else 4
    grid = (programs(rows),)
    rms_divided_kernel[grid](x, y, weight, width, rows, eps, lanes, num_warps=warps)
    return y


@triton.jit
def rms_selected_kernel(x_ptr, w_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * n
    x = tl.load(x_ptr + start + at, mask=at < n).to(tl.float32)
    x = tl.where(at < n, x, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / n + eps)
    y = (x * scale) * tl.load(w_ptr + at, mask=at < n).to(tl.float32)
    tl.store(y_ptr + start + at, y.to(y_ptr.dtype.element_ty), mask=at < n)


def rms_selected(x, weight, eps):
    y = torch.empty_like(x)
    n = x.shape[1]
    warps = 8 if n > 2048 else 4
    block = triton.next_power_of_2(n)
    rms_selected_kernel[(len(x),)](x, weight, y, n, eps, BLOCK=block, num_warps=warps)
    return y


def rms_by_pytorch(x, weight, eps):
    return F.rms_norm(x, x.shape[-1:], weight, eps)
