"""Every launch compiled for every card with no GPU; and what is said of one that must not ship."""

import dataclasses
import re
import sys

import pytest
import torch
import triton
import triton.language as tl
from cuda.pathfinder import DynamicLibNotFoundError

import kernels.ops  # noqa: F401  (registers the operations)
from kernels import registry
from kernels.cuda import cuda, nvrtc
from kernels.lab.__main__ import main
from kernels.lab.counting import aot
from kernels.launch import assume_capability, capability
from kernels.registry import Variant, get

KEPT = get("layernorm")
LAYERNORM = dataclasses.replace(KEPT, forward=dataclasses.replace(KEPT.forward, beyond=()))
# Without its backward: a binary for each of its launches is enough here.
FORWARD = dataclasses.replace(LAYERNORM.variant("fused"), passes=("fwd",))


@triton.jit
def square_by_one_warp(x_ptr, y_ptr, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + cols)
    tl.store(y_ptr + cols, x / tl.sum(x, axis=0))  # all of x is kept until its sum is known


@triton.jit
def product(x_ptr, y_ptr, n_steps, SIZE: tl.constexpr):
    rows, cols = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    total = tl.zeros((SIZE, SIZE), dtype=tl.float32)
    for step in range(n_steps):
        a = tl.load(x_ptr + rows * 4096 + step * SIZE + cols)
        b = tl.load(x_ptr + (step * SIZE + rows) * SIZE + cols)
        total = tl.dot(a, b, total)
    tl.store(y_ptr + rows * SIZE + cols, total)


def with_variant(fn, dtype, shape=(1, 8192), **changes):
    """LayerNorm's description with `fn` in the place of its kernel."""
    variants = {"mine": Variant("mine", fn, counted="triton", **changes)}
    return dataclasses.replace(
        LAYERNORM, variants=variants, dtypes=(dtype,), shapes=(shape,), beyond=(), name="mine"
    )


def spilling(x, **_):
    square_by_one_warp[(1,)](x, torch.empty_like(x), BLOCK=x.shape[-1], num_warps=1)


def multiplying(x, num_stages=1, **_):
    product[(1,)](x, torch.empty(64, 64), 64, SIZE=64, num_stages=num_stages)


def test_a_kernel_that_spills_is_reported():
    (built,) = aot.build(with_variant(spilling, torch.float32), (90,))
    assert built.stack_bytes > 0
    assert built.fault == (
        f"mine mine fwd fp32 1x8192 on sm_90: square_by_one_warp with 1 warps spills: a thread "
        f"keeps {built.stack_bytes} bytes in memory that its {built.registers} registers don't hold"
    )


def test_too_much_shared_memory_is_reported():
    def greedy(x, **rest):
        multiplying(x, num_stages=9, **rest)

    a100, rtx = aot.build(with_variant(greedy, torch.float16), (80, 120))
    assert a100.shared_bytes == rtx.shared_bytes == 128 * 1024
    assert a100.fault is None
    assert "takes 131,072 bytes of shared memory; a block has 101,376 at most" in rtx.fault


def test_the_matrix_instruction_is_each_cards_own():
    built = aot.build(with_variant(multiplying, torch.float16))
    assert {b.capability: b.matrix_instruction for b in built} == {
        75: None,  # Triton multiplies without tensor cores there
        80: "mma.sync",
        86: "mma.sync",
        89: "mma.sync",
        90: "wgmma.mma_async",
        100: "tcgen05.mma",
        120: "mma.sync",
    }


def test_what_the_compiler_refuses_is_reported():
    def too_wide(x, **_):
        product[(1,)](x, x, 1, SIZE=3)

    (built,) = aot.build(with_variant(too_wide, torch.float16), (80,))
    assert "mine on sm_80" not in built.fault
    assert "product does not compile" in built.fault
    assert built.registers == 0


@triton.jit
def ragged(x):
    return tl.reshape(x, [3, 5])


@triton.jit
def calling_a_helper(x_ptr, y_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(y_ptr + tl.arange(0, BLOCK), ragged(x))


@triton.jit
def naming_nothing(x_ptr, y_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    tl.store(y_ptr + tl.arange(0, BLOCK), nowhere(x))  # noqa: F821


@triton.jit
def asserting(x_ptr, y_ptr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK == 3, "a block of three")
    tl.store(y_ptr + tl.arange(0, 4), 0.0)


@triton.jit
def assembling(x_ptr, y_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    y = tl.inline_asm_elementwise("nonsense $0, $1;", "=r,r", [x], tl.float32, True, 1)
    tl.store(y_ptr + tl.arange(0, BLOCK), y)


@triton.jit
def packing(x_ptr, y_ptr, BLOCK: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, BLOCK))
    y = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], tl.float32, True, 128)
    tl.store(y_ptr + tl.arange(0, BLOCK), y)


