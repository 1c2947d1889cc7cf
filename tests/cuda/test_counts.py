"""Counted bytes, sectors and bank conflicts against figures derived by hand."""

import pytest
import torch

from kernels.cuda import cuda

WALKS = r"""
__global__ void copy(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}
__global__ void strided(const float* x, float* y, int stride) {
    y[threadIdx.x] = x[threadIdx.x * stride];
}
__global__ void shifted(const float* x, float* y, int shift) {
    y[threadIdx.x] = x[threadIdx.x + shift];
}
__global__ void four(const float4* x, float4* y) {
    float4 v = x[threadIdx.x];
    v.x *= 2;
    y[threadIdx.x] = v;
}
__global__ void broadcast(const float* x, float* y) {
    y[threadIdx.x] = x[0];
}
__global__ void transpose(const float* x, float* y, int n) {
    int i = threadIdx.y, j = threadIdx.x;
    y[j * n + i] = x[i * n + j];
}
__global__ void looped(const float* x, float* y, int n) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    y[threadIdx.x] = sum;
}
__global__ void halves(const __half* x, __half* y) {
    y[threadIdx.x] = x[threadIdx.x];
}
__global__ void bump(int* count) {
    atomicAdd(count, 1);
}
__global__ void banks(float* y, int stride) {
    __shared__ float tile[32 * 33];
    tile[threadIdx.x * stride] = 1;
    y[threadIdx.x] = tile[threadIdx.x * stride];
}
"""
MODULE = cuda(WALKS)


def line_of(text):
    return 1 + [text in line for line in WALKS.splitlines()].index(True)


def loads(counts, argument="x"):
    (one,) = [a for a in counts.lines if a.argument == argument and a.kind == "load"]
    return one


def test_contiguous_copy():
    x, y = torch.randn(1000), torch.zeros(1000)
    counts = MODULE.copy[8, 128](x, y, 1000)
    assert torch.equal(x, y)
    assert list(counts.totals()) == [("x", 4000, 4000, 0, 0), ("y", 0, 0, 4000, 4000)]
    # 32 warps have an active lane: 31 whole ones of 4 sectors, and 8 lanes in one sector.
    assert (loads(counts).requests, loads(counts).sectors) == (32, 125)
    assert loads(counts).line == line_of("y[i] = x[i]")
    assert loads(counts).efficiency == 1.0
    assert counts.bytes_sectors == 2 * 4000


@pytest.mark.parametrize(("stride", "sectors"), [(1, 4), (2, 8), (3, 12), (8, 32), (32, 32)])
def test_strided_load(stride, sectors):
    x, y = torch.randn(31 * stride + 1), torch.zeros(32)
    one = loads(MODULE.strided[1, 32](x, y, stride))
    assert (one.requests, one.sectors, one.bytes_requested) == (1, sectors, 128)
    assert one.efficiency == 128 / (32 * sectors)


@pytest.mark.parametrize(("shift", "sectors"), [(0, 4), (1, 5), (7, 5), (8, 4)])
def test_misaligned_load(shift, sectors):
    one = loads(MODULE.shifted[1, 32](torch.randn(64), torch.zeros(32), shift))
    assert (one.requests, one.sectors) == (1, sectors)


def test_a_view_keeps_its_alignment():
    one = loads(MODULE.shifted[1, 32](torch.randn(64)[1:], torch.zeros(32), 0))
    assert one.sectors == 5


def test_float4_is_one_access_of_16_bytes():
    x, y = torch.randn(128), torch.zeros(128)
    counts = MODULE.four[1, 32](x, y)
    assert {(a.width, a.requests, a.sectors, a.efficiency) for a in counts.lines} == {
        (16, 1, 16, 1.0)
    }
    assert list(counts.totals()) == [("x", 512, 512, 0, 0), ("y", 0, 0, 512, 512)]
    assert torch.equal(y.view(32, 4)[:, 0], 2 * x.view(32, 4)[:, 0])
    assert torch.equal(y.view(32, 4)[:, 1:], x.view(32, 4)[:, 1:])


def test_broadcast_is_asked_for_by_every_lane():
    counts = MODULE.broadcast[1, 64](torch.randn(5), torch.zeros(64))
    assert next(iter(counts.totals())) == ("x", 4, 256, 0, 0)
    one = loads(counts)
    assert (one.requests, one.sectors, one.efficiency) == (2, 2, 4 / 32)


def test_transposed_store():
    x, y = torch.randn(32, 32), torch.zeros(32, 32)
    counts = MODULE.transpose[1, (32, 32)](x, y, 32)
    assert torch.equal(y, x.T)
    by_kind = {a.kind: (a.requests, a.sectors) for a in counts.lines}
    assert by_kind == {"load": (32, 128), "store": (32, 1024)}


