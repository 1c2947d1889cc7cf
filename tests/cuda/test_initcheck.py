"""Reads of global memory that nobody wrote are named, and no right kernel is blamed."""

import numpy as np
import pytest
import torch

import kernels.ops  # noqa: F401  (registers the operations)
from kernels import KernelError, registry
from kernels.cuda import cuda, initcheck
from tests.cuda.kernels_under_test import CASES, floats

# Right kernels that store all of `out` before any of it is read: it may be made empty.
OVERWRITES = [
    "add", "tree_sum", "layernorm", "transpose", "scan", "softmax", "matmul", "stencil",
    "vector_copy", "half_add", "bf16_scale", "typed", "in_warp", "gather", "half_warp", "activate",
    "last_block",
]  # fmt: skip
CHAIN = r"""
__global__ void pad(const float* x, float* padded, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) padded[i + 1] = x[i];
    // edges
    if (i == 0) { padded[0] = 0; padded[n + 1] = 0; }
}
__global__ void blur(const float* padded, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = padded[i] + padded[i + 1] + padded[i + 2];
}
__global__ void accumulate(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}
__global__ void total(const float* x, float* sum, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(sum, x[i]);
}
__global__ void exchange(float* slot) {
    atomicExch(slot, 1.0f);
}
__global__ void partial(const float* x, float* parts, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && threadIdx.x == 0) parts[blockIdx.x] = x[i];
}
__global__ void finish(const float* parts, float* sum, int n_parts) {
    float all = 0;
    for (int i = 0; i < n_parts; i++) all += parts[i];
    sum[0] = all;
}
__global__ void neighbour(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] + y[(i + 1) % n];
}
__global__ void pick(const int* index, const float* x, float* y) {
    y[threadIdx.x] = x[index[threadIdx.x]];
}
__global__ void four(const float4* x, float4* y) {
    y[threadIdx.x] = x[threadIdx.x];
}
__global__ void bytes(const signed char* x, signed char* y) {
    y[threadIdx.x] = x[threadIdx.x];
}
"""
MODULE = cuda(CHAIN)


def line_of(text):
    return 1 + [text in line for line in CHAIN.splitlines()].index(True)


def blamed(launch, *arguments):
    with pytest.raises(KernelError) as caught:
        launch(*arguments)
    assert caught.value.kind == "uninitialised", str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", CASES)
def test_no_right_kernel_is_blamed(name):
    case = CASES[name]
    with initcheck():
        counts, got, want = case.run()
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    assert counts.bytes_unique > 0


@pytest.mark.parametrize("name", OVERWRITES)
def test_an_empty_output_is_filled_and_nobody_blamed(name):
    case = CASES[name]
    with initcheck():
        arguments = list(case.arguments())
        want = case.expected(*arguments)
        arguments[case.out] = torch.empty_like(arguments[case.out])
        cuda(case.source)[case.kernel][case.launch](*arguments)
        got = arguments[case.out]
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


IN_CUDA = [
    (op.name, name)
    for op in registry.ops()
    for name, variant in op.variants.items()
    if variant.counted == "cuda"
]


@pytest.mark.parametrize(("op", "variant"), IN_CUDA, ids=["-".join(pair) for pair in IN_CUDA])
def test_no_kernel_of_the_package_is_blamed(op, variant):
    op = registry.get(op)
    shapes = {2: ((3, 72), (2, 1031)), 3: ((3, 72, 24), (2, 131, 17))}[len(op.dims)]
    for shape, dtype in zip(shapes, (torch.float16, torch.float32), strict=True):
        with initcheck():
            inputs = op.inputs(shape, dtype, "cpu", seed=1)
            out = op.variant(variant).fn(**inputs)
        assert not bool(out.isnan().any())


def test_adding_to_an_empty_output():
    with initcheck():
        x, y = floats(70), torch.empty(70)
        error = blamed(MODULE.accumulate[3, 32], x, y, 70)
    assert (error.argument, error.index, error.program) == ("y", 0, (0, 0, 0))
    assert error.line == line_of("y[i] += x[i]")
    assert "a load at index 0 of 'y', which was made empty" in str(error)
    assert "thread (0, 0, 0)" in str(error)


def test_an_atomic_sum_that_starts_from_nothing():
    with initcheck():
        error = blamed(MODULE.total[1, 32], floats(32), torch.empty(1), 32)
        assert "an atomic at index 0 of 'sum'" in str(error)
        MODULE.total[1, 32](floats(32), torch.empty(1).zero_(), 32)


def test_an_exchange_needs_no_value_before_it():
    with initcheck():
        slot = torch.empty(1)
        MODULE.exchange[1, 1](slot)
    assert slot.item() == 1


def test_a_halo_that_nobody_wrote():
    source = CHAIN.replace("if (i == 0) { padded[0] = 0; padded[n + 1] = 0; }", "")
    for module, edge in ((cuda(source), True), (MODULE, False)):
        with initcheck():
            x, y, padded = floats(100), torch.empty(100), torch.empty(102)
            module.pad[4, 32](x, padded, 100)
            if edge:
                error = blamed(module.blur[4, 32], padded, y, 100)
                assert (error.argument, error.index) == ("padded", 0)
                padded[0] = 0
                error = blamed(module.blur[4, 32], padded, y, 100)
                assert (error.argument, error.index, error.program) == ("padded", 101, (3, 0, 0))
                assert "thread (3, 0, 0)" in str(error)
                padded[101:].fill_(0)
            module.blur[4, 32](padded, y, 100)
        both = torch.nn.functional.pad(x, (1, 1))
        torch.testing.assert_close(y, both[:-2] + both[1:-1] + both[2:])


