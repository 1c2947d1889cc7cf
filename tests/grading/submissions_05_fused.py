"""Answers to 05.6 and 05.7: states that merge, a LayerNorm in packs; right and wrong ones."""

import torch

from tests.grading.submissions_05 import edited, kernels

# 05.6: a weighted variance by states that merge.
VARIANCE = r"""
struct Moments { float weight, mean, squares; };
__device__ Moments merge(Moments a, Moments b) {
    float weight = a.weight + b.weight;
    if (weight == 0) return {0, 0, 0};
    float delta = b.mean - a.mean, share = b.weight / weight;
    return {weight, a.mean + delta * share,
            a.squares + b.squares + delta * delta * a.weight * share};
}
__device__ Moments warp_merge(Moments state) {
    for (int offset = 16; offset > 0; offset /= 2)
        state = merge(state, {__shfl_xor_sync(0xffffffff, state.weight, offset),
                              __shfl_xor_sync(0xffffffff, state.mean, offset),
                              __shfl_xor_sync(0xffffffff, state.squares, offset)});
    return state;
}
__global__ void row_variance(const float* x, const float* w, float* out, int n_rows, int n_cols) {
    int lane = threadIdx.x % 32, row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= n_rows) return;
    Moments state = {0, 0, 0};
    for (int col = lane; col < n_cols; col += 32)
        state = merge(state, {w[col], x[row * n_cols + col], 0});
    state = warp_merge(state);
    if (lane == 0) out[row] = state.squares / state.weight;
}
"""
_KERNEL = VARIANCE[VARIANCE.index("__global__") :]
_LOOP = _KERNEL[_KERNEL.index("    Moments state") : _KERNEL.index("    state = warp_merge")]
VARIANCES = kernels(
    alone=5,
    right=VARIANCE,
    a_block=edited(
        VARIANCE,
        (
            _KERNEL,
            """
__global__ void row_variance(const float* x, const float* w, float* out, int n_rows, int n_cols) {
    __shared__ Moments of_warp[8];
    Moments state = {0, 0, 0};
    for (int col = threadIdx.x; col < n_cols; col += 256)
        state = merge(state, {w[col], x[blockIdx.x * n_cols + col], 0});
    state = warp_merge(state);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = state;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < 8; warp++) state = merge(state, of_warp[warp]);
        out[blockIdx.x] = state.squares / state.weight;
    }
}
""",
        ),
    ),
    down=edited(
        VARIANCE,
        ("__shfl_xor_sync", "__shfl_down_sync"),
        (
            "delta * delta * a.weight * share",
            "delta * (b.mean - (a.mean + delta * share)) * b.weight",
        ),
    ),
    one_by_one=edited(
        VARIANCE,
        (
            _LOOP,
            """    Moments state = {0, 0, 0};
    for (int col = lane; col < n_cols; col += 32) {
        float weight = w[col], value = x[row * n_cols + col], delta = value - state.mean;
        state.weight += weight;
        if (weight > 0) state.mean += delta * (weight / state.weight);
        state.squares += weight * delta * (value - state.mean);
    }
""",
        ),
    ),
    kept_a=edited(VARIANCE, ("return {0, 0, 0}", "return a")),
    rounded=edited(
        VARIANCE,
        (
            _LOOP,
            """    Moments state = {0, 0, 0};
    for (int col = lane; col < n_cols; col += 32) {
        float weight = w[col], value = x[row * n_cols + col], delta = value - state.mean;
        state.weight += weight;
        if (weight > 0) state.mean += delta * weight / state.weight;
        state.squares += weight * delta * (value - state.mean);
    }
""",
        ),
    ),
    unguarded=edited(VARIANCE, ("    if (weight == 0) return {0, 0, 0};\n", "")),
    no_row=edited(VARIANCE, ("    if (row >= n_rows) return;\n", "")),
    no_delta=edited(VARIANCE, (" + delta * delta * a.weight * share", "")),
    no_lanes=edited(VARIANCE, ("    state = warp_merge(state);\n", "")),
    half=edited(VARIANCE, ("offset = 16", "offset = 8")),
    early=edited(VARIANCE, ("offset > 0", "offset > 1")),
    unweighted=edited(VARIANCE, ("{w[col], x", "{1.0f + 0.0f * w[col], x")),
    squares=edited(VARIANCE, ("squares / state.weight", "squares")),
    by_columns=edited(VARIANCE, ("state.squares / state.weight", "state.squares / n_cols")),
    root=edited(VARIANCE, ("state.squares / state.weight", "sqrtf(state.squares / state.weight)")),
    mean=edited(VARIANCE, ("state.squares / state.weight", "state.mean")),
    read_again=edited(
        VARIANCE,
        (
            "    state = warp_merge(state);\n",
            """    state = warp_merge(state);
    state.squares = 0;
    for (int col = lane; col < n_cols; col += 32) {
        float distance = x[row * n_cols + col] - state.mean;
        state.squares += w[col] * distance * distance;
    }
    for (int offset = 16; offset > 0; offset /= 2)
        state.squares += __shfl_xor_sync(0xffffffff, state.squares, offset);
""",
        ),
    ),
    sums=r"""
__global__ void row_variance(const float* x, const float* w, float* out, int n_rows, int n_cols) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row >= n_rows) return;
    float weight = 0, sum = 0, squares = 0;
    for (int col = threadIdx.x % 32; col < n_cols; col += 32) {
        float value = x[row * n_cols + col];
        weight += w[col], sum += w[col] * value, squares += w[col] * value * value;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        weight += __shfl_xor_sync(0xffffffff, weight, offset);
        sum += __shfl_xor_sync(0xffffffff, sum, offset);
        squares += __shfl_xor_sync(0xffffffff, squares, offset);
    }
    if (threadIdx.x % 32 == 0) out[row] = squares / weight - sum / weight * (sum / weight);
}
""",
    through_shared=edited(
        VARIANCE,
        (
            "    state = warp_merge(state);\n",
            """    __shared__ Moments of_thread[256];
    of_thread[threadIdx.x] = state;
    __syncwarp();
    if (lane == 0)
        for (int i = 1; i < 32; i++) state = merge(state, of_thread[threadIdx.x + i]);
""",
        ),
    ),
)


