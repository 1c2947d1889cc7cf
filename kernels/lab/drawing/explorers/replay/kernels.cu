// The kernels of chapters 03 to 05 that are replayed, as the chapters show them; a test holds the two
// together. A function has no empty line in it: a page that shows one takes the text around it up
// to the next.

__global__ void copy(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = x[i];
    }
}

__global__ void row_sum(const float* x, float* sums, int n_cols) {
    __shared__ float partial[256];  // blockDim.x: a power of two up to 256
    float mine = 0.0f;
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) {
        mine += x[blockIdx.x * n_cols + col];
    }
    partial[threadIdx.x] = mine;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            partial[threadIdx.x] += partial[threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = partial[0];
    }
}

__global__ void transpose(const float* x, float* y, int n_rows, int n_cols) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < n_rows && col < n_cols) {
        y[col * n_rows + row] = x[row * n_cols + col];
    }
}

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
__device__ float sum_of_columns(const T* row, int n_cols) {
    float sum = 0;
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) sum += float(row[col]);
    return sum;
}

template <typename T>
__device__ float squares_of_columns(const T* row, int n_cols, float mean) {
    float squares = 0;
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) {
        float distance = float(row[col]) - mean;
        squares += distance * distance;
    }
    return squares;
}

__device__ float warp_sum(float value) {
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
    value = warp_sum(lane < n_warps ? of_warp[lane] : 0.0f);
    __syncthreads();  // all have read, before a second call writes
    return value;
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

template <typename T>
__global__ void layer_norm_loops(const T* x, const T* weight, const T* bias, T* y, int n_cols,
                                 float eps) {
    const T* row = x + blockIdx.x * (long long)n_cols;
    T* out = y + blockIdx.x * (long long)n_cols;
    float sum = 0, squares = 0;
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) sum += float(row[col]);
    float mean = block_sum(sum) / n_cols;
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) {
        float distance = float(row[col]) - mean;
        squares += distance * distance;
    }
    float inv_std = rsqrtf(block_sum(squares) / n_cols + eps);
    for (int col = threadIdx.x; col < n_cols; col += blockDim.x) {
        float value = (float(row[col]) - mean) * inv_std;
        out[col] = T(value * float(weight[col]) + float(bias[col]));
    }
}

// As many elements as 16 bytes hold, loaded and stored by one instruction.
template <typename T>
struct alignas(16) Pack {
    static constexpr int SIZE = 16 / sizeof(T);
    T at[SIZE];
};

// Normalise a pack, scale it, shift it, store it.
template <typename T>
__device__ void finish(Pack<T> values, const T* weight, const T* bias, Pack<T>* out,
                       int pack, float mean, float inv_std) {
    Pack<T> scale = ((const Pack<T>*)weight)[pack];
    Pack<T> shift = ((const Pack<T>*)bias)[pack];
    for (int i = 0; i < Pack<T>::SIZE; i++) {
        float value = (float(values.at[i]) - mean) * inv_std;
        values.at[i] = T(value * float(scale.at[i]) + float(shift.at[i]));
    }
    out[pack] = values;
}

template <typename T>
__global__ void layer_norm_packs(const T* x, const T* weight, const T* bias, T* y, int n_cols,
                                 float eps) {
    int n_packs = n_cols / Pack<T>::SIZE;
    const Pack<T>* row = (const Pack<T>*)x + blockIdx.x * (long long)n_packs;
    Pack<T>* out = (Pack<T>*)y + blockIdx.x * (long long)n_packs;
    float sum = 0, squares = 0;
    for (int pack = threadIdx.x; pack < n_packs; pack += blockDim.x) {
        Pack<T> values = row[pack];
        for (int i = 0; i < Pack<T>::SIZE; i++) sum += float(values.at[i]);
    }
    float mean = block_sum(sum) / n_cols;
    for (int pack = threadIdx.x; pack < n_packs; pack += blockDim.x) {
        Pack<T> values = row[pack];
        for (int i = 0; i < Pack<T>::SIZE; i++)
            squares += (float(values.at[i]) - mean) * (float(values.at[i]) - mean);
    }
    float inv_std = rsqrtf(block_sum(squares) / n_cols + eps);
    for (int pack = threadIdx.x; pack < n_packs; pack += blockDim.x)
        finish(row[pack], weight, bias, out, pack, mean, inv_std);
}

template <typename T, int HELD>
__global__ void layer_norm_held(const T* x, const T* weight, const T* bias, T* y,
                                int n_cols, float eps) {
    int n_packs = n_cols / Pack<T>::SIZE, threads = blockDim.x, first = threadIdx.x;
    const Pack<T>* row = (const Pack<T>*)x + blockIdx.x * (long long)n_packs;
    Pack<T>* out = (Pack<T>*)y + blockIdx.x * (long long)n_packs, held[HELD] = {};
    float sum = 0, squares = 0, distance;
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if (first + k * threads < n_packs) held[k] = row[first + k * threads];
    for (int k = 0; k < HELD; k++)
        for (int i = 0; i < Pack<T>::SIZE; i++) sum += float(held[k].at[i]);
    float mean = block_sum(sum) / n_cols;
    for (int k = 0; k < HELD; k++) {
        if (first + k * threads >= n_packs) continue;  // a place past the end
        for (int i = 0; i < Pack<T>::SIZE; i++)
            distance = float(held[k].at[i]) - mean, squares += distance * distance;
    }
    float inv_std = rsqrtf(block_sum(squares) / n_cols + eps);
    for (int k = 0; k < HELD; k++)
        if (first + k * threads < n_packs)
            finish(held[k], weight, bias, out, first + k * threads, mean, inv_std);
}
