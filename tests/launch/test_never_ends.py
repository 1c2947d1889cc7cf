"""Launches that would never end, and those a GPU refuses: a sentence, with the line."""

import time
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from kernels import KernelError, LaunchError
from kernels.launch import interpreter, interpreting


def text_of(line):
    return Path(__file__).read_text().splitlines()[line - 1].strip()


@triton.jit
def false_at_once(x_ptr, n):
    i = n
    while tl.condition(i < 0):
        i += 1
    tl.store(x_ptr, i)


@pytest.mark.skipif(not hasattr(tl, "condition"), reason="this Triton has none")
def test_a_condition_that_is_false_at_once():
    x = torch.zeros(1, dtype=torch.int32)
    false_at_once[(1,)](x, 3)
    assert x.item() == 3


@triton.jit
def counts_up(x_ptr, n):
    i = 0
    while tl.condition(i < n, disable_licm=True):
        i += 2
    tl.store(x_ptr, i)


@pytest.mark.skipif(not hasattr(tl, "condition"), reason="this Triton has none")
def test_a_condition_that_becomes_false():
    x = torch.zeros(1, dtype=torch.int32)
    counts_up[(1,)](x, 5)
    assert x.item() == 6


@triton.jit
def spins(flag_ptr, n):
    if tl.program_id(0) == 0:
        while tl.atomic_add(flag_ptr, 0) < n:
            pass
    else:
        tl.atomic_add(flag_ptr, 1)


@triton.jit
def counts_to_nothing(x_ptr, n):
    for _ in range(n):
        tl.store(x_ptr, 1.0)


@pytest.mark.parametrize(
    ("launch", "lines"),
    [
        (
            lambda: spins[(2,)](torch.zeros(1, dtype=torch.int32), 1),
            ["while tl.atomic_add(flag_ptr, 0) < n:"],
        ),
        (
            lambda: counts_to_nothing[(1,)](torch.zeros(1), 2**30),
            ["for _ in range(n):", "tl.store(x_ptr, 1.0)"],
        ),
    ],
)
def test_a_program_that_does_not_end_is_named_with_its_line(launch, lines):
    start = time.monotonic()
    with (
        interpreting(time_limit_s=0.2),
        pytest.raises(KernelError, match="did not end within 0.2 s") as caught,
    ):
        launch()
    assert time.monotonic() - start < 10
    assert (caught.value.kind, caught.value.program) == ("timeout", (0, 0, 0))
    assert text_of(caught.value.line) in lines


def test_many_quick_programs_are_no_program_that_does_not_end():
    start = time.thread_time()
    with interpreting(time_limit_s=0.05):
        counts_to_nothing[(1, 2000)](torch.zeros(1), 2)
    assert time.thread_time() - start > 0.1


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        ((1, 65536), "y is 65536, and a GPU takes 65535 at most"),
        ((1, 1, 70000), "z is 70000, and a GPU takes 65535 at most"),
        ((2**31,), "x is 2147483648, and a GPU takes 2147483647 at most"),
        ((-1,), "is not understood"),
    ],
)
def test_a_grid_that_no_gpu_takes(grid, sentence):
    with pytest.raises(LaunchError, match=sentence):
        counts_to_nothing[grid](torch.zeros(1), 1)


def test_the_largest_grid_that_a_gpu_takes():
    assert interpreter.normalized_grid((2**31 - 1, 65535, 65535), {}) == (2**31 - 1, 65535, 65535)


@triton.jit
def asserts(x_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    assert tl.num_programs(0) < 2, "one program"
    tl.device_assert(x > 0, "x must be positive")
    tl.store(x_ptr + tl.arange(0, N), x + 1)


def test_assertions_hold_with_debug_and_are_passed_over_without():
    x = torch.tensor([1.0, 0.0])
    asserts[(1,)](x, N=2)
    assert x.tolist() == [2, 1]
    asserts[(1,)](x, N=2, debug=True)
    x[1] = -1
    with pytest.raises(KernelError, match="device_assert failed: x must be positive") as caught:
        asserts[(1,)](x, N=2, debug=True)
    assert caught.value.kind == "assert"
    assert text_of(caught.value.line) == 'tl.device_assert(x > 0, "x must be positive")'
    with pytest.raises(KernelError, match="one program"):
        asserts[(2,)](torch.ones(2), N=2, debug=True)


@triton.jit(debug=True)
def overflows(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr) + tl.load(x_ptr))


def test_overflow_is_asserted_with_debug_as_on_a_gpu():
    overflows[(1,)](torch.tensor([2**30 - 1], dtype=torch.int32))
    with pytest.raises(KernelError, match="overflow"):
        overflows[(1,)](torch.tensor([2**30], dtype=torch.int32))


@triton.jit
def all_store(flag_ptr, value_ptr):
    tl.store(flag_ptr, tl.load(value_ptr + tl.program_id(0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_programs_may_store_one_same_value_and_not_different_ones(dtype):
    flag, same = torch.zeros(1, dtype=dtype), torch.ones(4, dtype=dtype)
    with interpreting() as launches:
        all_store[(4,)](flag, same)
    assert flag.item() == 1
    assert "one same value" in launches.seen[0].arena.note
    same[2] = 0
    with pytest.raises(KernelError, match="program \\(1, 0, 0\\) stored to") as caught:
        all_store[(4,)](flag, same)
    assert (caught.value.kind, caught.value.program) == ("race", (2, 0, 0))


@triton.jit
def one_reads_what_others_store(flag_ptr, out_ptr):
    if tl.program_id(0) < 2:
        tl.store(flag_ptr, 1.0)
    else:
        tl.store(out_ptr, tl.load(flag_ptr))


def test_reading_what_others_store_stays_a_race_though_they_store_one_value():
    with pytest.raises(KernelError, match="program \\(1, 0, 0\\) stored to"):
        one_reads_what_others_store[(3,)](torch.zeros(1), torch.zeros(1))


@triton.jit
def grouped(pointers_ptr, out_ptr):
    x_ptr = tl.load(pointers_ptr).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr, tl.load(x_ptr))


def test_a_tensor_of_addresses_is_refused_with_a_sentence():
    x = torch.ones(1)
    with pytest.raises(KernelError, match="belongs to no argument; make pointers"):
        grouped[(1,)](torch.tensor([x.data_ptr()]), torch.zeros(1))
