// LayerNorm over the rows of x, (rows, n_cols): y = (x - mean) / sqrt(var + eps) * weight + bias.
//
// First the chain, a kernel a step, its sums taken in three ways; then one kernel for all of it:
//   row_mean_by_threads, row_variance_by_threads   a thread sums a row
//   row_mean_by_tree, row_variance_by_tree         a block sums a row, in shared memory
//   row_mean, row_variance                         a block sums a row, by shuffles
//   normalise, scale_shift                         the rest of the chain
//   layer_norm_loops<T, VECTOR>                    one kernel, x read three times
//   layer_norm<T, VECTOR, HELD>                    one kernel, the row stays in registers
//   layer_norm_wide<T, VECTOR>                     one kernel, for a row that registers don't hold
//
// T is float, __half or __nv_bfloat16; every sum is in float. Row r of x begins at r * x_stride
// elements, in 64 bits; rows of y lie one after the other. weight and bias may be null. A kernel
// with a block for each row takes any whole number of warps, up to its bound.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// ------------------------------------------------------------------ sums over a block

__device__ float warp_sum(float value) {
    // After the step with offset o, a lane holds the sum of 32 / o lanes; after all, of the warp.
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffff, value, offset);
    return value;
}

// The sum of `value` over all threads of the block, given to every one of them.
__device__ float block_sum(float value) {
    __shared__ float of_warp[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    value = warp_sum(value);
    if (lane == 0) of_warp[warp] = value;
    __syncthreads();
    // Every warp adds the warps' sums up for itself: nothing has to be handed round.
    value = warp_sum(lane < n_warps ? of_warp[lane] : 0.0f);
    __syncthreads();  // all have read, before a second call writes
    return value;
}

// The same with shared memory alone: half of the threads add the other half's sums, again and
// again. Blocks of TREE_THREADS.
#define TREE_THREADS 256
__device__ float tree_sum(float value) {
    __shared__ float part[TREE_THREADS];
    part[threadIdx.x] = value;
    __syncthreads();
    for (int half_way = TREE_THREADS / 2; half_way > 0; half_way /= 2) {
        if (threadIdx.x < half_way) part[threadIdx.x] += part[threadIdx.x + half_way];
        __syncthreads();
    }
    value = part[0];
    __syncthreads();
    return value;
}

// ------------------------------------------------------------------ the chain, a kernel a step

// A thread a row. Neighbouring threads read addresses a whole row apart: a warp's request touches
// 32 sectors, and wants one element of each.
template <typename T>
__global__ void row_mean_by_threads(const T* x, float* mean, int n_rows, int n_cols,
                                    long long x_stride) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n_rows) return;
    float sum = 0;
    for (int col = 0; col < n_cols; col++) sum += float(x[row * x_stride + col]);
    mean[row] = sum / n_cols;
}

template <typename T>
__global__ void row_variance_by_threads(const T* x, const float* mean, float* variance, int n_rows,
                                        int n_cols, long long x_stride) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n_rows) return;
    float squares = 0, row_mean = mean[row];
    for (int col = 0; col < n_cols; col++) {
        float distance = float(x[row * x_stride + col]) - row_mean;
        squares += distance * distance;
    }
    variance[row] = squares / n_cols;
}

// What a thread of a block adds up: every blockDim.x-th column, so that the lanes of a warp read
// neighbouring addresses.
template <typename T>
__device__ float sum_of_columns(const T* row, int n_cols) {
    float sum = 0;
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) sum += float(row[col]);
    return sum;
}

// The distances from the mean are squared, not x: a large mean would cancel the digits of x².
template <typename T>
__device__ float squares_of_columns(const T* row, int n_cols, float mean) {
    float squares = 0;
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) {
        float distance = float(row[col]) - mean;
        squares += distance * distance;
    }
    return squares;
}

template <typename T>
__global__ void row_mean_by_tree(const T* x, float* mean, int n_cols, long long x_stride) {
    float sum = tree_sum(sum_of_columns(x + blockIdx.x * x_stride, n_cols));
    if (threadIdx.x == 0) mean[blockIdx.x] = sum / n_cols;
}

template <typename T>
__global__ void row_variance_by_tree(const T* x, const float* mean, float* variance, int n_cols,
                                     long long x_stride) {
    const T* row = x + blockIdx.x * x_stride;
    float squares = tree_sum(squares_of_columns(row, n_cols, mean[blockIdx.x]));
    if (threadIdx.x == 0) variance[blockIdx.x] = squares / n_cols;
}

