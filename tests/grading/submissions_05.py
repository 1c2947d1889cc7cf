"""Answers to the questions of set 05: right ones written differently, and known-wrong ones.

A wrong kernel is an edit of a right one. All kernels of a question are compiled together.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from kernels.cuda import cuda

_NAME = re.compile(
    r"__(?:global|device)__\s+(?:[\w*<>]+\s+)+(\w+)\s*\(|struct (?:alignas\([^{]*\) )?(\w+) \{"
)


@dataclass(frozen=True)
class Numbered:
    """One source of a module of many: its kernels have its number in their names there."""

    module: Any
    number: int

    def __getattr__(self, name):
        return self[name]

    def __getitem__(self, expression):
        name, bracket, rest = expression.partition("<")
        return self.module[f"{name}_{self.number}{bracket}{rest}"]


def merged(sources, instances=(), time_limit_s=2.0):
    """For each source its kernels; those of templates as `instances`, compiled together."""
    texts, numbered = [], []
    for number, source in enumerate(sources):
        for name in {one for pair in _NAME.findall(source) for one in pair if one}:
            source = re.sub(rf"\b{name}\b", f"{name}_{number}", source)
        texts.append(source)
        numbered += [instance.replace("<", f"_{number}<", 1) for instance in instances]
    text = "\n".join(["#include <cuda_fp16.h>", *texts])
    module = cuda(text, time_limit_s=time_limit_s, instances=numbered)
    return [Numbered(module, number) for number in range(len(sources))]


def kernels(*instances, alone, **sources):
    """The kernels of each source, by its name; the first `alone` have a module each.

    Those are right, so that they are compiled for GPUs too, where a module of many takes long.
    """
    names = list(sources)
    made = {
        name: cuda(f"#include <cuda_fp16.h>\n{sources[name]}", instances=instances)
        for name in names[:alone]
    }
    others = merged([sources[name] for name in names[alone:]], instances)
    return {**made, **dict(zip(names[alone:], others, strict=True))}


def edited(source, *edits):
    """A source with each (old, new) replaced; the old text has to be there."""
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new)
    return source


# 05.1 and 05.2: right answers in Python.


def chain_by_sets(steps, sizes, cuts):
    total = 0
    for first, last in pairwise([0, *cuts, len(steps)]):
        made = {name for name, _ in steps[first:last]}
        needed = {name for _, needs in steps[first:last] for name in needs}
        later = {name for _, needs in steps[last:] for name in needs} | {steps[-1][0]}
        total += sum(sizes[name] for name in (needed - made) | (made & later))
    return total


def chain_by_crossings(steps, sizes, cuts):
    """Give every step its launch; then look at each tensor alone."""
    launch = [sum(cut <= step for cut in cuts) for step in range(len(steps))]
    makers = {name: launch[step] for step, (name, _) in enumerate(steps)}
    total = sizes[steps[-1][0]]
    for name, size in sizes.items():
        users = {launch[step] for step, (_, needs) in enumerate(steps) if name in needs}
        elsewhere = users - {makers.get(name)}
        total += size * (len(elsewhere) + (name in makers and bool(elsewhere)))
    return total


def chain_by_hand(steps, sizes, cuts):
    total, starts = 0, [0, *cuts]
    ends = [*cuts, len(steps)]
    for start, end in zip(starts, ends, strict=True):
        inside, loaded = [], []
        for name, needs in steps[start:end]:
            for need in needs:
                if need not in inside and need not in loaded:
                    loaded.append(need)
                    total += sizes[need]
            inside.append(name)
        for name in inside:
            if name == steps[-1][0] or any(name in needs for _, needs in steps[end:]):
                total += sizes[name]
    return total


def loads_of_x(launches):
    return [
        one for lines in launches for one in lines if one.argument == "x" and one.kind == "load"
    ]


def rung_by_times(launches, x_bytes):
    loads = loads_of_x(launches)
    times = round(sum(one.bytes_requested for one in loads) / x_bytes)
    if len(launches) == 4:
        return "chain"
    return {1: "held", 2: "wide"}.get(times, "packs" if loads[0].width == 16 else "loops")


def rung_by_lanes(launches, x_bytes):
    if len(launches) != 1:
        return "chain"
    asked, lanes = 0, 0
    for one in loads_of_x(launches):
        asked += one.bytes_requested
        lanes += one.bytes_requested // one.width
    if asked == x_bytes:
        return "held"
    if asked == 2 * x_bytes:
        return "wide"
    return "packs" if asked == 16 * lanes else "loops"


def rung_by_table(launches, x_bytes):
    loads = loads_of_x(launches)
    times = sum(one.bytes_requested for one in loads) // x_bytes
    wide = all(one.width == 16 for one in loads)
    table = {(1, 3, True): "packs", (1, 3, False): "loops"}
    return table.get((len(launches), times, wide)) or (
        "chain" if len(launches) > 1 else ("held" if times == 1 else "wide")
    )


# 05.3: a LayerNorm in fp32.
NORM = r"""
__device__ float block_sum(float value) {
    __shared__ float of_warp[8];
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffff, value, offset);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < 8; warp++) value += of_warp[warp];
    __syncthreads();
    return value;
}
__global__ void layer_norm(const float* x, const float* weight, const float* bias, float* y,
                           int n_cols, float eps) {
    int first = blockIdx.x * n_cols;
    float held[4], sum = 0, squares = 0;
    for (int k = 0; k < 4; k++) {
        int col = threadIdx.x + k * 256;
        held[k] = col < n_cols ? x[first + col] : 0.0f;
        sum += held[k];
    }
    float mean = block_sum(sum) / n_cols;
    for (int k = 0; k < 4; k++) {
        float distance = threadIdx.x + k * 256 < n_cols ? held[k] - mean : 0.0f;
        squares += distance * distance;
    }
    float inv_std = rsqrtf(block_sum(squares) / n_cols + eps);
    for (int col = threadIdx.x, k = 0; k < 4; k++, col += 256)
        if (col < n_cols) y[first + col] = (held[k] - mean) * inv_std * weight[col] + bias[col];
}
"""
_ADDED = "value += of_warp[warp];\n"
_NO_BARRIER = (f"{_ADDED}    __syncthreads();\n", _ADDED)
_MASKED = "threadIdx.x + k * 256 < n_cols ? held[k] - mean : 0.0f"
_UNMASKED = (_MASKED, "held[k] - mean")
NORMS = kernels(
    alone=3,
    right=NORM,
    two_arrays=edited(
        NORM,
        ("block_sum(float value)", "block_sum(float value, int which)"),
        (
            "__shared__ float of_warp[8];",
            "__shared__ float both[2][8];\n    float* of_warp = both[which];",
        ),
        _NO_BARRIER,
        ("block_sum(sum)", "block_sum(sum, 0)"),
        ("block_sum(squares)", "block_sum(squares, 1)"),
    ),
    a_warp=r"""
