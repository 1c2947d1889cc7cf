"""What goes wrong outside a kernel's logic gets one sentence, soon, and leaves nothing behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from kernels import KernelError
from kernels.cuda import CudaError, cuda, nvrtc
from kernels.cuda.emulator import build, process

SCALE = r"""
__global__ void scale(const float* x, float* y, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
"""


def one_sentence(caught):
    said = str(caught.value)
    assert "\n" not in said
    return said


@pytest.fixture
def scratch(monkeypatch, tmp_path):
    """The folder of a launch's files, to see that they are gone."""
    monkeypatch.setattr(process, "_SHARED_MEMORY", tmp_path)
    yield tmp_path
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.zeros(4), torch.zeros(4), 2.0), "takes 4 arguments (float* x, float* y, float"),
        ((torch.zeros(4), torch.zeros(4).double(), 2.0, 4), "takes torch.float32, not a tensor of"),
        ((torch.zeros(4), 7, 2.0, 4), "'y' is a `float*` and takes a tensor, not 7"),
        ((torch.zeros(4), torch.zeros(4), 2.0, 4.0), "'n' is a `int` and takes a whole number"),
        ((torch.zeros(4), torch.zeros(4), 2.0, 2**31), "'n' is a `int`"),
        ((torch.zeros(4), torch.zeros(4), torch.zeros(1), 4), "'factor' is a `float`"),
        ((torch.zeros(4), torch.zeros(4, device="meta"), 2.0, 4), "on the CPU or a CUDA GPU"),
    ],
)
def test_a_wrong_argument_is_named(arguments, words):
    with pytest.raises(CudaError) as caught:
        cuda(SCALE).scale[1, 4](*arguments)
    assert words in one_sentence(caught)


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ((1, 2048), "at most 1024 threads, 64 of them along z, not (2048, 1, 1)"),
        ((0, 32), "the grid is one to three whole numbers"),
        ((1, (4, 1, 65)), "64 of them along z"),
        ((1, (8, 8, 1, 1)), "the block is one to three"),
        ((1, 32, -4), "shared_bytes is a number from 0"),
        (32, "launched as kernel[grid, block](...)"),
    ],
)
def test_a_wrong_launch_is_named(configuration, words):
    with pytest.raises(CudaError) as caught:
        cuda(SCALE).scale[configuration]
    assert words in one_sentence(caught)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("int f() { return 1; }", "the source has no kernel"),
        ("__global__ void f(float** x) {}", "'x' is a pointer to a pointer"),
        ("__global__ void f(std::string x) {}", "'x' has the type `std::string`"),
    ],
)
def test_a_source_that_cannot_be_called_is_refused(source, words):
    with pytest.raises(CudaError) as caught:
        _ = cuda(source).f
    assert words in one_sentence(caught)


def test_an_unknown_kernel_is_named():
    with pytest.raises(CudaError, match="has no kernel 'scales'; it has scale"):
        _ = cuda(SCALE).scales


def test_a_compile_error_points_at_its_line():
    with pytest.raises(CudaError) as caught:
        cuda(SCALE.replace("factor * x[i]", "factr * x[i]")).scale[1, 4](
            torch.zeros(4), torch.zeros(4), 2.0, 4
        )
    assert "line 4: 'factr' was not declared" in one_sentence(caught).replace("‘", "'").replace(
        "’", "'"
    )
    assert caught.value.line == 4


def test_a_machine_without_a_compiler_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(CudaError, match="g\\+\\+, which isn't installed"):
        cuda(SCALE).scale[1, 4](torch.zeros(4), torch.zeros(4), 2.0, 4)


def test_another_processor_is_told_so(monkeypatch):
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    with pytest.raises(CudaError, match="Linux on x86-64"):
        cuda(SCALE).scale[1, 4](torch.zeros(4), torch.zeros(4), 2.0, 4)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("for (;;) y[0] = x[0];", "timeout"),
        ("volatile int turn = 0; while (turn == 0) {}", "timeout"),
        ("volatile int* flag = (volatile int*)y; while (*flag == 0) {}", "timeout"),
        ("*(float*)nullptr = 1;", "pointer"),
        ("float* wild = (float*)0x7654321000ull; wild[n] = 1;", "pointer"),
        ("char local[200000]; local[n] = 1; y[0] = local[n + 1] + x[local[5]];", "stack"),
        ("__shared__ float a[20000]; a[threadIdx.x] = 1;", "shared"),
        ("extern __shared__ float a[]; a[threadIdx.x] = 1;", "shared"),
    ],
)
def test_the_process_of_a_kernel_ends_and_ours_lives(body, kind, scratch):
    source = f"__global__ void f(const float* x, float* y, int n) {{ {body} }}"
    x, y = torch.ones(4), torch.zeros(4)
    module = cuda(source, time_limit_s=1.0)
    begin = time.monotonic()
    with pytest.raises(KernelError) as caught:
        module.f[1, 1](x, y, 4)
    assert time.monotonic() - begin < 15
    assert caught.value.kind == kind, one_sentence(caught)
    assert "\n" not in str(caught.value)
    assert torch.equal(y, torch.zeros(4))