template <typename T>
__global__ void row_mean(const T* x, float* mean, int n_cols, long long x_stride) {
    float sum = block_sum(sum_of_columns(x + blockIdx.x * x_stride, n_cols));
    if (threadIdx.x == 0) mean[blockIdx.x] = sum / n_cols;
}

template <typename T>
__global__ void row_variance(const T* x, const float* mean, float* variance, int n_cols,
                             long long x_stride) {
    const T* row = x + blockIdx.x * x_stride;
    float squares = block_sum(squares_of_columns(row, n_cols, mean[blockIdx.x]));
    if (threadIdx.x == 0) variance[blockIdx.x] = squares / n_cols;
}

template <typename T>
__global__ void normalise(const T* x, const float* mean, const float* variance, float* normalised,
                          int n_cols, long long x_stride, float eps) {
    const T* row = x + blockIdx.x * x_stride;
    float* out = normalised + blockIdx.x * (long long)n_cols;
    float row_mean = mean[blockIdx.x], inv_std = rsqrtf(variance[blockIdx.x] + eps);
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x)
        out[col] = (float(row[col]) - row_mean) * inv_std;
}

template <typename T>
__global__ void scale_shift(const float* normalised, const T* weight, const T* bias, T* y,
                            int n_cols) {
    const float* row = normalised + blockIdx.x * (long long)n_cols;
    T* out = y + blockIdx.x * (long long)n_cols;
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) {
        float scaled = row[col] * (weight ? float(weight[col]) : 1.0f);
        out[col] = T(scaled + (bias ? float(bias[col]) : 0.0f));
    }
}

// ------------------------------------------------------------------ one kernel

// VECTOR elements that are loaded and stored by one instruction; at most 16 bytes. The address
// must be a multiple of that size.
template <typename T, int VECTOR>
struct alignas(sizeof(T) * VECTOR) Pack {
    T at[VECTOR];
};

template <int VECTOR, typename T>
__device__ Pack<T, VECTOR> load(const T* row, int pack) {
    return reinterpret_cast<const Pack<T, VECTOR>*>(row)[pack];
}

// Normalise a pack, scale it, shift it, store it.
template <typename T, int VECTOR>
__device__ void finish(Pack<T, VECTOR> values, const T* weight, const T* bias, T* out, int pack,
                       float mean, float inv_std) {
    Pack<T, VECTOR> scale, shift;
    if (weight) scale = load<VECTOR>(weight, pack);
    if (bias) shift = load<VECTOR>(bias, pack);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        float value = (float(values.at[i]) - mean) * inv_std;
        if (weight) value *= float(scale.at[i]);
        if (bias) value += float(shift.at[i]);
        values.at[i] = T(value);
    }
    reinterpret_cast<Pack<T, VECTOR>*>(out)[pack] = values;
}

#define LOOP_THREADS 256

// A block a row, and no tensor between the steps. But x is asked for three times: what a thread
// read for the mean is gone when it comes to the squares.
template <typename T, int VECTOR>
__global__ void __launch_bounds__(LOOP_THREADS)
    layer_norm_loops(const T* __restrict__ x, const T* __restrict__ weight,
                     const T* __restrict__ bias, T* __restrict__ y, int n_cols, long long x_stride,
                     float eps) {
    const T* row = x + blockIdx.x * x_stride;
    T* out = y + blockIdx.x * (long long)n_cols;
    int n_packs = n_cols / VECTOR;
    float sum = 0, squares = 0;
    for (int pack = threadIdx.x; pack < n_packs; pack += blockDim.x) {
        Pack<T, VECTOR> values = load<VECTOR>(row, pack);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum += float(values.at[i]);
    }
    float mean = block_sum(sum) / n_cols;
    for (int pack = threadIdx.x; pack < n_packs; pack += blockDim.x) {
        Pack<T, VECTOR> values = load<VECTOR>(row, pack);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            float distance = float(values.at[i]) - mean;
            squares += distance * distance;
        }
    }
    float inv_std = rsqrtf(block_sum(squares) / n_cols + eps);
    for (int pack = threadIdx.x; pack < n_packs; pack += blockDim.x)
        finish(load<VECTOR>(row, pack), weight, bias, out, pack, mean, inv_std);
}

