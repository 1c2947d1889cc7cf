"""What a GPU does and a CPU doesn't by itself; right kernels that look like faulty ones."""

import pytest
import torch

from kernels import KernelError
from kernels.cuda import cuda, initcheck
from kernels.cuda.signature import has_variables
from tests.cuda.kernels_under_test import floats


def failing(launch, *arguments):
    with pytest.raises(KernelError) as caught:
        launch(*arguments)
    assert "\n" not in str(caught.value)
    return caught.value


# ------------------------------------------------------------------ bytes and structs

COPIES = r"""
__global__ void copy(const char* x, char* y, int each, int n) {
    int start = each * threadIdx.x;
    if (start < n) memcpy(y + start, x + start, min(each, n - start));
}
__global__ void three(const float* x, float* y) {
    memcpy(y + 3 * threadIdx.x, x + 3 * threadIdx.x, 12);
}
__global__ void shift(char* x, int n) {
    memmove(x + 1, x, n);
}
__global__ void fill(char* y, int value, int n) {
    std::memset(y, value, n);
}
"""


@pytest.mark.parametrize("each", [1, 3, 5, 12, 100, 3000])
def test_a_copy_of_any_size_is_made_and_counted(each):
    n = 4000 if each > 100 else 32 * each - 1
    x, y = torch.arange(n).to(torch.int8), torch.zeros(n, dtype=torch.int8)
    counts = cuda(COPIES).copy[1, 32](x, y, each, n)
    assert torch.equal(x, y)
    assert list(counts.totals()) == [("x", n, n, 0, 0), ("y", 0, 0, n, n)]


def test_a_copy_of_a_known_size_is_made_and_counted():
    x, y = floats(96), torch.zeros(96)
    counts = cuda(COPIES).three[1, 32](x, y)
    assert torch.equal(x, y)
    assert counts.bytes_sectors == 2 * 384


def test_bytes_are_moved_and_filled():
    x = torch.arange(20, dtype=torch.int8)
    cuda(COPIES).shift[1, 1](x, 19)
    assert x.tolist() == [0, *range(19)]
    cuda(COPIES).fill[1, 1](x, -1, 7)
    assert x.tolist() == [-1] * 7 + list(range(6, 19))


def test_a_copy_past_the_end_is_named():
    x, y = torch.zeros(20, dtype=torch.int8), torch.zeros(19, dtype=torch.int8)
    error = failing(cuda(COPIES).copy[1, 1], x, y, 20, 20)
    assert (error.kind, error.argument, error.line) == ("bounds", "y", 4)


def test_a_struct_from_a_function_that_is_not_inlined_is_stored():
    source = r"""
struct Three { float a, b, c; };
__noinline__ __device__ Three made(float x) { return Three{x, 2 * x, 3 * x}; }
__global__ void store(const float* x, float* y) { ((Three*)y)[threadIdx.x] = made(x[threadIdx.x]); }
"""
    x, y = floats(8), torch.zeros(24)
    counts = cuda(source).store[1, 8](x, y)
    assert torch.equal(y, (x[:, None] * torch.tensor([1.0, 2.0, 3.0])).flatten())
    assert list(counts.totals()) == [("x", 32, 32, 0, 0), ("y", 0, 0, 96, 96)]


# ------------------------------------------------------------------ variables of the source

VARIABLES = r"""
__device__ int launches;
__device__ float table[4] = {1, 2, 3, 4};
__global__ void put(int place, float value) { launches++; table[place] = value; }
__global__ void get(int* n, float* all) {
    if (threadIdx.x == 0) *n = launches;
    all[threadIdx.x] = table[threadIdx.x];
}
__global__ void fail(float* x) { launches = 100; x[1000000] = 1; }
"""


def test_device_variables_live_from_one_launch_to_the_next():
    module, n, table = cuda(VARIABLES), torch.zeros(1, dtype=torch.int32), torch.zeros(4)
    for place in (1, 3):
        module.put[1, 1](place, 7.0)
    assert failing(module.fail[1, 1], table).kind == "bounds"
    module.get[1, 4](n, table)
    assert (n.item(), table.tolist()) == (2, [1.0, 7.0, 3.0, 7.0])
    cuda(VARIABLES).get[1, 4](n, table)  # another module has its own
    assert (n.item(), table.tolist()) == (0, [1.0, 2.0, 3.0, 4.0])


