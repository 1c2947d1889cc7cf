// y = residual + dropout(gelu(LayerNorm(x))) over the rows of x, in one kernel.
//
//   norm_chain<T, HELD>    the row stays in registers, HELD blocks of eight elements in a thread
//   norm_chain_loops<T>    any row: x read three times, an element at a time
//
// It stands behind layernorm.cu, whose block_sum, Pack and load it uses. T is float, __half or
// __nv_bfloat16; arithmetic is in float. A block takes a row; row r of x begins at r * x_stride
// elements, of residual at r * residual_stride. weight and bias may be null.
#include "philox.cuh"

// The tanh form as v times a sigmoid of 2u. The quotient is a reciprocal and a product: that it
// goes to 0 from a divisor of 2^126 on is what it does anyway.
__device__ float gelu_of(float v) {
    float u = 0.7978845608f * (v + 0.044715f * v * v * v);
    return __fdividef(v, 1.0f + __expf(-2.0f * u));
}

__device__ float chained(float h, float residual, bool kept, float scale) {
    return residual + (kept ? gelu_of(h) * scale : 0.0f);
}

// Needs n_cols to be a multiple of 8, at most 8 * HELD * blockDim.x, and all rows to begin at
// multiples of 16 bytes. Then a call of Philox serves the eight elements that a thread loads.
template <typename T, int HELD>
__global__ void __launch_bounds__(128 * HELD)
    norm_chain(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
               const T* __restrict__ residual, const long long* seed_offset, T* __restrict__ y,
               int n_cols, long long x_stride, long long residual_stride, float eps,
               unsigned int threshold, float scale) {
    constexpr int SIZE = 16 / sizeof(T), PACKS = 8 / SIZE;
    constexpr bool EARLY = sizeof(T) == 2;  // residual's floats beside x's would spill
    const T* row = x + blockIdx.x * x_stride;
    const T* added = residual + blockIdx.x * residual_stride;
    long long first = blockIdx.x * (long long)n_cols;
    Pack<T, SIZE> held[HELD][PACKS], onto[HELD][PACKS] = {};
    uint4 words[HELD];
    // All loads stand before the random numbers, which are made while these are under way.
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int block = k * blockDim.x + threadIdx.x;
#pragma unroll
        for (int j = 0; j < PACKS; j++) {
            bool inside = 8 * block < n_cols;
            held[k][j] = inside ? load<SIZE>(row, block * PACKS + j) : Pack<T, SIZE>{};
            if (EARLY && inside) onto[k][j] = load<SIZE>(added, block * PACKS + j);
        }
    }
#pragma unroll
    for (int k = 0; k < HELD; k++)
        words[k] = dropout_words(seed_offset, first / 8 + k * blockDim.x + threadIdx.x);
    float sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < HELD; k++)
#pragma unroll
        for (int i = 0; i < 8; i++) sum += float(held[k][i / SIZE].at[i % SIZE]);
    float mean = block_sum(sum) / n_cols;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        bool inside = 8 * (k * blockDim.x + threadIdx.x) < n_cols;  // else zeros stand there
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float distance = inside ? float(held[k][i / SIZE].at[i % SIZE]) - mean : 0.0f;
            squares += distance * distance;
        }
    }
    float inv_std = rsqrtf(block_sum(squares) / n_cols + eps);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int block = k * blockDim.x + threadIdx.x;
        if (8 * block >= n_cols) return;
#pragma unroll
        for (int j = 0; j < PACKS; j++) {
            Pack<T, SIZE> factor, shift;
            if (!EARLY) onto[k][j] = load<SIZE>(added, block * PACKS + j);
            if (weight) factor = load<SIZE>(weight, block * PACKS + j);
            if (bias) shift = load<SIZE>(bias, block * PACKS + j);
#pragma unroll
            for (int i = 0; i < SIZE; i++) {
                bool kept = dropout_keeps(words[k], j * SIZE + i, threshold);
                float h = (float(held[k][j].at[i]) - mean) * inv_std;
                if (weight) h *= float(factor.at[i]);
                if (bias) h += float(shift.at[i]);
                held[k][j].at[i] = T(chained(h, float(onto[k][j].at[i]), kept, scale));
            }
            reinterpret_cast<Pack<T, SIZE>*>(y + first)[block * PACKS + j] = held[k][j];
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(LOOP_THREADS)
    norm_chain_loops(const T* __restrict__ x, const T* __restrict__ weight,
                     const T* __restrict__ bias, const T* __restrict__ residual,
                     const long long* seed_offset, T* __restrict__ y, int n_cols,
                     long long x_stride, long long residual_stride, float eps,
                     unsigned int threshold, float scale) {
    const T* row = x + blockIdx.x * x_stride;
    const T* added = residual + blockIdx.x * residual_stride;
    long long first = blockIdx.x * (long long)n_cols;
    float mean = block_sum(sum_of_columns(row, n_cols)) / n_cols;
    float squares = block_sum(squares_of_columns(row, n_cols, mean));
    float inv_std = rsqrtf(squares / n_cols + eps);
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) {
        long long e = first + col;
        bool kept = dropout_keeps(dropout_words(seed_offset, e / 8), e % 8, threshold);
        float h = (float(row[col]) - mean) * inv_std;
        if (weight) h *= float(weight[col]);
        if (bias) h += float(bias[col]);
        y[e] = T(chained(h, float(added[col]), kept, scale));
    }
}