__device__ float warp_sum(float value) {
    for (int offset = 1; offset < 32; offset *= 2)
        value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}
__global__ void layer_norm(const float* x, const float* weight, const float* bias, float* y,
                           int n_cols, float eps) {
    const float* row = x + blockIdx.x * n_cols;
    float held[32], sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < 32; k++) {
        held[k] = 0;
        if (threadIdx.x + k * 32 < n_cols) held[k] = row[threadIdx.x + k * 32];
        sum += held[k];
    }
    float mean = warp_sum(sum) / n_cols;
#pragma unroll
    for (int k = 0; k < 32; k++)
        if (threadIdx.x + k * 32 < n_cols) squares += (held[k] - mean) * (held[k] - mean);
    float inv_std = rsqrtf(warp_sum(squares) / n_cols + eps);
#pragma unroll
    for (int k = 0; k < 32; k++) {
        int col = threadIdx.x + k * 32;
        if (col < n_cols)
            y[blockIdx.x * n_cols + col] = (held[k] - mean) * inv_std * weight[col] + bias[col];
    }
}
""",
    given=edited(NORM, _NO_BARRIER, _UNMASKED),
    no_barrier=edited(NORM, _NO_BARRIER),
    unmasked=edited(NORM, _UNMASKED),
    wrong_place=edited(NORM, _NO_BARRIER, ("value = 0;", "__syncthreads();\n    value = 0;")),
    read_again=edited(NORM, ("? held[k] - mean", "? x[first + threadIdx.x + k * 256] - mean")),
    beyond=edited(NORM, ("if (col < n_cols) y", "if (col <= n_cols) y")),
    no_eps=edited(NORM, (" / n_cols + eps", " / n_cols")),
    unbiased=edited(NORM, ("block_sum(squares) / n_cols", "block_sum(squares) / (n_cols - 1.0f)")),
    not_centred=edited(NORM, (f"{_MASKED};", "held[k];")),
    first_row=edited(NORM, ("x[first + col]", "x[col]")),
    no_bias=edited(NORM, (" + bias[col]", "")),
    one_pass=edited(
        NORM,
        (_MASKED, "held[k]"),
        ("block_sum(squares) / n_cols", "block_sum(squares) / n_cols - mean * mean"),
    ),
)


def norm_with(name, threads=256, fewer=0):
    def my_norm(x, weight, bias, eps):
        rows, n_cols = x.shape
        y = torch.empty_like(x)
        NORMS[name].layer_norm[rows - fewer, threads](x, weight, bias, y, n_cols, eps)
        return y

    return my_norm


# 05.4: residual + silu(x + bias).
GATE = r"""
__global__ void gate(const __half* x, const __half* bias, const __half* residual, __half* y,
                     int n_rows, int n_cols) {
    int col = blockIdx.y * blockDim.x + threadIdx.x;
    if (col >= n_cols) return;
    int i = blockIdx.x * n_cols + col;
    float v = __half2float(x[i]) + __half2float(bias[col]);
    y[i] = __float2half(__half2float(residual[i]) + v / (1.0f + expf(-v)));
}
"""
_FLAT = """    int i = blockIdx.x * blockDim.x + threadIdx.x, col = i % n_cols;
    if (i >= n_rows * n_cols) return;
