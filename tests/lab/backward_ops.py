"""A small operation with a backward: y = s·x + b and h = x + b, in PyTorch and in Triton."""

import math
from dataclasses import replace

import torch
import triton
import triton.language as tl

from kernels.registry import Backward, Cost, Moves, Op, Pass, Tolerance, Variant, cases, named

PROGRAMS = 40


def reference(x, scale, bias):
    x, scale, bias = x.double(), scale.double(), bias.double()
    return x * scale + bias, x + bias


def eager(x, scale, bias):
    return x * scale + bias, x + bias


def wrong(x, scale, bias):
    return x * scale + bias, x + bias.detach()  # the values are right, a gradient isn't


@triton.jit
def scale_rows(x_ptr, scale_ptr, bias_ptr, y_ptr, h_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    y = (x * scale + bias).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * n_cols + cols, y, mask=mask)
    tl.store(h_ptr + row * n_cols + cols, (x + bias).to(h_ptr.dtype.element_ty), mask=mask)


@triton.jit
def back_shared(
    dy_ptr, dh_ptr, x_ptr, scale_ptr, dx_ptr, parts_ptr, n_rows, n_cols, each, BLOCK: tl.constexpr
):
    # A program takes `each` rows, and leaves its share of the sums for scale and bias.
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    scale = tl.load(scale_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    dscale = tl.zeros([BLOCK], tl.float32)
    dbias = tl.zeros([BLOCK], tl.float32)
    for row in range(program * each, tl.minimum(program * each + each, n_rows)):
        dy = tl.load(dy_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        dh = tl.load(dh_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
        dx = (dy * scale + dh).to(dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + row * n_cols + cols, dx, mask=mask)
        dscale += dy * x
        dbias += dy + dh
    tl.store(parts_ptr + program * 2 * n_cols + cols, dscale, mask=mask)
    tl.store(parts_ptr + (program * 2 + 1) * n_cols + cols, dbias, mask=mask)


@triton.jit
def add_parts(parts_ptr, dscale_ptr, dbias_ptr, n_parts, n_cols, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n_cols
    dscale = tl.zeros([BLOCK], tl.float32)
    dbias = tl.zeros([BLOCK], tl.float32)
    for part in range(n_parts):
        dscale += tl.load(parts_ptr + part * 2 * n_cols + cols, mask=mask, other=0.0)
        dbias += tl.load(parts_ptr + (part * 2 + 1) * n_cols + cols, mask=mask, other=0.0)
    tl.store(dscale_ptr + cols, dscale.to(dscale_ptr.dtype.element_ty), mask=mask)
    tl.store(dbias_ptr + cols, dbias.to(dbias_ptr.dtype.element_ty), mask=mask)


@torch.library.custom_op("backward_ops::forward", mutates_args=())
def _forward(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    y, h = torch.empty_like(x), torch.empty_like(x)
    n_cols = x.shape[1]
    block = triton.next_power_of_2(n_cols)
    scale_rows[(x.shape[0],)](x, scale, bias, y, h, n_cols, BLOCK=block)
    return y, h


@torch.library.custom_op("backward_ops::backward", mutates_args=())
def _backward(
    dy: torch.Tensor, dh: torch.Tensor, x: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    n_rows, n_cols = x.shape
    each = -(-n_rows // PROGRAMS)
    programs = -(-n_rows // each)
    dx, dscale, dbias = torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)
    parts = torch.empty(programs, 2, n_cols, device=x.device)
    block = triton.next_power_of_2(n_cols)
    back_shared[(programs,)](dy, dh, x, scale, dx, parts, n_rows, n_cols, each, BLOCK=block)
    add_parts[(triton.cdiv(n_cols, 16),)](parts, dscale, dbias, programs, n_cols, BLOCK=16)
    return dx, dscale, dbias


@_forward.register_fake
def _(x, scale, bias):
    return torch.empty_like(x), torch.empty_like(x)


@_backward.register_fake
def _(dy, dh, x, scale):
    return torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], inputs[1])


def _back(ctx, dy, dh):
    return _backward(dy, dh, *ctx.saved_tensors)


_forward.register_autograd(_back, setup_context=_setup)


def inputs(shape, dtype, device, seed):
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*size):
        return torch.randn(size, generator=generator, device=device).to(dtype)

    return {"x": normal(*shape), "scale": normal(shape[1]), "bias": normal(shape[1])}


def cost(read, written):
    def of(case):
        elements, size = math.prod(case.shape), case.dtype.itemsize
        return Cost(2 * elements, read * elements * size, written * elements * size)

    return of


def tolerance(case, _name):
    unit = torch.finfo(case.dtype).eps
    return Tolerance(unit, 4 * unit)


def moves(case, pass_):
    rows, n_cols = case.shape
    size = case.dtype.itemsize
    if pass_ == "fwd":
        return Moves(1, unique=(3 * rows + 2) * n_cols * size)
    programs = -(-rows // -(-rows // PROGRAMS))
    return Moves(2, unique=(4 * rows + 3) * n_cols * size + 2 * programs * 2 * n_cols * 4)


BOTH = ("fwd", "bwd")
OP = Op(
    name="scaling",
    suite="pointwise",
    dims="RN",
    tensors={"x": "RN", "scale": "N", "bias": "N"},
    outputs={"y": "RN", "h": "RN"},
    independent="R",
    inputs=inputs,
    reference=reference,
    variants=named(
        Variant("eager", eager, BOTH, counted="aten"),
        Variant("fused", _forward, BOTH, counted="triton", moves=moves),
        Variant("torch", eager),
    ),
    shapes=((8, 4), (16, 4)),
    dtypes=(torch.float32, torch.bfloat16),
    forward=Pass(cost(1, 2), tolerance),
    backward=Backward(
        cost=cost(3, 1),
        tolerance=lambda case, name: Tolerance(4 * torch.finfo(case.dtype).eps, 1e-1),
        cases=cases([(16, 4)], "fp32"),
        differentiates=("x", "scale", "bias"),
    ),
)


def going_back_to(*names):
    """The operation with gradients of these inputs alone."""
    return replace(OP, backward=replace(OP.backward, differentiates=names))


def with_variant(variant, fn, **changes):
    """The operation with one more variant."""
    return replace(OP, variants={**OP.variants, variant: Variant(variant, fn, BOTH)}, **changes)
