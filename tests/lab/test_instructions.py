"""Machine instructions are counted in the kernel that was launched, and in no other."""

import pytest
import torch
import triton
import triton.language as tl

from kernels.cuda import cuda
from kernels.cuda.cuda_compile import no_compiler
from kernels.lab.counting import instructions as disassembler
from kernels.lab.counting.instructions import instructions
from kernels.launch import recording

SOURCE = """
template <int TIMES>
__global__ void roots(const float* x, float* y) {
    float value = x[threadIdx.x];
    for (int i = 0; i < TIMES; i++) value = rsqrtf(value);
    y[threadIdx.x] = value;
}
__global__ void copy(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void copy_of_two(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x] + x[threadIdx.x + 32];
}
"""

pytestmark = pytest.mark.skipif(no_compiler() is not None, reason=no_compiler() or "")


def counted(kernel):
    with recording() as launches:
        kernel[1, 32](torch.empty(64), torch.empty(32))
    return instructions(next(iter(launches)), 90)


def roots(counts):
    return sum(number for name, number in counts.items() if name.startswith("MUFU.RSQ"))


@pytest.mark.parametrize("times", [1, 3])
def test_each_root_of_an_unrolled_loop_is_an_instruction(times):
    assert roots(counted(cuda(SOURCE)[f"roots<{times}>"])) == times


def test_kernels_of_one_source_whose_names_begin_alike_are_told_apart():
    one, two = counted(cuda(SOURCE).copy), counted(cuda(SOURCE).copy_of_two)
    for counts, loads in ((one, 1), (two, 2)):
        assert sum(n for name, n in counts.items() if name.startswith("LDG")) == loads
        assert sum(n for name, n in counts.items() if name.startswith("STG")) == 1
        assert "NOP" not in counts
        assert counts["BRA"] == 0  # the one behind the last exit isn't counted


def test_what_the_compiler_calls_in_rare_cases_stands_behind_the_exit():
    source = """
    __global__ void far_remainder(const float* x, float* y) {
        long long i = (long long)y;
        y[0] = x[i % (long long)x];
    }
    """
    with recording() as launches:
        cuda(source).far_remainder[1, 32](torch.empty(64), torch.empty(32))
    (launch,) = launches
    line, whole = instructions(launch, 90, routines=False), instructions(launch, 90)
    assert line["EXIT"] == whole["EXIT"]
    assert line["RET.REL.NODEC"] == 0 < whole["RET.REL.NODEC"]
    assert line.total() < whole.total() - 50


@triton.jit
def doubled_in_a_loop(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    for first in tl.range(0, n, BLOCK):
        e = first + tl.arange(0, BLOCK)
        tl.store(y_ptr + e, 2 * tl.load(x_ptr + e, e < n), e < n)


def test_a_kernel_that_ends_in_a_loop_has_its_main_line_too():
    """Its last exit has a condition, and behind it stands the way back."""
    with recording() as launches:
        doubled_in_a_loop[(1,)](torch.empty(4096), torch.empty(4096), 4096, BLOCK=128)
    (launch,) = launches
    line, whole = instructions(launch, 90, routines=False), instructions(launch, 90)
    assert line["EXIT"] == whole["EXIT"]
    assert line["BRA"] == whole["BRA"] > 0
    assert line == whole


def test_several_instances_of_a_template_in_one_binary_are_refused():
    module = cuda(SOURCE, instances=["roots<1>", "roots<2>"])
    with pytest.raises(LookupError, match="2 instances of it; compile one alone"):
        counted(module["roots<1>"])


def test_kernels_that_are_compiled_together_are_disassembled_once(monkeypatch):
    runs = []
    whole = disassembler.disassembly
    monkeypatch.setattr(
        disassembler, "disassembly", lambda cubin: runs.append(len(cubin)) or whole(cubin)
    )
    disassembler._functions.cache_clear()
    module = cuda(SOURCE)
    one, two = counted(module.copy), counted(module.copy_of_two)
    assert len(runs) == 1
    assert two.total() > one.total()
