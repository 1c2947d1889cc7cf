// y = x · wᵀ + b: x (M, K), w (N, K), b (N,) or null, y (M, N), rows of x and w in elements apart.
//
//   linear_by_threads<T>      one output a thread, straight from memory
//   linear_by_tiles<T, TILE>  one output a thread; a block keeps a tile of x and of w in shared memory
//
// T is float, __half or __nv_bfloat16; sums are in float. A block is a row of threads, and the grid
// a row of blocks: the tiles of y, row by row.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// A warp's lanes are neighbours in n: they read one element of x, and 32 of w, a row apart each.
template <typename T>
__global__ void linear_by_threads(const T* x, const T* w, const T* b, T* y, int M, int N, int K,
                                  long long x_stride, long long w_stride) {
    long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at >= (long long)M * N) return;
    long long m = at / N, n = at % N;
    float sum = 0;
    for (int k = 0; k < K; k++) sum += float(x[m * x_stride + k]) * float(w[n * w_stride + k]);
    if (b) sum += float(b[n]);
    y[at] = T(sum);
}

// The TILE × TILE threads of a block fetch a tile of x and one of w together, an element each, and
// then each multiplies a row of the one by a row of the other: TILE uses of an element fetched once.
template <typename T, int TILE>
__global__ void linear_by_tiles(const T* x, const T* w, const T* b, T* y, int M, int N, int K,
                                long long x_stride, long long w_stride) {
    __shared__ float x_tile[TILE][TILE + 1];  // a column more: TILE rows in TILE banks
    __shared__ float w_tile[TILE][TILE + 1];
    int across = threadIdx.x % TILE, down = threadIdx.x / TILE;
    int tiles_n = (N + TILE - 1) / TILE;
    int first_m = blockIdx.x / tiles_n * TILE, first_n = blockIdx.x % tiles_n * TILE;
    long long m = first_m + down, n = first_n + across, w_row = first_n + down;
    float sum = 0;
    for (int start = 0; start < K; start += TILE) {
        int k = start + across;  // neighbouring threads fetch neighbouring elements of both
        x_tile[down][across] = m < M && k < K ? float(x[m * x_stride + k]) : 0.0f;
        w_tile[down][across] = w_row < N && k < K ? float(w[w_row * w_stride + k]) : 0.0f;
        __syncthreads();  // all is there
        for (int i = 0; i < TILE; i++) sum += x_tile[down][i] * w_tile[across][i];
        __syncthreads();  // all is used, before the next tiles come
    }
    if (m >= M || n >= N) return;
    if (b) sum += float(b[n]);
    y[m * N + n] = T(sum);
}