def line_of(kernel, text):
    """The line in this file where a kernel has a text."""
    lines = kernel.fn.__code__.co_firstlineno, kernel.src.splitlines()
    return lines[0] + 1 + next(i for i, line in enumerate(lines[1]) if text in line)


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        # in Python, told by an exception and its causes
        (
            calling_a_helper,
            'calling_a_helper, line 3, "tl.store(y_ptr + tl.arange(0, BLOCK), ragged(x))", in '
            'ragged, line 2, "return tl.reshape(x, [3, 5])": Shape element 0 must be a power of 2',
        ),
        (
            naming_nothing,
            'naming_nothing, line 3, "tl.store(y_ptr + tl.arange(0, BLOCK), nowhere(x))  '
            '# noqa: F821": nowhere is not defined',
        ),
        (
            asserting,
            'asserting, line 2, "tl.static_assert(BLOCK == 3, "a block of three")": a block of '
            "three",
        ),
        # by ptxas, for a line of the PTX
        (
            assembling,
            f"test_aot.py, line {line_of(assembling, 'nonsense')}, in line LINE of the PTX: Not a "
            f"name of any known instruction: 'nonsense'",
        ),
        # by MLIR, on stderr alone
        (
            packing,
            f"test_aot.py, line {line_of(packing, 'mov')}: number of input elements 64 must be a "
            f"multiple of the op's packed_element attribute, 128",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_why_a_kernel_does_not_compile_is_told_with_its_line(kernel, told):
    def refused(x, **_):
        kernel[(1,)](x, torch.empty_like(x), BLOCK=64)

    (built,) = aot.build(with_variant(refused, torch.float32, (1, 64)), (90,))
    assert re.sub(r"line \d+ of the PTX", "line LINE of the PTX", built.error) == told
    assert f"{kernel.__name__} does not compile: {built.error}" in built.fault


def test_a_configuration_is_chosen_for_the_card_that_is_assumed():
    cpu = torch.device("cpu")
    assert capability(cpu) == (9, 0)
    with assume_capability(75):
        assert capability(cpu) == (7, 5)
        with assume_capability(120):
            assert capability(cpu) == (12, 0)
        assert capability(cpu) == (7, 5)
    assert capability(cpu) == (9, 0)

    def choosing(x, **_):
        one = capability(x.device) < (8, 0)
        square_by_one_warp[(1,)](x, torch.empty_like(x), BLOCK=256, num_warps=1 if one else 2)

    built = aot.build(with_variant(choosing, torch.float32), (75, 80))
    assert [b.num_warps for b in built] == [1, 2]


SPILLING = r"""
__global__ void __launch_bounds__(1024, 2) many(const float* x, float* y) {
    float held[64], sum = 0;
    for (int i = 0; i < 64; i++) held[i] = x[i * 1024 + threadIdx.x];
    for (int i = 0; i < 64; i++) sum += held[i] * held[i];
    __syncthreads();
    for (int i = 0; i < 64; i++) y[i * 1024 + threadIdx.x] = held[i] / sum;
}
"""
SHARING = r"""
__global__ void sharing(const float* x, float* y) {
    extern __shared__ float tile[];
    __shared__ float more[256];
    tile[threadIdx.x] = more[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[255 - threadIdx.x] + more[255 - threadIdx.x];
}
"""
MULTIPLYING = r"""
__global__ void multiplying(const unsigned* a, float* out) {
    float sums[4] = {0, 0, 0, 0};
#ifdef __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]));
#endif
    out[threadIdx.x] = sums[0];
}
"""


def in_cuda(source, block, dtype=torch.float32, shared_bytes=0):
    """LayerNorm's description with the one kernel of a source in the place of its own."""
    module = cuda(source)
    kernel = module[next(iter(module.declared))]

    def fn(x, **_):
        given = x if dtype == torch.float32 else x.view(torch.int32)
        kernel[1, block, shared_bytes](given, torch.empty(x.shape))

    op = with_variant(fn, dtype)
    counted = dataclasses.replace(op.variant("mine"), counted="cuda")
    return dataclasses.replace(op, variants={"mine": counted})


def test_a_spill_in_cuda_is_reported():
    (built,) = aot.build(in_cuda(SPILLING, 1024), (90,))
    assert built.registers <= 32
    assert built.fault.startswith("mine mine fwd fp32 1x8192 on sm_90: many with 32 warps spills: ")


def test_shared_memory_of_both_kinds_is_added_up():
    roomy, tight = aot.build(in_cuda(SHARING, 256, shared_bytes=64 * 1024), (80, 75))
    assert (roomy.capability, tight.capability) == (80, 75)
    assert tight.shared_bytes == 64 * 1024 + 1024
    assert roomy.fault is None
    assert "takes 66,560 bytes of shared memory; a block has 65,536 at most" in tight.fault


def test_tensor_cores_in_cuda_are_told_by_the_name_that_triton_gives_them():
    t4, h100 = aot.build(in_cuda(MULTIPLYING, 32, torch.float16), (75, 90))
    assert t4.matrix_instruction == h100.matrix_instruction == "mma.sync"
    plain = aot.build(in_cuda(SHARING, 256), (90,))
    assert plain[0].matrix_instruction is None


def test_what_nvrtc_refuses_is_reported_with_its_line():
    (built,) = aot.build(in_cuda("__global__ void f(float* x, float* y) {\n  y = z;\n}", 32), (80,))
    assert "on sm_80: f does not compile: CudaError: line 2: " in built.fault


@pytest.mark.parametrize("missing", ["cuda.core", "nvrtc"])
def test_without_nvrtc_the_command_says_what_is_not_compiled(missing, capsys, monkeypatch):
    if missing == "cuda.core":
        monkeypatch.setitem(sys.modules, "cuda.core", None)
    else:

        def absent(*_, **__):
            raise DynamicLibNotFoundError("libnvrtc.so.13 was not found")

        monkeypatch.setattr("cuda.core.Program", absent)
    monkeypatch.setattr(nvrtc, "try_compiling", nvrtc.try_compiling.__wrapped__)
    monkeypatch.setattr(aot.build, "__defaults__", ((90,),))
    op = in_cuda(SHARING, 256)
    triton_too = {**op.variants, "fused": FORWARD}
    monkeypatch.setattr(registry, "ops", lambda: [dataclasses.replace(op, variants=triton_too)])
    assert main(["aot"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"mine mine is not compiled: .*isn't installed: `pip install ", out)
    assert "\n1 kernels compiled, 0 at fault" in out


def test_what_a_gpu_could_not_run_is_not_compiled(capsys, monkeypatch):
    def why(device):
        return "a header is not installed" if device.type == "cuda" else None

    op = in_cuda("__global__ void f(float* x, float* y) {}", 32)
    absent = dataclasses.replace(op.variant("mine"), unavailable=why)
    variants = {"mine": absent, "fused": FORWARD}
    monkeypatch.setattr(aot.build, "__defaults__", ((90,),))
    monkeypatch.setattr(registry, "ops", lambda: [dataclasses.replace(op, variants=variants)])
    assert main(["aot"]) == 0
    assert "mine mine is not compiled: a header is not installed" in capsys.readouterr().out


def test_bf16_is_left_out_below_8_0():
    built = aot.build(with_variant(multiplying, torch.bfloat16), (75, 80))
    assert [b.capability for b in built] == [80]


def test_the_command(capsys, monkeypatch):
    def ran(*operations):
        monkeypatch.setattr(registry, "ops", lambda: list(operations))
        code = main(["aot"])
        return code, capsys.readouterr().out

    monkeypatch.setattr(aot, "TARGETS", (75, 90))
    monkeypatch.setattr(aot.build, "__defaults__", ((75, 90),))
    shapes = ((512, 1024), (65536, 1024))
    small = dataclasses.replace(LAYERNORM, shapes=shapes, beyond=(), variants={"fused": FORWARD})
    code, out = ran(small)
    assert code == 0
    assert "512x1024 65536x1024" in out
    # Three dtypes, two on 7.5; on 9.0 so many narrow rows take fewer warps, which is one more each.
    assert "\n8 kernels compiled, 0 at fault" in out
    assert aot.NO_BF16 in out
    assert "sm_75: Tesla T4" in out

    code, out = ran(with_variant(spilling, torch.float32))
    assert code == 1
    assert "square_by_one_warp with 1 warps spills" in out

    absent = with_variant(multiplying, torch.float16, unavailable=lambda _: "it is not installed")
    code, out = ran(small, absent)
    assert code == 0
    assert "mine mine is not compiled: it is not installed" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nope"], "operation 'nope' is unknown; known: "),
        (["layernorm", "more"], "unrecognized arguments: more"),
    ],
)
def test_a_request_that_cannot_be_served_is_one_sentence(arguments, sentence, capsys):
    try:
        code = main(["aot", *arguments])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert sentence in capsys.readouterr().err


def test_what_is_kept_is_compiled_once_and_what_spills_is_never_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(aot, "SOUND", tmp_path / "sound.txt")
    one_dtype = dataclasses.replace(LAYERNORM, dtypes=(torch.float32,), shapes=((4, 64),))
    sound = dataclasses.replace(one_dtype, variants={"fused": FORWARD})
    wanted = aot.jobs(sound, (90,)) + aot.jobs(with_variant(spilling, torch.float32), (90,))
    built = aot.keep_sound(wanted)
    assert [one.fault is None for one in built] == [True] * (len(wanted) - 1) + [False]
    kept = aot.known_sound()
    assert kept == {aot.digest(job) for job in wanted[:-1]}
    assert [one.kernel for one in aot.keep_sound(wanted)] == ["square_by_one_warp"]
    assert aot.known_sound() == kept
    assert aot.keep_sound(wanted[:1]) == []  # what is no longer launched is forgotten
    assert aot.known_sound() == {aot.digest(wanted[0])}