LAST_BLOCK = r"""
__device__ unsigned int count = 0;
__global__ void total(const float* x, float* parts, float* out, int n) {
    __shared__ bool is_last;
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[blockIdx.x * n + i];
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = sum;
        __threadfence();
        is_last = atomicInc(&count, gridDim.x) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && threadIdx.x == 0) {
        float all = 0;
        for (int i = 0; i < gridDim.x; i++) all += parts[i];
        *out = all;
        count = 0;
    }
}
"""


def test_the_last_block_may_add_what_all_have_stored():
    module, x, out = cuda(LAST_BLOCK), torch.ones(40), torch.zeros(1)
    for _ in range(2):
        module.total[4, 64](x, torch.zeros(4), out, 10)
        assert out.item() == 40
    unordered = LAST_BLOCK.replace("atomicInc(&count, gridDim.x)", "blockIdx.x")
    assert failing(cuda(unordered).total[4, 64], x, torch.zeros(4), out, 10).kind == "race"


# ------------------------------------------------------------------ conversions and shifts


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("y[0] = (int)x[0]", 1e20),
        ("y[0] = (int)x[0]", -3e9),
        ("y[0] = x[0]", float("nan")),
        ("y[0] = (unsigned)x[0]", -1.0),
        ("y[0] = (unsigned)x[0]", 5e9),
    ],
)
def test_a_number_that_fits_no_integer_is_told(code, value):
    source = f"__global__ void f(const float* x, int* y) {{\n    {code};\n}}"
    error = failing(cuda(source).f[1, 1], torch.tensor([value]), torch.zeros(1, dtype=torch.int32))
    assert (error.kind, error.line) == ("conversion", 2)
    assert f"{value:g} does not fit the type" in str(error)


@pytest.mark.parametrize(("code", "by"), [("1u << n", 32), ("1 << n", -1), ("n >> n", 40)])
def test_a_shift_of_all_bits_is_told(code, by):
    source = f"__global__ void f(int n, int* y) {{\n    y[0] = {code};\n}}"
    error = failing(cuda(source).f[1, 1], by, torch.zeros(1, dtype=torch.int32))
    assert (error.kind, error.line) == ("conversion", 2)
    assert f"a number of 32 bits is shifted by {by}" in str(error)


def test_what_says_that_it_saturates_does():
    source = r"""
__global__ void f(const float* x, int* y, unsigned* z) {
    int i = threadIdx.x;
    y[i] = __float2int_rz(x[i]);
    z[i] = __float2uint_rn(x[i]);
}
"""
    x = torch.tensor([1e20, -1e20, float("nan"), -1.7, 2.5, 3e9])
    y, z = torch.zeros(6, dtype=torch.int32), torch.zeros(6, dtype=torch.int64).to(torch.uint32)
    cuda(source).f[1, 6](x, y, z)
    assert y.tolist() == [2**31 - 1, -(2**31), 0, -1, 2, 2**31 - 1]
    assert z.tolist() == [2**32 - 1, 0, 0, 0, 2, 3000000000]


# ------------------------------------------------------------------ what is no race

TWO_TYPES = r"""
template <typename T> __device__ T total(T value) {
    __shared__ T all[32];
    all[threadIdx.x] = value;
    __syncthreads();
    T sum = 0;
    for (int i = 0; i < 32; i++) sum += all[i];
    return sum;
}
__global__ void f(float* y, int* z) {
    float a = total(1.5f);
    int b = total(2);
    y[threadIdx.x] = a;
    z[threadIdx.x] = b;
}
"""


def test_each_instance_of_a_template_has_its_own_shared_memory():
    y, z = torch.zeros(32), torch.zeros(32, dtype=torch.int32)
    cuda(TWO_TYPES).f[1, 32](y, z)
    assert (y.tolist(), z.tolist()) == ([48.0] * 32, [64] * 32)


