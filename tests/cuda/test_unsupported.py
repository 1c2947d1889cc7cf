"""What the emulator doesn't take is refused in a sentence, and the kernels beside it are not."""

import pytest
import torch

from kernels.cuda import CudaError, cuda

GOOD = "\n__global__ void good(float* y) {\n    y[threadIdx.x] = 2;\n}\n"
GROUPS = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
# (what stands before the kernel, what stands in it, words of the sentence)
PARTS = [
    (GROUPS, "auto block = cg::this_thread_block(); block.sync();", "cooperative groups are not"),
    (
        "#include <cooperative_groups.h>\nusing namespace cooperative_groups;\n",
        "thread_block block = this_thread_block(); block.sync();",
        "use __syncthreads(), __syncwarp()",
    ),
    (
        "#include <mma.h>\nusing namespace nvcuda;\n",
        "wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;",
        "tl.dot in Triton",
    ),
    ("", 'int lane; asm volatile("mov.u32 %0, %laneid;" : "=r"(lane));', "inline PTX (asm) is not"),
    ("#include <curand_kernel.h>\n", "curandState state;", "philox"),
    ("#include <cub/cub.cuh>\n", "cub::BlockReduce<float, 32> all;", "CUB and Thrust are not"),
    ("#include <thrust/reduce.h>\n", "thrust::plus<float> add;", "reduce with __shfl_xor_sync"),
    ("#include <cuda/barrier>\n", "cuda::barrier<1> all;", "asynchronous copies"),
    ("", "float v = tex1Dfetch<float>(0, 1);", "textures"),
    ("", "unsigned mask = __activemask();", "name the lanes that take part"),
    ("", "good<<<1, 1>>>(y);", "launch from Python"),
    ("", "cudaDeviceSynchronize();", "calls of the CUDA runtime"),
]
HOST = [
    ("void go(float* y) { good<<<1, 1>>>(y); }", "a launch with <<<...>>> is not part of a kernel"),
    ("int main() { return 0; }", "a function main() is not part"),
    ("void go(float* y) { cudaMalloc(&y, 4); }", "calls of the CUDA runtime are not"),
]


@pytest.mark.parametrize(("before", "inside", "words"), PARTS)
def test_what_is_not_supported_is_told_and_harms_no_other(before, inside, words):
    source = f"{before}{GOOD}__global__ void bad(float* y) {{\n    {inside}\n}}\n"
    module, y = cuda(source), torch.zeros(4)
    for name in ("good", "bad", "good"):
        if name == "bad":
            with pytest.raises(CudaError) as caught:
                module.bad[1, 4](y)
            assert words in str(caught.value)
            assert "\n" not in str(caught.value)
            assert caught.value.line == 1 + [inside in one for one in source.splitlines()].index(
                True
            )
        else:
            y.zero_()
            module.good[1, 4](y)
            assert y.tolist() == [2.0] * 4


@pytest.mark.parametrize(("function", "words"), HOST)
def test_code_of_the_host_is_told(function, words):
    with pytest.raises(CudaError) as caught:
        cuda(GOOD + function).good[1, 1](torch.zeros(4))
    assert words in str(caught.value)
    assert caught.value.line == 5


@pytest.mark.parametrize(
    "bad",
    [
        "__global__ void bad(float* y) {\n    y[0] = unknown;\n}",
        "__global__ void bad(float** all, float* y) { y[0] = 1; }",
        "struct Pair { int a, b; };\n__global__ void bad(Pair p, float* y) { y[0] = p.a; }",
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_kernel_that_cannot_be_compiled_or_called_harms_no_other(bad, first):
    module, y = cuda(bad + GOOD if first else GOOD + bad), torch.zeros(4)
    module.good[1, 4](y)
    assert y.tolist() == [2.0] * 4
    with pytest.raises(CudaError):
        module.bad[1, 1](y)


def test_two_that_cannot_be_compiled_each_tell_their_own_line():
    source = GOOD + "".join(
        f"__global__ void {name}(float* y) {{\n    y[0] = un{name};\n}}\n" for name in ("a", "b")
    )
    for name, line in (("b", 9), ("a", 6)):
        with pytest.raises(CudaError, match=f"line {line}: .un{name}. was not declared"):
            cuda(source)[name][1, 1](torch.zeros(4))


def test_a_fault_outside_every_kernel_is_told_for_all():
    with pytest.raises(CudaError, match="line 1: "):
        cuda("__device__ float one() { return unknown; }" + GOOD).good[1, 1](torch.zeros(4))


def test_an_empty_asm_is_a_barrier_for_the_compiler_alone():
    y = torch.zeros(4)
    cuda(GOOD.replace("y[", 'asm volatile("" ::: "memory"); y[')).good[1, 4](y)
    assert y.tolist() == [2.0] * 4


def test_a_kernel_announced_before_it_is_defined_is_one_kernel():
    y = torch.zeros(4)
    cuda("__global__ void good(float* y);" + GOOD).good[1, 4](y)
    assert y.tolist() == [2.0] * 4