def test_a_loop_is_one_request_per_turn():
    # 5 whole turns of 64 threads and 30 threads of a sixth: 4 sectors in each of 11 requests,
    # the last of which has 30 lanes.
    one = loads(MODULE.looped[1, 64](torch.randn(350), torch.zeros(64), 350))
    assert (one.requests, one.sectors, one.bytes_requested) == (11, 44, 1400)


def test_halves_are_two_bytes():
    x, y = torch.randn(64).half(), torch.zeros(64).half()
    counts = MODULE.halves[1, 64](x, y)
    assert torch.equal(x, y)
    assert (loads(counts).width, loads(counts).requests, loads(counts).sectors) == (2, 2, 4)


def test_an_atomic_is_one_read_and_one_write():
    count = torch.zeros(1, dtype=torch.int32)
    counts = MODULE.bump[4, 64](count)
    assert int(count) == 256
    assert list(counts.totals()) == [("count", 4, 1024, 4, 1024)]


@pytest.mark.parametrize(
    ("stride", "conflicts"), [(1, 0), (2, 1), (4, 3), (16, 15), (32, 31), (33, 0), (0, 0)]
)
def test_bank_conflicts(stride, conflicts):
    # With stride 0 all lanes store to one word: two threads, no barrier. So one thread alone.
    threads = 32 if stride else 1
    counts = MODULE.banks[1, threads](torch.zeros(32), stride)
    found = {(one.kind, one.requests, one.conflicts) for one in counts.banks}
    assert found == {("load", 1, conflicts), ("store", 1, conflicts)}


def test_two_views_of_the_same_bytes_count_once():
    x = torch.randn(128)
    counts = MODULE.copy[1, 128](x, x, 128)
    assert list(counts.totals()) == [("x", 512, 512, 512, 0), ("y", 0, 0, 0, 512)]


def test_the_trace_holds_every_request():
    x, y = torch.randn(40), torch.zeros(40)
    counts = MODULE.copy[2, 32].traced(x, y, 40)
    seen = [(a.program, a.argument, a.kind, a.offsets.size, a.itemsize) for a in counts.trace]
    assert sorted(seen) == [
        (0, "x", "load", 32, 4),
        (0, "y", "store", 32, 4),
        (1, "x", "load", 8, 4),
        (1, "y", "store", 8, 4),
    ]
    last = next(a for a in counts.trace if a.program == 1 and a.kind == "load")
    assert last.offsets.tolist() == list(range(32, 40))
    assert last.threads.tolist() == list(range(8))
    assert last.line == line_of("y[i] = x[i]")


PATTERNS = {
    "neighbours": lambda lane: lane,
    "one_address": lambda lane: 0 * lane,
    "a_hole": lambda lane: torch.where((lane > 9) & (lane < 20), -1, lane),
    "the_first_lanes_out": lambda lane: torch.where(lane < 5, -1, lane),
    "every_other_lane": lambda lane: torch.where(lane % 2 == 1, -1, lane),
    "reversed": lambda lane: 31 - lane,
    "pairs": lambda lane: lane // 2,
    "a_step_at_17": lambda lane: lane + 9 * (lane >= 17),
    "strided": lambda lane: 3 * lane,
    "far_apart": lambda lane: 32 * (lane % 4),
    "one_lane": lambda lane: torch.where(lane == 13, lane, -1),
    "shuffled": lambda lane: (5 * lane + 3) % 32,
}
GATHER = r"""
template <typename T> __global__ void gather(const T* x, const int* index, T* y, int shift) {
    int from = index[threadIdx.x];
    if (from >= 0) y[threadIdx.x] = x[from + shift];
}
template <typename T> __global__ void banks(const int* index, T* y) {
    __shared__ T tile[200];
    for (int i = threadIdx.x; i < 200; i += 32) tile[i] = y[threadIdx.x];
    __syncthreads();
    int from = index[threadIdx.x];
    if (from >= 0) {
        y[threadIdx.x] = tile[from];
    }
}
"""
WIDTHS = [("signed char", 1, torch.int8), ("short", 2, torch.int16), ("float", 4, torch.float32),
          ("double", 8, torch.float64), ("float2", 8, torch.float32),
          ("float4", 16, torch.float32)]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("kind", "width", "dtype"), WIDTHS, ids=[w[0] for w in WIDTHS])
