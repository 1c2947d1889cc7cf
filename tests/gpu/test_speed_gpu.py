"""A right answer on a GPU: run there too, timed against a copy, and a point more if it is fast."""

import pytest
import torch

from kernels.grading import check, progress
from tests.grading import submissions_03 as s
from tests.grading.submissions_10_products import product_with

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_PROGRESS", str(tmp_path / "progress.json"))


def told_of_speed(result):
    return next(line for line in result.held if line.startswith(("on the", "no time")))


@pytest.mark.proves(
    "kernels.grading.speed", "kernels.lab.measuring.timing", "kernels.lab.measuring.copying"
)
def test_a_fast_copy_earns_the_bonus():
    result = check("03.3", s.copy_with("", block=1024))
    assert result.passed, result
    assert result.bonus == 1, result
    assert "and 1 for speed" in result.headline
    assert progress().bonus == 1
    assert progress().headline.endswith("points, and 1 for speed")


@pytest.mark.proves(
    "kernels.grading.speed", "kernels.lab.measuring.timing", "kernels.lab.measuring.copying"
)
def test_a_slow_copy_passes_without_it():
    result = check("03.3", s.copy_with("", block=32, warps=1))
    assert result.passed, result
    assert result.bonus == 0, result
    assert "earns a bonus point" in told_of_speed(result)


@pytest.mark.proves("kernels.grading.speed")
def test_an_answer_that_is_wrong_on_the_gpu_fails():
    right, wrong = s.copy_with("", block=1024), s.copy_with("reverse")

    def my_copy(x):
        return wrong(x) if x.is_cuda else right(x)

    result = check("03.3", my_copy)
    assert not result.passed, result
    assert result.points == result.bonus == 0
    assert torch.cuda.get_device_name() in result.message
    assert "right when it is interpreted" in result.means


@pytest.mark.proves("kernels.grading.speed")
def test_memory_of_the_cpu_is_named():
    copy = s.copy_with("", block=1024)

    def my_copy(x):
        out = torch.empty(x.shape, dtype=x.dtype)
        s.element_kernel[(-(-x.numel() // 1024),)](
            x, None, out, x.numel(), BLOCK=1024, FAULT="", num_warps=4
        )
        return out

    assert check("03.3", copy).passed
    result = check("03.3", my_copy)
    assert not result.passed, result
    assert "device=x.device" in result.means, result


@pytest.mark.proves(
    "kernels.grading.speed", "kernels.lab.measuring.timing", "kernels.lab.measuring.copying"
)
def test_a_call_that_waits_for_the_gpu_has_no_time():
    copy = s.copy_with("", block=1024)

    def my_copy(x):
        out = copy(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        return out

    result = check("03.3", my_copy)
    assert result.passed, result
    assert result.bonus == 0
    assert "CUDA graph" in told_of_speed(result)


@pytest.mark.proves(
    "kernels.grading.speed", "kernels.lab.measuring.timing", "kernels.lab.measuring.copying"
)
def test_an_old_output_is_not_taken_for_a_fast_one():
    copy = s.copy_with("", block=1024)
    kept = {}

    def my_copy(x):
        if not x.is_cuda:
            return copy(x)
        if "out" not in kept:
            kept["out"] = copy(x)
        return kept["out"]

    result = check("03.3", my_copy)
    assert not result.passed, result
    assert result.bonus == 0


@pytest.mark.proves("kernels.grading.speed", "kernels.lab.measuring.timing")
def test_a_product_is_timed_against_pytorchs():
    result = check("10.5", product_with())
    assert result.passed, result
    assert "where PyTorch's linear takes" in told_of_speed(result), result
    share = int(told_of_speed(result).split("% of its rate")[0].split()[-1])
    assert result.bonus == (share >= 50)
