"""One function, three ways; and one sentence for every launch that cannot be made."""

import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl

from kernels import LaunchError
from kernels.launch import interpreting, recording
from kernels.launch.triton_compile import compile_launch
from tests.launch import kernels_under_test as k


def test_recording_runs_nothing_and_compiles_for_other_cards():
    x, y = torch.rand(64), torch.zeros(64)
    with recording() as launches:
        k.copy[(1,)](x, y, 64, BLOCK=64, num_warps=2)
    assert y.sum() == 0
    for capability in (75, 80, 90, 120):
        compiled = compile_launch(launches.seen[0], capability)
        assert compiled.num_warps == 2
        assert 0 < compiled.registers <= 255
        assert compiled.stack_bytes == 0
        assert f".target sm_{capability}" in compiled.ptx


def test_the_matrix_instruction_is_read_off_the_binary():
    x = torch.zeros(32, 32, dtype=torch.float16)
    with recording() as launches:
        k.bf16_dot[(1,)](x, x, torch.zeros(32, 32), N=32)
        k.copy[(1,)](torch.zeros(64), torch.zeros(64), 64, BLOCK=64)
    dot, copy = launches.seen
    assert compile_launch(dot, 80).matrix_instruction == "mma.sync"
    assert compile_launch(copy, 80).matrix_instruction is None


def test_interpret_then_compile_then_interpret_in_one_process():
    x, y = torch.rand(64), torch.zeros(64)
    k.copy[(1,)](x, y, 64, BLOCK=64)
    with recording() as launches:
        k.copy[(1,)](x, y, 64, BLOCK=64)
    compile_launch(launches.seen[0], 90)
    y.zero_()
    k.copy[(1,)](x, y, 64, BLOCK=64)
    assert torch.equal(x, y)


def test_blocks_of_interpretation_nest():
    x, y = torch.rand(64), torch.zeros(64)
    with interpreting() as outer:
        k.copy[(1,)](x, y, 64, BLOCK=64)
        with interpreting() as inner:
            k.copy[(1,)](x, y, 64, BLOCK=64)
    assert (len(outer), len(inner)) == (2, 1)


def test_autotune_takes_its_first_configuration_where_nothing_can_be_timed():
    @triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
    @triton.jit
    def tuned(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)

    x, y = torch.rand(100), torch.zeros(100)
    with interpreting() as launches:
        tuned[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, y, 100)
    assert torch.equal(x, y)
    assert launches.seen[0].grid == (4, 1, 1)


def test_heuristics_work():
    @triton.heuristics({"BLOCK": lambda arguments: triton.next_power_of_2(arguments["n"])})
    @triton.jit
    def whole(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)

    x, y = torch.rand(100), torch.zeros(100)
    whole[(1,)](x, y, 100)
    assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("launch", "sentence"),
    [
        (lambda x: k.copy[(1,)](x, x, 8, BLOCK=8, num_wraps=4), "'num_wraps' is neither"),
        (lambda x: k.copy[(1,)](x, x, 8), "missing a required argument: 'BLOCK'"),
        (lambda x: k.copy[(1.5,)](x, x, 8, BLOCK=8), "grid .* is not understood"),
        (lambda x: k.copy[(1, 1, 1, 1)](x, x, 8, BLOCK=8), "grid .* is not understood"),
        (
            lambda x: k.copy[(1,)](x, x.to("meta"), 8, BLOCK=8),
            "different devices .*'y_ptr' on meta",
        ),
    ],
)
def test_a_launch_that_cannot_be_made_gets_one_sentence(launch, sentence):
    with pytest.raises(LaunchError, match=sentence):
        launch(torch.zeros(8))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_without_a_cpu_tensor_and_without_a_gpu():
    with pytest.raises(LaunchError, match="no GPU"):
        k.copy[(1,)](torch.zeros(8, device="meta"), torch.zeros(8, device="meta"), 8, BLOCK=8)


def test_a_grid_of_no_program_runs_nothing():
    y = torch.zeros(8)
    k.copy[(0,)](torch.ones(8), y, 8, BLOCK=8)
    assert y.sum() == 0


def run_python(code, **environment):
    command = [sys.executable, "-W", "always", "-c", code]
    import os

    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def test_triton_interpret_is_ignored_with_a_sentence():
    done = run_python(
        "import kernels, os; print(os.environ.get('TRITON_INTERPRET'))", TRITON_INTERPRET="1"
    )
    assert done.stdout.strip() == "None"
    assert "TRITON_INTERPRET was set and is ignored" in done.stderr


def test_triton_interpret_set_too_early_is_refused_with_a_sentence():
    done = run_python("import triton, kernels", TRITON_INTERPRET="1")
    assert done.returncode == 1
    assert "unset it and restart Python" in done.stderr


def test_another_package_called_kernels_gets_a_sentence(tmp_path):
    folder = tmp_path / "kernels-9.9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 9.9\n")
    done = run_python(f"import sys; sys.path.append({str(tmp_path)!r}); import kernels")
    assert done.returncode == 0
    assert "another package called kernels (9.9) is installed too" in done.stderr
