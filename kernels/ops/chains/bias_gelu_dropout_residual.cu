// y = residual + dropout(gelu(x + bias)) over x of (rows, n_cols), row after row in memory.
//
// First the chain, a kernel a step, an element a thread; then one kernel for all of it:
//   add_bias, gelu, dropout, add_residual   the chain
//   one_launch<T>                           one kernel, a call of Philox for every element
//   fused<T>                                one kernel, a call for eight elements, any n_cols
//   fused_packs<T>                          the same with 16 bytes a load and store
//
// T is float, __half or __nv_bfloat16; arithmetic is in float. What an element draws depends on
// its index alone (philox.cuh), so that every one of them keeps the same elements.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "philox.cuh"

// The tanh form, 0.5 v (1 + tanh(u)), written as v times a sigmoid of 2u: one exponential.
__device__ float gelu_of(float v) {
    float u = 0.7978845608f * (v + 0.044715f * v * v * v);
    return v / (1.0f + __expf(-2.0f * u));
}

__device__ long long this_element() { return blockIdx.x * (long long)blockDim.x + threadIdx.x; }

// ------------------------------------------------------------------ the chain, a kernel a step

template <typename T>
__global__ void add_bias(const T* x, const T* bias, T* out, long long n, int n_cols) {
    long long e = this_element();
    if (e < n) out[e] = T(float(x[e]) + float(bias[e % n_cols]));
}

template <typename T>
__global__ void gelu(const T* x, T* out, long long n) {
    long long e = this_element();
    if (e < n) out[e] = T(gelu_of(float(x[e])));
}

template <typename T>
__global__ void dropout(const T* x, const long long* seed_offset, T* out, long long n,
                        unsigned int threshold, float scale) {
    long long e = this_element();
    if (e >= n) return;
    float value = x[e];  // a dropped one too: its sector comes along with its neighbours
    bool kept = dropout_keeps(dropout_words(seed_offset, e / 8), e % 8, threshold);
    out[e] = T(kept ? value * scale : 0.0f);
}

template <typename T>
__global__ void add_residual(const T* x, const T* residual, T* y, long long n) {
    long long e = this_element();
    if (e < n) y[e] = T(float(x[e]) + float(residual[e]));
}

// ------------------------------------------------------------------ one kernel

__device__ float finished(float x, float bias, float residual, bool kept, float scale) {
    return residual + (kept ? gelu_of(x + bias) * scale : 0.0f);
}

// Nothing between the steps goes to memory. But the eight elements of a block of random numbers
// belong to eight threads, and each makes all eight numbers to use one.
template <typename T>
__global__ void one_launch(const T* x, const T* bias, const T* residual,
                           const long long* seed_offset, T* y, long long n, int n_cols,
                           unsigned int threshold, float scale) {
    long long e = this_element();
    if (e >= n) return;
    bool kept = dropout_keeps(dropout_words(seed_offset, e / 8), e % 8, threshold);
    y[e] = T(finished(float(x[e]), float(bias[e % n_cols]), float(residual[e]), kept, scale));
}

// A thread takes the eight elements that share a call of Philox.
template <typename T>
__global__ void fused(const T* __restrict__ x, const T* __restrict__ bias,
                      const T* __restrict__ residual, const long long* seed_offset,
                      T* __restrict__ y, long long n, int n_cols, unsigned int threshold,
                      float scale) {
    long long first = 8 * this_element();
    if (first >= n) return;
    uint4 words = dropout_words(seed_offset, first / 8);
    int col = first % n_cols;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (first + i >= n) return;
        bool kept = dropout_keeps(words, i, threshold);
        y[first + i] = T(finished(float(x[first + i]), float(bias[col]),
                                  float(residual[first + i]), kept, scale));
        if (++col == n_cols) col = 0;
    }
}

// 16 bytes of elements, which one instruction loads or stores.
template <typename T>
struct alignas(16) Pack {
    T at[16 / sizeof(T)];
};

// A row begins at a multiple of 8 elements, so the eight of a thread are neighbours in one row:
// one pack of 16-bit elements, two packs of float. Blocks along y share a row.
template <typename T>
__global__ void fused_packs(const T* __restrict__ x, const T* __restrict__ bias,
                            const T* __restrict__ residual, const long long* seed_offset,
                            T* __restrict__ y, int n_cols, unsigned int threshold, float scale) {
    constexpr int SIZE = 16 / sizeof(T), PACKS = 8 / SIZE;
    int col = 8 * (blockIdx.y * blockDim.x + threadIdx.x);
    if (col >= n_cols) return;
    long long first = blockIdx.x * (long long)n_cols + col;
    Pack<T> in[PACKS], add[PACKS], onto[PACKS];
    // All loads stand before the random numbers, which are made while these are under way.
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        in[k] = reinterpret_cast<const Pack<T>*>(x + first)[k];
        onto[k] = reinterpret_cast<const Pack<T>*>(residual + first)[k];
        add[k] = reinterpret_cast<const Pack<T>*>(bias + col)[k];
    }
    uint4 words = dropout_words(seed_offset, first / 8);
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            bool kept = dropout_keeps(words, k * SIZE + i, threshold);
            in[k].at[i] = T(finished(float(in[k].at[i]), float(add[k].at[i]),
                                     float(onto[k].at[i]), kept, scale));
        }
        reinterpret_cast<Pack<T>*>(y + first)[k] = in[k];
    }
}