"""
_PLACES = GATE[GATE.index("    int col") : GATE.index("    float v")]
GATES = kernels(
    alone=3,
    right=GATE,
    flat=edited(GATE, (_PLACES, _FLAT)),
    strided=r"""
__global__ void gate(const __half* x, const __half* bias, const __half* residual, __half* y,
                     int n_rows, int n_cols) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n_rows * n_cols;
         i += gridDim.x * blockDim.x) {
        float v = float(x[i]) + float(bias[i % n_cols]);
        float share = 1.0f / (1.0f + __expf(-v));
        y[i] = __half(float(residual[i]) + share * v);
    }
}
""",
    rounded=edited(
        GATE, ("float v = ", "float v = (float)(__half)("), ("bias[col]);", "bias[col]));")
    ),
    no_bias=edited(GATE, (" + __half2float(bias[col])", "")),
    no_silu=edited(GATE, ("v / (1.0f + expf(-v))", "v")),
    sigmoid=edited(GATE, ("+ v / (", "+ 1.0f / (")),
    sign=edited(GATE, ("expf(-v)", "expf(v)")),
    no_residual=edited(GATE, ("__half2float(residual[i]) + ", "")),
    unguarded=edited(GATE, ("    if (col >= n_cols) return;\n", "")),
    twice=edited(
        GATE,
        ("    float v", "    float again = ((volatile const short*)x)[i];\n    float v"),
        ("expf(-v)))", "expf(-v)) + 0.0f * again)"),
    ),
    first_bias=edited(GATE, ("bias[col]", "bias[0]")),
)


def gate_with(name, by_rows=True, threads=256, blocks=None):
    def my_gate(x, bias, residual):
        (rows, n_cols), y = x.shape, torch.empty_like(x)
        grid = (rows, -(-n_cols // threads)) if by_rows else -(-x.numel() // threads)
        if blocks is not None:
            grid = blocks(rows, n_cols)
        GATES[name].gate[grid, threads](x, bias, residual, y, rows, n_cols)
        return y

    return my_gate


# 05.5: an addition in packs.
ADD = r"""
struct alignas(16) Pack {
    __half at[8];
};
__global__ void packed_add(const __half* x, const __half* y, __half* out, int n) {
    int first = 8 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (first + 8 <= n) {
        Pack a = *(const Pack*)(x + first), b = *(const Pack*)(y + first);
        for (int i = 0; i < 8; i++)
            a.at[i] = __float2half(__half2float(a.at[i]) + __half2float(b.at[i]));
        *(Pack*)(out + first) = a;
    } else {
        for (int i = first; i < n; i++)
            out[i] = __float2half(__half2float(x[i]) + __half2float(y[i]));
    }
}
"""
_WHOLE = ADD[ADD.index("        Pack a") : ADD.index("    } else {")]
_REST = ADD[ADD.index(" else {") : ADD.rindex("}")]
ADDS = kernels(
    alone=3,
    right=ADD,
    by_uint4=r"""