def variance_with(name, rows_a_block=8, threads=256, fewer=0):
    def row_variance(x, w):
        rows, n_cols = x.shape
        out = torch.empty(rows, device=x.device)
        grid = -(-rows // rows_a_block) - fewer
        VARIANCES[name].row_variance[grid, threads](x, w, out, rows, n_cols)
        return out

    return row_variance


# 05.7: a LayerNorm in fp16.
LAYER_NORM = r"""
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
template <int SIZE>
struct alignas(2 * SIZE) Pack {
    __half at[SIZE];
};
template <int SIZE, int HELD>
__global__ void layer_norm(const __half* x, const __half* weight, const __half* bias, __half* y,
                           int n_cols, float eps) {
    int first = threadIdx.x, n_packs = n_cols / SIZE;
    const Pack<SIZE>* row = (const Pack<SIZE>*)(x + blockIdx.x * n_cols);
    Pack<SIZE>* out = (Pack<SIZE>*)(y + blockIdx.x * n_cols);
    Pack<SIZE> held[HELD] = {};
    float sum = 0, squares = 0;
    for (int k = 0; k < HELD; k++)
        if (first + k * 256 < n_packs) held[k] = row[first + k * 256];
    for (int k = 0; k < HELD; k++)
        for (int i = 0; i < SIZE; i++) sum += float(held[k].at[i]);
    float mean = block_sum(sum) / n_cols;
    for (int k = 0; k < HELD; k++)
        for (int i = 0; i < SIZE && first + k * 256 < n_packs; i++)
            squares += (float(held[k].at[i]) - mean) * (float(held[k].at[i]) - mean);
    float inv_std = rsqrtf(block_sum(squares) / n_cols + eps);
    for (int k = 0; k < HELD; k++) {
        int pack = first + k * 256;
        if (pack >= n_packs) continue;
        for (int i = 0; i < SIZE; i++) {
            float value = (float(held[k].at[i]) - mean) * inv_std;
            int col = pack * SIZE + i;
            held[k].at[i] = __half(value * float(weight[col]) + float(bias[col]));
        }
        out[pack] = held[k];
    }
}
"""
_SQUARE = "(float(held[k].at[i]) - mean) * (float(held[k].at[i]) - mean)"
LAYER_NORMS = kernels(
    "layer_norm<8, 1>",
    "layer_norm<1, 8>",
    "layer_norm<1, 4>",
    alone=3,
    right=LAYER_NORM,
    in_floats=r"""
__device__ float block_sum(float value, float* of_warp) {
    for (int offset = 1; offset < 32; offset *= 2)
        value += __shfl_xor_sync(0xffffffff, value, offset);
    if (threadIdx.x % 32 == 31) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < 8; warp++) value += of_warp[warp];
    return value;
}
template <int SIZE> struct alignas(2 * SIZE) Pack { __half at[SIZE]; };
template <int SIZE, int HELD>
__global__ void layer_norm(const __half* x, const __half* weight, const __half* bias, __half* y,
                           int n_cols, float eps) {
    __shared__ float sums[8], more[8];
    float value[HELD][SIZE], sum = 0, squares = 0;
    for (int k = 0; k < HELD; k++) {
        int col = (k * 256 + threadIdx.x) * SIZE;
        Pack<SIZE> pack = {};
        if (col < n_cols) pack = *(const Pack<SIZE>*)(x + blockIdx.x * n_cols + col);
        for (int i = 0; i < SIZE; i++) sum += value[k][i] = __half2float(pack.at[i]);
    }
    sum = block_sum(sum, sums);
    for (int k = 0; k < HELD; k++)
        for (int i = 0; i < SIZE; i++) {
            bool inside = (k * 256 + threadIdx.x) * SIZE < n_cols;
            value[k][i] -= sum / n_cols;
            squares += inside ? value[k][i] * value[k][i] : 0.0f;
        }
    float scale = 1.0f / sqrtf(block_sum(squares, more) / n_cols + eps);
    for (int k = 0; k < HELD; k++) {
        int col = (k * 256 + threadIdx.x) * SIZE;
        Pack<SIZE> pack;
        if (col >= n_cols) continue;
        for (int i = 0; i < SIZE; i++)
            pack.at[i] = __half(value[k][i] * scale * float(weight[col + i]) +
                                float(bias[col + i]));
        *(Pack<SIZE>*)(y + blockIdx.x * n_cols + col) = pack;
    }
}
""",
    backwards=edited(
        LAYER_NORM,
        ("first = threadIdx.x,", "first = 255 - threadIdx.x,"),
        (
            "rsqrtf(block_sum(squares) / n_cols + eps)",
            "1.0f / sqrtf(eps + block_sum(squares) / n_cols)",
        ),
        ("block_sum(sum) / n_cols", "block_sum(sum) * (1.0f / n_cols)"),
    ),
    looping=edited(
        LAYER_NORM,
        ("held[k] = row[first + k * 256];", "held[k].at[0] = row[first + k * 256].at[0];"),
        (
            "sum += float(held[k].at[i])",
            "sum += first + k * 256 < n_packs ? float(row[first + k * 256].at[i]) : 0.0f",
        ),
        ("float value = (float(held[k].at[i])", "float value = (float(row[pack].at[i])"),
        (_SQUARE, _SQUARE.replace("held[k]", "row[first + k * 256]")),
    ),
    narrow=edited(
        LAYER_NORM,
        (
            "held[k] = row[first + k * 256];",
            "for (int i = 0; i < SIZE; i++) held[k].at[i] = row[first + k * 256].at[i];",
        ),
    ),
    narrow_store=edited(
        LAYER_NORM,
        ("out[pack] = held[k];", "for (int i = 0; i < SIZE; i++) out[pack].at[i] = held[k].at[i];"),
    ),
    unmasked=edited(LAYER_NORM, ("i < SIZE && first + k * 256 < n_packs", "i < SIZE")),
    one_pass=edited(
        LAYER_NORM,
        (_SQUARE, "float(held[k].at[i]) * float(held[k].at[i])"),
        ("block_sum(squares) / n_cols + eps", "block_sum(squares) / n_cols - mean * mean + eps"),
    ),
    half_sum=edited(
        LAYER_NORM, ("float sum = 0, squares", "__half sum = 0.0f;\n    float squares")
    ),
    half_value=edited(
        LAYER_NORM,
        ("float value = (float", "__half value = (float"),
        ("(value *", "(float(value) *"),
    ),
    no_barrier=edited(
        LAYER_NORM, ("value += of_warp[warp];\n    __syncthreads();", "value += of_warp[warp];")
    ),
    short=edited(LAYER_NORM, ("n_packs = n_cols / SIZE;", "n_packs = min(n_cols / SIZE, 128);")),
    no_weight=edited(LAYER_NORM, ("value * float(weight[col])", "value")),
    unbiased=edited(
        LAYER_NORM, ("block_sum(squares) / n_cols", "block_sum(squares) / (n_cols - 1.0f)")
    ),
)


def layer_norm_with(name, always=None, packs_of=8):
    def my_layer_norm(x, weight, bias, eps):
        rows, n_cols = x.shape
        y = torch.empty_like(x)
        fits = "layer_norm<1, 8>" if n_cols % packs_of else "layer_norm<8, 1>"
        LAYER_NORMS[name][always or fits][rows, 256](x, weight, bias, y, n_cols, eps)
        return y

    return my_layer_norm