def test_partial_sums_of_blocks_that_had_nothing_to_do():
    with initcheck():
        parts, out = torch.empty(4), torch.empty(1)
        MODULE.partial[4, 32](floats(90), parts, 90)
        MODULE.finish[1, 1](parts[:3], out, 3)
        error = blamed(MODULE.finish[1, 1], parts, out, 4)
        assert (error.argument, error.index) == ("parts", 3)
        error = blamed(MODULE.finish[1, 1], parts[3:], out, 1)
        assert (error.argument, error.index) == ("parts", 0)
        parts = torch.zeros(4)
        MODULE.partial[4, 32](floats(90), parts, 90)
        MODULE.finish[1, 1](parts, out, 4)


def test_a_fault_in_a_kernel_leaves_its_output_unwritten():
    with initcheck():
        y, out = torch.empty(8), torch.empty(1)
        with pytest.raises(KernelError, match="index 8 of 'parts'"):
            MODULE.finish[1, 1](torch.zeros(8), y, 9)
        assert blamed(MODULE.finish[1, 1], y, out, 8).index == 0


@pytest.mark.parametrize("blocks", [1, 2])
def test_an_element_that_another_thread_writes_is_a_race(blocks):
    # Thread 0 reads what thread 1 stores, in one block or in the next.
    with initcheck(), pytest.raises(KernelError) as caught:
        MODULE.neighbour[blocks, 2 // blocks](floats(2), torch.empty(2), 2)
    assert caught.value.kind == "race"


def test_an_address_made_of_nothing_is_blamed_on_where_it_came_from():
    with initcheck():
        error = blamed(
            MODULE.pick[1, 32], torch.empty(32, dtype=torch.int32), floats(32), torch.empty(32)
        )
    assert (error.argument, error.index) == ("index", 0)


def test_a_wide_load_names_the_first_element_that_is_missing():
    with initcheck():
        x = torch.empty(128)
        x[:126] = 1
        assert blamed(MODULE.four[1, 32], x, torch.empty(128)).index == 126


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.zero_(),
        lambda x: x.copy_(floats(32)),
        lambda x: x.view(4, 8).T.fill_(2),
        lambda x: torch.add(x.new_zeros(32), 1, out=x),
        lambda x: x.index_put_((torch.arange(32),), torch.ones(32)),
        lambda x: torch._foreach_zero_([x]),
        lambda x: x.normal_(),
        lambda x: [part.fill_(1) for part in x.split(5)],
        lambda x: x.view(torch.int32).fill_(1),
        lambda x: x.numpy().fill(1),
        lambda x: x.set_(torch.ones(32)),
    ],
)
def test_what_was_written_by_any_means_is_written(write):
    with initcheck():
        x, y = torch.empty(32), torch.empty(32)
        write(x)
        MODULE.partial[32, 1](x, y, 32)
        assert torch.equal(x, y)


@pytest.mark.parametrize("columns", [slice(0, 7), slice(1, 8), slice(0, 8, 2)])
def test_a_partly_written_view_is_told_apart_to_the_element(columns):
    with initcheck():
        x, y = torch.empty(4, 8), torch.empty(32)
        x[:, columns] = 3.0
        written = torch.zeros(4, 8, dtype=torch.bool)
        written[:, columns] = True
        for i in range(32):
            alone = x.view(-1)[i : i + 1]
            if written.view(-1)[i]:
                MODULE.partial[1, 1](alone, y, 1)
            else:
                assert blamed(MODULE.partial[1, 1], alone, y, 1).argument == "x"


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(32),
        lambda: torch.empty_like(torch.ones(32)),
        lambda: torch.ones(1).new_empty(32),
        lambda: torch.empty_strided((32,), (1,)),
        lambda: torch.Tensor(32),
        lambda: torch.empty(8, 4).T,
        lambda: torch.empty(64)[32:],
        lambda: torch.empty(32, dtype=torch.float64).view(torch.float32)[:32],
    ],
)
def test_every_way_to_make_nothing(make):
    with initcheck():
        assert blamed(MODULE.partial[32, 1], make(), torch.empty(32), 32).argument == "x"


@pytest.mark.parametrize(
    "make",
    [
        torch.zeros,
        torch.ones,
        torch.rand,
        lambda n: torch.arange(1.0 * n),
        lambda n: torch.tensor([2.0] * n),
        lambda n: torch.from_numpy(np.ones(n, np.float32)),
        lambda n: torch.full((n,), float("nan")),
    ],
)
def test_what_is_made_with_a_value_is_written(make):
    with initcheck():
        MODULE.partial[32, 1](make(32), torch.empty(32), 32)


def test_single_bytes_are_told_apart():
    with initcheck():
        x, y = torch.empty(64, dtype=torch.int8), torch.empty(64, dtype=torch.int8)
        x[:40] = torch.arange(40)
        x[40:50] = x.numpy()[50]  # the very bits that nobody wrote
        MODULE.bytes[1, 50](x, y)
        assert blamed(MODULE.bytes[1, 64], x, y).index == 50


def test_memory_that_is_used_again_is_not_taken_for_the_old():
    with initcheck():
        for _ in range(20):
            x = torch.empty(32)
            del x
            MODULE.partial[32, 1](floats(32), torch.empty(32), 32)


def test_outside_of_it_nothing_is_checked():
    x, y = torch.empty(32), torch.empty(32)
    MODULE.partial[32, 1](x, y, 32)
    with initcheck():
        MODULE.partial[32, 1](x, y, 32)  # made before: nobody knows
        with initcheck():
            inner = torch.empty(32)
        blamed(MODULE.partial[32, 1], inner, y, 32)
    MODULE.partial[32, 1](inner, y, 32)


def test_what_is_left_out_shows_in_the_output():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        with initcheck():
            assert torch.empty(7, dtype=dtype).isnan().all()