__global__ void packed_add(const __half* x, const __half* y, __half* out, int n) {
    int pack = blockIdx.x * blockDim.x + threadIdx.x, n_packs = n / 8;
    if (pack < n_packs) {
        uint4 a = ((const uint4*)x)[pack], b = ((const uint4*)y)[pack], sum;
        for (int i = 0; i < 8; i++)
            ((__half*)&sum)[i] = __half(float(((__half*)&a)[i]) + float(((__half*)&b)[i]));
        ((uint4*)out)[pack] = sum;
    }
    int i = 8 * n_packs + pack;
    if (pack < 8 && i < n) out[i] = __half(float(x[i]) + float(y[i]));
}
""",
    strided=r"""
struct alignas(16) Eight { __half2 at[4]; };
__global__ void packed_add(const __half* x, const __half* y, __half* out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i <= n / 8; i += blockDim.x * gridDim.x) {
        if (i == n / 8) {
            for (int k = 8 * i; k < n; k++) out[k] = __half(float(x[k]) + float(y[k]));
            continue;
        }
        Eight a = ((const Eight*)x)[i], b = ((const Eight*)y)[i];
        for (int k = 0; k < 4; k++) {
            float2 sum = __half22float2(a.at[k]), more = __half22float2(b.at[k]);
            a.at[k] = __floats2half2_rn(sum.x + more.x, sum.y + more.y);
        }
        ((Eight*)out)[i] = a;
    }
}
""",
    rest_by_warp=edited(
        ADD,
        (
            " else {",
            " else if (blockIdx.x == gridDim.x - 1) { first = n / 8 * 8;",
        ),
    ),
    single=edited(
        ADD, (_WHOLE, "        for (int i = first; i < first + 8; i++) out[i] = x[i] + y[i];\n")
    ),
    narrow_store=edited(
        ADD, ("*(Pack*)(out + first) = a", "for (int i = 0; i < 8; i++) out[first + i] = a.at[i]")
    ),
    no_rest=edited(ADD, (_REST, "\n")),
    overrun=edited(ADD, ("first + 8 <= n", "first < n")),
    strict=edited(ADD, ("first + 8 <= n", "first + 8 < n")),
    first_only=edited(
        ADD,
        ("*(Pack*)(out + first) = a", "out[first] = a.at[0]"),
    ),
    misaligned=edited(ADD, ("(x + first)", "(x + first + 1)"), ("first + 8 <=", "first + 9 <=")),
    seven=edited(ADD, ("i < 8; i++)\n            a.at", "i < 7; i++)\n            a.at")),
    y_lost=edited(ADD, (" + __half2float(b.at[i])", ""), (" + __half2float(y[i])", "")),
)


def add_with(name, per_block=8 * 256, threads=256, blocks=None):
    def packed_add(x, y):
        n, out = x.numel(), torch.empty_like(x)
        grid = -(-n // per_block) if blocks is None else blocks(n)
        ADDS[name].packed_add[grid, threads](x, y, out, n)
        return out

    return packed_add