LARGEST = r"""
__device__ void keep_largest(float* place, float value) {
    int* bits = (int*)place;
    int old = *bits, assumed;
    do {
        assumed = old;
        old = atomicCAS(bits, assumed, __float_as_int(fmaxf(value, __int_as_float(assumed))));
    } while (assumed != old);
}
__global__ void largest(const float* x, float* y) {
    keep_largest(y, x[blockIdx.x * blockDim.x + threadIdx.x]);
    // after
}
__global__ void in_block(const float* x, float* y) {
    __shared__ float all;
    if (threadIdx.x == 0) atomicExch(&all, -INFINITY);
    __syncthreads();
    keep_largest(&all, x[blockIdx.x * blockDim.x + threadIdx.x]);
    __syncthreads(); // all
    if (threadIdx.x == 0) y[blockIdx.x] = all;
}
"""


def test_the_loop_around_a_compare_and_swap_is_no_race():
    module, x, y = cuda(LARGEST), floats(256), torch.full((1,), -9.0)
    module.largest[4, 64](x, y)
    assert y.item() == x.max().item()
    y = torch.zeros(4)
    module.in_block[4, 64](x, y)
    assert torch.equal(y, x.view(4, 64).amax(1))


def test_a_read_of_what_an_atomic_stored_is_one_all_the_same():
    x = floats(256)
    unordered = cuda(LARGEST.replace("__syncthreads(); // all", ""))
    assert failing(unordered.in_block[4, 64], x, torch.zeros(4)).kind == "race"
    reads = cuda(LARGEST.replace("// after", "y[1 + threadIdx.x] = y[0];"))
    assert failing(reads.largest[1, 64], x, torch.zeros(65)).kind == "race"


SAME = r"""
__global__ void f(const float* x, float* y) {
    __shared__ float first;
    first = x[0];
    y[1] = x[0] + 1;
    __syncthreads();
    if (threadIdx.x == 0) y[0] = first;
}
"""


def test_lanes_of_a_warp_may_store_one_value_to_one_address():
    x, y = floats(64), torch.zeros(2)
    cuda(SAME).f[1, 32](x, y)
    assert torch.equal(y, torch.stack([x[0], x[0] + 1]))
    for source, threads in ((SAME, 64), (SAME.replace("= x[0]", "= x[threadIdx.x]"), 32)):
        assert failing(cuda(source).f[1, threads], x, y).kind == "race"


SCAN = r"""
template <typename T> __global__ void suffix(const T* x, T* y) {
    int lane = threadIdx.x;
    T sum = x[lane];
    for (int step = 1; step < 32; step *= 2) {
        T other = __shfl_down_sync(0xffffffff, sum, step);
        if (lane + step < blockDim.x) sum += other;
    }
    y[lane] = sum;
}
"""


@pytest.mark.parametrize("kind", [("float", torch.float32), ("int", torch.int32)])
def test_what_no_lane_gave_may_be_thrown_away(kind):
    name, dtype = kind
    x, y = (10 * floats(20)).to(dtype), torch.zeros(20, dtype=dtype)
    cuda(SCAN)[f"suffix<{name}>"][1, 20](x, y)
    torch.testing.assert_close(y, x.flip(0).cumsum(0).flip(0).to(dtype))
    used = cuda(SCAN.replace("lane + step < blockDim.x", "lane + step < 32"))
    error = failing(used[f"suffix<{name}>"][1, 20], x, y)
    assert (error.kind, error.line) == ("collective", 6)
    assert "a shuffle from lane 20, which the block is too small to have" in str(error)


# ------------------------------------------------------------------ threads that wait

FLAG = r"""
__global__ void first_waits(float* y) {
    __shared__ volatile int flag;
    __shared__ float kept;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x == WAITS) {
        while (flag == 0) {}
        y[0] = kept;
    }
    if (threadIdx.x == GIVES) {
        kept = 3;
        __threadfence_block();
        flag = 1;
    }
}
__global__ void locked(int* lock, float* y) {
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            y[0] += 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}
"""