def test_sectors_and_distinct_bytes_of_any_shape_of_request(pattern, kind, width, dtype):
    index = PATTERNS[pattern](torch.arange(32)).int()
    for shift in (0, 3):
        x = torch.zeros(150 * width // dtype.itemsize, dtype=dtype)
        y = torch.zeros(32 * width // dtype.itemsize, dtype=dtype)
        counts = cuda(GATHER)[f"gather<{kind}>"][1, 32](x, index, y, shift)
        places = (index[index >= 0].long() + shift) * width
        bytes_touched = (places[:, None] + torch.arange(width)).unique()
        one = loads(counts)
        assert (one.requests, one.bytes_requested) == (1, len(places) * width)
        assert one.bytes_distinct == len(bytes_touched)
        assert one.sectors == len((bytes_touched // 32).unique())


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("kind", "width", "dtype"), WIDTHS, ids=[w[0] for w in WIDTHS])
def test_passes_over_the_banks_of_any_shape_of_request(pattern, kind, width, dtype):
    index = PATTERNS[pattern](torch.arange(32)).int()
    y = torch.zeros(32 * width // dtype.itemsize, dtype=dtype)
    counts = cuda(GATHER)[f"banks<{kind}>"][1, 32](index, y)
    # 32 lanes go together, or as many as 128 bytes have room for; a word is fetched once.
    group, passes = min(32, 128 // width), 0
    for lanes in index.long().split(group):
        places = lanes[lanes >= 0] * width
        if len(places):
            words = (places[:, None] + torch.arange(width)).unique() // 4
            passes += int(torch.bincount(words.unique() % 32).max())
    (one,) = [b for b in counts.banks if b.kind == "load"]
    assert one.requests == 1
    assert one.wavefronts == passes


APART = r"""
__global__ void strips(const float* x, float* y, int n) {
    // Each lane takes one turn in 32, and in each turn one lane loads.
    float sum = 0;
    for (int i = 0; i < n; i++)
        if (i % 32 == threadIdx.x) sum += x[8 * i];
    y[threadIdx.x] = sum;
}
__global__ void causal(const float* x, float* y, int n) {
    // Lane l has no part in the first l turns; those that have one take neighbours.
    float sum = 0;
    for (int j = 0; j < n; j++)
        if (j >= threadIdx.x) sum += x[32 * j + threadIdx.x];
    y[threadIdx.x] = sum;
}
__global__ void nested(const float* x, float* y, int n) {
    // The inner loop has as many turns as the lane's number says, and each outer turn begins anew.
    float sum = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < threadIdx.x % 4; j++) sum += x[(4 * i + j) * 32 + threadIdx.x];
    for (int i = 0; i < n; i++) sum += x[32 * i + threadIdx.x]; // after
    y[threadIdx.x] = sum;
}
__global__ void before(const float* x, float* y, int n) {
    // All lanes load in each turn, before an inner loop that some lanes skip in some turns.
    float sum = 0;
    for (int i = 0; i < n; i++) {
        sum += x[32 * i + threadIdx.x];
        int turns = (threadIdx.x + i) % 3;
        for (int j = 0; j < turns; j++) sum += x[(n + 2 * i + j) * 32 + threadIdx.x];
    }
    y[threadIdx.x] = sum;
}
__global__ void counted(int* count, const float* x, float* y, int n) {
    for (int i = 0; i < n; i++)
        if (threadIdx.x % 2 == i % 2) {
            atomicAdd(count, 1);
            y[32 * i + threadIdx.x] = x[32 * i + threadIdx.x];
        }
}
"""


def requests_of(counts, argument="x"):
    return [(a.requests, a.sectors) for a in counts.lines if a.argument == argument]


def test_loads_in_different_turns_are_different_requests():
    counts = cuda(APART).strips[1, 32](torch.ones(8 * 256), torch.zeros(32), 256)
    assert requests_of(counts) == [(256, 256)]


def test_loads_in_one_turn_are_one_request_however_many_lanes_had_before():
    n = 40
    counts = cuda(APART).causal[1, 32](torch.ones(32 * n), torch.zeros(32), n)
    # Lanes 0 to j take part in turn j: a sector for every 8 of them.
    assert requests_of(counts) == [(n, sum(-(-min(j + 1, 32) // 8) for j in range(n)))]


def test_inner_loops_of_different_lengths_meet_again():
    n = 5
    counts = cuda(APART).nested[1, 32](torch.ones(128 * n), torch.zeros(32), n)
    # In the inner loop's turns 0, 1 and 2 some lanes of every sector take part.
    assert sorted(requests_of(counts)) == [(n, 4 * n), (3 * n, 12 * n)]


def test_lanes_that_skip_an_inner_loop_come_back_with_the_others():
    n = 6
    counts = cuda(APART).before[1, 32](torch.ones(96 * n), torch.zeros(32), n)
    assert sorted(requests_of(counts)) == [(n, 4 * n), (2 * n, 8 * n)]


def test_an_atomic_is_no_loop_of_its_own():
    n, count = 6, torch.zeros(1, dtype=torch.int32)
    counts = cuda(APART).counted[1, 32](count, torch.ones(32 * n), torch.zeros(32 * n), n)
    assert requests_of(counts) == [(n, 4 * n)]
    assert int(count) == 16 * n