// The row is loaded once: each thread keeps its HELD packs in registers, which is why their number
// is known to the compiler. n_cols is at most blockDim.x * HELD * VECTOR. A wider row gets more
// threads as well as more packs in each; the bound tells the compiler how many, and with them how
// many registers a thread may have.
template <typename T, int VECTOR, int HELD>
__global__ void __launch_bounds__(16 * HELD * VECTOR)
    layer_norm(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
               T* __restrict__ y, int n_cols, long long x_stride, float eps) {
    const T* row = x + blockIdx.x * x_stride;
    T* out = y + blockIdx.x * (long long)n_cols;
    int n_packs = n_cols / VECTOR;
    Pack<T, VECTOR> held[HELD];
    // All loads stand before the first use, so that all are under way at the same time.
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int pack = k * blockDim.x + threadIdx.x;
        held[k] = pack < n_packs ? load<VECTOR>(row, pack) : Pack<T, VECTOR>{};
    }
    float sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < HELD; k++)
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sum += float(held[k].at[i]);
    float mean = block_sum(sum) / n_cols;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        // A pack past the end holds zeros: each of them would add mean² to the squares.
        bool inside = k * blockDim.x + threadIdx.x < n_packs;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            float distance = inside ? float(held[k].at[i]) - mean : 0.0f;
            squares += distance * distance;
        }
    }
    float inv_std = rsqrtf(block_sum(squares) / n_cols + eps);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int pack = k * blockDim.x + threadIdx.x;
        if (pack < n_packs) finish(held[k], weight, bias, out, pack, mean, inv_std);
    }
}

// ------------------------------------------------------------------ a row of any width

// Count, mean, and sum of squared distances from the mean: a state that merges.
struct Moments {
    float count, mean, squares;
};

__device__ Moments merge(Moments a, Moments b) {
    float count = a.count + b.count;
    if (count == 0) return a;
    float delta = b.mean - a.mean, share = b.count / count;
    return {count, a.mean + delta * share, a.squares + b.squares + delta * delta * a.count * share};
}

__device__ Moments warp_merge(Moments state) {
    for (int offset = 16; offset > 0; offset /= 2) {
        Moments other = {__shfl_xor_sync(0xffffffff, state.count, offset),
                         __shfl_xor_sync(0xffffffff, state.mean, offset),
                         __shfl_xor_sync(0xffffffff, state.squares, offset)};
        state = merge(state, other);
    }
    return state;
}

__device__ Moments block_merge(Moments state) {
    __shared__ Moments of_warp[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    state = warp_merge(state);
    if (lane == 0) of_warp[warp] = state;
    __syncthreads();
    state = warp_merge(lane < n_warps ? of_warp[lane] : Moments{0, 0, 0});
    // a merged with b is rounded otherwise than b with a: all lanes take lane 0's.
    return {state.count, __shfl_sync(0xffffffff, state.mean, 0),
            __shfl_sync(0xffffffff, state.squares, 0)};
}

// Too wide for the registers: one loop merges what each pack adds to the state, a second one reads
// x again to normalise it. Two reads in place of three.
template <typename T, int VECTOR>
__global__ void __launch_bounds__(LOOP_THREADS)
    layer_norm_wide(const T* __restrict__ x, const T* __restrict__ weight,
                    const T* __restrict__ bias, T* __restrict__ y, int n_cols, long long x_stride,
                    float eps) {
    const T* row = x + blockIdx.x * x_stride;
    T* out = y + blockIdx.x * (long long)n_cols;
    int n_packs = n_cols / VECTOR;
    Moments state = {0, 0, 0};
    for (int pack = threadIdx.x; pack < n_packs; pack += blockDim.x) {
        Pack<T, VECTOR> values = load<VECTOR>(row, pack);
        Moments mine = {VECTOR, 0, 0};
#pragma unroll
        for (int i = 0; i < VECTOR; i++) mine.mean += float(values.at[i]) / VECTOR;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            float distance = float(values.at[i]) - mine.mean;
            mine.squares += distance * distance;
        }
        state = merge(state, mine);
    }
    state = block_merge(state);
    float inv_std = rsqrtf(state.squares / n_cols + eps);
    for (int pack = threadIdx.x; pack < n_packs; pack += blockDim.x)
        finish(load<VECTOR>(row, pack), weight, bias, out, pack, state.mean, inv_std);
}