@pytest.mark.parametrize(("waits", "gives"), [(0, 1), (0, 40), (40, 0), (5, 2)])
def test_a_thread_may_wait_for_another(waits, gives):
    source, y = FLAG.replace("WAITS", str(waits)).replace("GIVES", str(gives)), torch.zeros(1)
    counts = cuda(source, time_limit_s=5.0).first_waits[1, 64](y)
    assert y.item() == 3
    assert "not judged" in counts.note


def test_a_lock_is_taken_in_turn():
    source = FLAG.replace("WAITS", "0").replace("GIVES", "1")
    lock, y = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    cuda(source, time_limit_s=5.0).locked[3, 64](lock, y)
    assert y.item() == 192
    unlocked = source.replace("atomicCAS(lock, 0, 1) == 0", "lock")
    assert failing(cuda(unlocked).locked[1, 64], lock, torch.zeros(1)).kind == "race"


def test_a_flag_that_nobody_raises_ends_by_its_time():
    source = FLAG.replace("WAITS", "0").replace("GIVES", "100")
    assert (
        failing(cuda(source, time_limit_s=1.0).first_waits[1, 64], torch.zeros(1)).kind == "timeout"
    )


def test_volatile_alone_orders_nothing():
    source = r"""
__global__ void f(const float* x, float* y) {
    __shared__ volatile float kept[32];
    kept[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = kept[31 - threadIdx.x];
}
"""
    assert failing(cuda(source).f[1, 32], floats(32), torch.zeros(32)).kind in (
        "race", "uninitialised"
    )  # fmt: skip


# ------------------------------------------------------------------ what ends a launch

ENDS = r"""
#include <cassert>
__global__ void checked(const float* x) {
    assert(x[threadIdx.x] < 3.0f);
}
__global__ void trapped(const float* x) {
    if (x[threadIdx.x] >= 3)
        __trap();
}
"""


def test_a_failed_assertion_and_a_trap_tell_their_line():
    module, x = cuda(ENDS), torch.arange(5.0)
    module.checked[1, 3](x)
    module.trapped[1, 3](x)
    error = failing(module.checked[1, 5], x)
    assert (error.kind, error.line) == ("assert", 4)
    assert "thread (3, 0, 0), line 4: the assertion `x[threadIdx.x] < 3.0f` does not hold" in str(
        error
    )
    error = failing(module.trapped[1, 5], x)
    assert (error.kind, error.line) == ("assert", 8)
    assert "thread (3, 0, 0), line 8: __trap() was reached" in str(error)


def test_an_exchange_may_be_the_first_to_write_what_is_empty():
    with initcheck():
        y = torch.empty(4)
        cuda(LARGEST).in_block[4, 64](floats(256), y)
    assert not y.isnan().any()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("__device__ int count;", True),
        ("static __device__ volatile float table[4] = {1, 2, 3, 4};", True),
        ("__device__ float twice(float x) { float y = 2 * x; return y; }", False),
        ("__device__ float twice(float x);", False),
        ("// __device__ int count;", False),
    ],
)
def test_a_variable_is_told_from_a_function(line, told):
    assert has_variables(f"{line}\n__global__ void f(float* x) {{ int i = 0; x[i] = 1; }}") == told


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_device_variables_live_on_a_gpu_too():
    n, table = torch.zeros(1, dtype=torch.int32, device="cuda"), torch.zeros(4, device="cuda")
    # A tensor says where a kernel runs.
    anchor = torch.zeros(1, device="cuda")
    module = cuda(VARIABLES.replace("int place, float", "float* on, int place, float"))
    for place in (1, 3):
        module.put[1, 1](anchor, place, 7.0)
    module.get[1, 4](n, table)
    assert (n.item(), table.tolist()) == (2, [1.0, 7.0, 3.0, 7.0])


def test_kernels_that_share_variables_are_compiled_together():
    module = cuda(VARIABLES)
    assert module.together(module.get.signature) == ("put", "get", "fail")
    alone = cuda(LARGEST)
    assert alone.together(alone.largest.signature) == ("largest",)