def test_without_cuda_core_a_gpu_launch_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(CudaError, match="cuda.core, which isn't installed") as caught:
        nvrtc._core()
    one_sentence(caught)


def test_an_error_of_nvrtc_points_at_its_line():
    said = 'compile failed\ndefault_program(4): error: identifier "factr" is undefined\n'
    error = nvrtc._compile_error(said)
    assert (str(error), error.line) == ('line 4: identifier "factr" is undefined', 4)


def test_a_null_tensor_is_a_null_pointer(scratch):
    with pytest.raises(KernelError, match="through a null pointer"):
        cuda(SCALE).scale[1, 4](None, torch.zeros(4), 2.0, 4)


def test_a_fault_leaves_the_tensors_alone(scratch):
    y = torch.zeros(8)
    with pytest.raises(KernelError, match="index 4 of 'x'"):
        cuda(SCALE).scale[1, 8](torch.ones(4), y, 2.0, 8)
    assert torch.equal(y, torch.zeros(8))


def test_a_view_is_bounded_by_its_own_span(scratch):
    memory = torch.zeros(64)
    x, y = memory[:8], memory[8:16]
    with pytest.raises(KernelError, match="a store at index 8 of 'y', which spans the indices"):
        cuda(SCALE.replace("y[i] =", "y[i + 1] =")).scale[1, 8](x, y, 2.0, 8)


def test_a_strided_view_is_written_in_place(scratch):
    memory = torch.zeros(8, 2)
    source = SCALE.replace("y[i] =", "y[2 * i] =")
    cuda(source).scale[1, 8](torch.ones(8), memory[:, 1], 3.0, 8)
    assert torch.equal(memory[:, 1], torch.full((8,), 3.0))
    assert torch.equal(memory[:, 0], torch.zeros(8))


def test_no_element_is_no_trouble(scratch):
    counts = cuda(SCALE).scale[1, 32](torch.zeros(0), torch.zeros(0), 2.0, 0)
    assert list(counts.totals()) == []


def test_kernels_are_built_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        cuda(SCALE).scale[1, 4](torch.zeros(4), torch.zeros(4), 2.0, 4)
    kernel, runtime = sorted((tmp_path / "fusing-kernels" / "cuda").iterdir())
    assert kernel.name.startswith("kernel-")
    assert runtime.name.startswith("runtime-")
    # Without the compiled header every cell would wait for the standard headers.
    assert (runtime / "device.h.gch").stat().st_size > 1 << 20


def test_a_cache_that_cannot_be_made_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        CudaError, match="can't keep compiled kernels in .*; set XDG_CACHE"
    ) as caught:
        cuda(SCALE).scale[1, 4](torch.zeros(4), torch.zeros(4), 2.0, 4)
    one_sentence(caught)


def test_the_cache_keeps_what_was_used_last(monkeypatch, tmp_path):
    cuda(SCALE).scale[1, 4](torch.zeros(4), torch.zeros(4), 2.0, 4)
    runtime = build._runtime(build.compiler(), build.cache_folder())
    (tmp_path / runtime.name).symlink_to(runtime)
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(build, "_KEPT", {"kernel-": 2, "runtime-": 1})
    long_ago = time.time() - 2 * build._OLD_SECONDS
    for name in ("runtime-old", "tmp_of_a_killed_process", "tmp_of_a_living_one"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        if name != "tmp_of_a_living_one":
            os.utime(tmp_path / name, (long_ago, long_ago))

    def built(factor):
        module = cuda(SCALE.replace("factor *", f"{factor} * factor *"))
        return build.build(module.source, module.entries(module.scale.signature))

    for when, factor in enumerate((1, 2, 1, 3)):
        program = built(factor)
        if when < 2:
            os.utime(program, (long_ago + when, long_ago + when))
    # The first was used again before the third was built, so the second had to go.
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {runtime.name, "tmp_of_a_living_one", built(1).name, built(3).name}


def test_the_runtime_ships_with_the_package():
    runtime = Path(build.RUNTIME)
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    suffixes = {path.suffix for path in runtime.rglob("*") if path.is_file()}
    assert suffixes == {".h", ".cpp"}
    assert all(f'"*{suffix}"' in text for suffix in suffixes)


def test_a_loop_that_uses_up_memory_is_told_as_endless():
    # With little memory, as in a check, there is no room for the requests before the time is over.
    script = """
import resource, torch
from kernels import KernelError
from kernels.cuda import cuda
kernel = cuda('''__global__ void spin(const float* x, float* y, int n) {
    for (int k = 0; n > 0; k++)
        n += x[0] > 9;
    y[0] = n;
}''').spin
x, y = torch.zeros(1), torch.zeros(1)
kernel[1, 1](x, y, 0)
used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28,) * 2)
try:
    kernel[1, 1](x, y, 1)
except KernelError as error:
    assert error.kind == 'timeout', error
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "line 3: this thread made more requests" in done.stdout
