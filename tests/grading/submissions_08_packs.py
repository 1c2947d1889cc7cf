"""Answers to 08.7, dropout with a call of Philox for eight elements: right and wrong ones."""

import torch

from tests.grading.submissions_05 import edited, kernels

DROPOUT = r"""
#include "philox.cuh"
struct alignas(16) Pack { __half at[8]; };
__global__ void dropout(const __half* x, const long long* seed_offset, __half* y, int n,
                        unsigned int threshold, float scale) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (8 * i >= n) return;
    bool whole = 8 * i + 8 <= n;
    Pack values = whole ? *(const Pack*)(x + 8 * i) : Pack{};
    uint4 words = dropout_words(seed_offset, i);
    for (int k = 0; k < 8 && 8 * i + k < n; k++) {
        float value = __half2float(whole ? values.at[k] : x[8 * i + k]);
        bool kept = dropout_keeps(words, k, threshold);
        values.at[k] = __float2half(kept ? value * scale : 0.0f);
        if (!whole) y[8 * i + k] = values.at[k];
    }
    if (whole) *(Pack*)(y + 8 * i) = values;
}
"""
_BODY = DROPOUT[DROPOUT.index("    if (8 * i >= n)") : DROPOUT.rindex("}")]
EACH = edited(
    DROPOUT,
    (
        _BODY,
        """    if (i >= n) return;
    bool kept = dropout_keeps(dropout_words(seed_offset, i / 8), i % 8, threshold);
    y[i] = __float2half(kept ? __half2float(x[i]) * scale : 0.0f);
""",
    ),
)
DROPOUTS = kernels(
    alone=3,
    right=DROPOUT,
    strided=r"""
#include "philox.cuh"
__device__ float chosen(__half x, bool kept, float scale) {
    return kept ? float(x) * scale : 0.0f;
}
__global__ void dropout(const __half* x, const long long* seed_offset, __half* y, int n,
                        unsigned int threshold, float scale) {
    int step = gridDim.x * blockDim.x;
    for (int block = blockIdx.x * blockDim.x + threadIdx.x; 8 * block < n; block += step) {
        uint4 words = dropout_words(seed_offset, block);
        if (8 * block + 8 <= n) {
            uint4 pack = ((const uint4*)x)[block];
            __half* at = (__half*)&pack;
            for (int k = 0; k < 8; k++)
                at[k] = chosen(at[k], dropout_keeps(words, k, threshold), scale);
            ((uint4*)y)[block] = pack;
        } else {
            for (int e = 8 * block; e < n; e++)
                y[e] = chosen(x[e], dropout_keeps(words, e % 8, threshold), scale);
        }
    }
}
""",
    by_bits=edited(
        DROPOUT,
        (
            "uint4 words = dropout_words(seed_offset, i);",
            "uint4 all = dropout_words(seed_offset, i);\n"
            "    unsigned int words[4] = {all.x, all.y, all.z, all.w};",
        ),
        (
            "dropout_keeps(words, k, threshold)",
            "(words[k / 2] >> (k % 2 * 16) & 0xffff) >= threshold",
        ),
    ),
    each=EACH,
    eight_calls=edited(
        DROPOUT,
        ("    uint4 words = dropout_words(seed_offset, i);\n", ""),
        (
            "dropout_keeps(words,",
            "dropout_keeps(dropout_words(seed_offset + 0 * k, i),",
        ),
    ),
    single=edited(
        DROPOUT,
        ("whole = 8 * i + 8 <= n", "whole = false"),
    ),
    first_number=edited(DROPOUT, ("dropout_keeps(words, k,", "dropout_keeps(words, 0,")),
    block_0=edited(DROPOUT, ("dropout_words(seed_offset, i)", "dropout_words(seed_offset, 0)")),
    first_index=edited(
        DROPOUT, ("dropout_words(seed_offset, i)", "dropout_words(seed_offset, 8 * i)")
    ),
    own_index=edited(EACH, ("i / 8", "i")),
    multiplied=edited(DROPOUT, ("kept ? value * scale : 0.0f", "value * scale * kept")),
    unscaled=edited(DROPOUT, ("value * scale", "value")),
    exchanged=edited(DROPOUT, ("kept ? value * scale : 0.0f", "kept ? 0.0f : value * scale")),
    no_rest=edited(DROPOUT, ("if (8 * i >= n) return", "if (8 * i + 8 > n) return")),
    overrun=edited(DROPOUT, ("bool whole = 8 * i + 8 <= n", "bool whole = true")),
    no_offset=edited(
        DROPOUT, ("dropout_words(seed_offset, i)", "philox(seed_offset[0], make_uint4(i, 0, 0, 0))")
    ),
)


def dropout_with(name, per_block=8 * 256, blocks=None):
    def my_cuda_dropout(x, seed_offset, threshold, scale):
        n, y = x.numel(), torch.empty_like(x)
        grid = -(-n // per_block) if blocks is None else blocks(n)
        DROPOUTS[name].dropout[grid, 256](x, seed_offset, y, n, threshold, scale)
        return y

    return my_cuda_dropout
