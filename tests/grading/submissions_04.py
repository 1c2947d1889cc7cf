"""Answers to the questions of set 04: right ones written differently, and known-wrong ones.

A wrong kernel is an edit of a right one. All kernels of a question are compiled together.
"""

import math
from collections import Counter
from itertools import pairwise

import torch

from tests.grading.cuda_mutation import merged


def edited(source, *edits):
    """A source with each (old, new) replaced; the old text has to be there."""
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new)
    return source


def kernels(time_limit_s=20.0, **sources):
    """The kernels of each source, by its name."""
    return dict(zip(sources, merged(list(sources.values()), time_limit_s), strict=True))


# 04.1, 04.2 and 04.8: right answers in Python.


def sectors_by_set(stride, width, first):
    return len({(first + lane * stride) * width // 32 for lane in range(32)})


def sectors_by_counter(stride, width, first):
    touched = Counter()
    for lane in range(32):
        touched[(first + lane * stride) * width >> 5] += 1
    return len(touched)


def sectors_by_steps(stride, width, first):
    """Count the places in lane order where a new sector begins: addresses never turn back."""
    places = [(first + lane * stride) * width // 32 for lane in range(32)]
    return 1 + sum(a != b for a, b in pairwise(places))


def costliest_by_lines(lines):
    waste = Counter()
    for one in lines:
        waste[one.line] += one.sectors * 32 - one.bytes_distinct
    return waste.most_common(1)[0][0]


def costliest_by_requested(lines):
    """Take a broadcast's bytes once for each lane: it seems to waste less than nothing."""
    waste = {}
    for one in lines:
        waste[one.line] = waste.get(one.line, 0) + one.sectors * 32 - one.bytes_requested
    return max(waste, key=waste.get)


def costliest_by_share(lines):
    numbers = {one.line for one in lines}

    def waste(number):
        own = [one for one in lines if one.line == number]
        return sum(32 * one.sectors * (1 - one.efficiency) for one in own)

    return max(numbers, key=waste)


def costliest_sorted(lines):
    by_line = {}
    for one in lines:
        by_line.setdefault(one.line, []).append(32 * one.sectors - one.bytes_distinct)
    return sorted((sum(costs), line) for line, costs in by_line.items())[-1][1]


def passes_by_counter(words):
    return max(Counter(word % 32 for word in set(words)).values())


def passes_by_rounds(words):
    """Take one word from each bank a pass, until none is left."""
    left, passes = set(words), 0
    while left:
        taken = {word % 32: word for word in left}
        left -= set(taken.values())
        passes += 1
    return passes


def passes_by_banks(words):
    return max(len({word for word in words if word % 32 == bank}) for bank in range(32))


# 04.3: an addition.
ADD = r"""
__global__ void add(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = x[i] + y[i];
}
"""
_GUARD = "    if (i >= n) return;\n"
_SUM = "out[i] = x[i] + y[i];"
ADDS = kernels(
    right=ADD,
    strided=r"""
__global__ void add(const float* x, const float* y, float* out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
        out[i] = x[i] + y[i];
}
""",
    wide=r"""
__global__ void add(const float* x, const float* y, float* out, int n) {
    int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 4 <= n) {
        float4 a = *(const float4*)(x + i), b = *(const float4*)(y + i);
        *(float4*)(out + i) = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    } else {
        for (; i < n; i++) out[i] = x[i] + y[i];
    }
}
""",
) | kernels(
    beyond=edited(ADD, ("i >= n", "i > n")),
    strict=edited(ADD, ("i >= n", "i >= n - 1")),
    unguarded=edited(ADD, (_GUARD, "")),
    one_block=edited(ADD, ("blockIdx.x * blockDim.x + ", "")),
    minus=edited(ADD, (_SUM, "out[i] = x[i] - y[i];")),
    x_again=edited(ADD, (_SUM, "out[i] = x[i] + x[i];")),
    twice=edited(ADD, (_SUM, "out[i] = 2 * x[i]; out[i] = x[i] + y[i];")),
    stored_twice=edited(ADD, (_SUM, "out[i] = x[i]; out[i] += y[i];")),
    half=edited(ADD, (_SUM, "out[i] = __half2float(__float2half(x[i])) + y[i];")),
    spilt=edited(
        ADD,
        (
            _SUM,
            "float a = x[i], held[64]; "
            "for (int k = 0; k < 64; k++) held[k * (n | 1) & 63] = a + k; "
            "out[i] = held[0] + y[i];",
        ),
    ),
    chunks=r"""
__global__ void add(const float* x, const float* y, float* out, int n) {
    int first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    for (int i = first; i < first + 4 && i < n; i++) out[i] = x[i] + y[i];
}
""",
)


def add_with(name, per_block=256, blocks=None):
    def my_add(x, y):
        out, n = torch.empty_like(x), x.numel()
        grid = math.ceil(n / per_block) if blocks is None else blocks(n)
        ADDS[name].add[grid, 256](x, y, out, n)
        return out

    return my_add


# 04.4: silu(a) * b.
SILU = r"""
__global__ void silu_mul(const float* a, const float* b, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] / (1.0f + expf(-a[i])) * b[i];
}
"""
_SILU = "a[i] / (1.0f + expf(-a[i])) * b[i]"
SILUS = kernels(
    right=SILU,
    helper=r"""
__device__ float sigmoid(float value) { return 1.0f / (1.0f + __expf(-value)); }
__global__ void silu_mul(const float* a, const float* b, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = a[i];
    out[i] = value * sigmoid(value) * b[i];
}
""",
    strided=r"""
__global__ void silu_mul(const float* a, const float* b, float* out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float value = a[i];
        out[i] = b[i] * (value / (1.0f + expf(-value)));
    }
}
""",
) | kernels(
    quotient=edited(SILU, (_SILU, "a[i] * (expf(a[i]) / (1.0f + expf(a[i]))) * b[i]")),
    no_b=edited(SILU, (" * b[i]", "")),
    sigmoid=edited(SILU, (_SILU, "1.0f / (1.0f + expf(-a[i])) * b[i]")),
    sign=edited(SILU, ("expf(-a[i])", "expf(a[i])")),
    exchanged=edited(SILU, (_SILU, "a[i] * b[i] / (1.0f + expf(-b[i]))")),
    unguarded=edited(SILU, ("if (i < n) ", "")),
    reversed_walk=edited(
        SILU, ("threadIdx.x;", "threadIdx.x; i = i % 32 * 8 + i / 32 % 8 + i / 256 * 256;")
    ),
)


def silu_with(name, threads=256, blocks=None):
    def silu_mul(a, b):
        out, n = torch.empty_like(a), a.numel()
        grid = math.ceil(n / threads) if blocks is None else blocks
        SILUS[name].silu_mul[grid, threads](a, b, out, n)
        return out

    return silu_mul
