// The fused chain with the generator that most examples use: a state for every thread, made from
// the seed by curand_init, of which one number is drawn. Compare one_launch of
// bias_gelu_dropout_residual.cu, which needs no state. It needs cuRAND's header, and so a GPU.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <curand_kernel.h>

template <typename T>
__global__ void stateful(const T* x, const T* bias, const T* residual,
                         const long long* seed_offset, T* y, long long n, int n_cols, float p) {
    long long e = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (e >= n) return;
    curandState state;
    curand_init(seed_offset[0], e, seed_offset[1], &state);
    float v = float(x[e]) + float(bias[e % n_cols]);
    float u = 0.7978845608f * (v + 0.044715f * v * v * v);
    float value = curand_uniform(&state) > p ? v / (1.0f + __expf(-2.0f * u)) / (1.0f - p) : 0.0f;
    y[e] = T(value + float(residual[e]));
}
