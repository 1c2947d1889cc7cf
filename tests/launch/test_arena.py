"""Memory errors: one sentence with kernel, argument, index and program, and the process lives."""

import pytest
import torch

from kernels import KernelError
from kernels.launch import interpreting
from tests.launch import kernels_under_test as k


def test_one_past_the_end_is_an_error_even_where_another_tensor_begins():
    memory = torch.zeros(2000)
    y, x = memory[:1000], memory[1000:].normal_()
    before = x.clone()
    with pytest.raises(KernelError) as caught:
        k.copy_one_too_many[(4,)](x, y, 1000, BLOCK=256)
    error = caught.value
    assert (error.kind, error.kernel, error.argument) == ("bounds", "copy_one_too_many", "y_ptr")
    assert (error.index, error.program) == (1000, (3, 0, 0))
    for word in ("copy_one_too_many", "y_ptr", "1000", "(3, 0, 0)", f"line {error.line}"):
        assert word in str(error)
    assert torch.equal(x, before)


@pytest.mark.parametrize("shift", [-1, 8, 2**30, -(2**40)])
def test_a_read_outside_is_named_however_far_it_strays(shift):
    with pytest.raises(KernelError) as caught:
        k.read_outside[(1,)](torch.zeros(8), torch.zeros(1), shift)
    assert (caught.value.kind, caught.value.argument) == ("bounds", "x_ptr")
    assert caught.value.index == shift


def test_an_empty_tensor_has_no_element_to_read():
    with pytest.raises(KernelError, match="'x_ptr' has no element"):
        k.read_outside[(1,)](torch.zeros(0), torch.zeros(1), 0)


def test_a_strided_view_is_bounded_by_its_own_span():
    memory = torch.arange(24.0).view(4, 6)
    y = torch.zeros(1)
    k.read_outside[(1,)](memory[:, 2], y, 18)
    assert y.item() == memory[3, 2]
    with pytest.raises(KernelError, match="index 19"):
        k.read_outside[(1,)](memory[:, 2], y, 19)


def test_two_programs_that_store_to_one_address_race():
    with pytest.raises(KernelError) as caught:
        k.add_in_place[(2,)](torch.zeros(16), BLOCK=16)
    assert (caught.value.kind, caught.value.program) == ("race", (1, 0, 0))


@pytest.mark.parametrize("grid", [(2,), (3,)])
def test_reading_what_another_program_stores_is_a_race(grid):
    with pytest.raises(KernelError, match="in the same launch"):
        k.shift_left[grid](torch.zeros(64), BLOCK=16)


def test_one_program_may_read_and_store_the_same_place():
    x = torch.zeros(16)
    k.add_in_place[(1,)](x, BLOCK=16)
    assert torch.equal(x, torch.ones(16))


def test_atomics_of_many_programs_are_no_race_and_count_as_read_and_write():
    x, total = torch.rand(1000), torch.zeros(1)
    with interpreting() as launches:
        k.add_up[(4,)](x, total, 1000, BLOCK=256)
    torch.testing.assert_close(total[0], x.sum())
    totals = {name: rest for name, *rest in launches.seen[0].arena.totals()}
    assert totals["total_ptr"] == [4, 16, 4, 16]


def test_programs_ordered_by_an_atomic_are_not_judged_and_a_note_says_so():
    x = torch.rand(1000)
    parts, total = torch.zeros(4), torch.zeros(1)
    counter = torch.zeros(1, dtype=torch.int32)
    with interpreting() as launches:
        k.last_one_finishes[(4,)](x, parts, counter, total, 1000, 4, BLOCK=256)
    torch.testing.assert_close(total[0], x.sum())
    assert "atomics" in launches.seen[0].arena.note


def test_a_pointer_made_through_an_integer_keeps_its_argument():
    y = torch.zeros(1)
    k.through_an_integer[(1,)](torch.tensor([3.0, 5.0]), y)
    assert y.item() == 5.0
    with pytest.raises(KernelError, match="index 1"):
        k.through_an_integer[(1,)](torch.tensor([3.0]), y)


def test_an_address_from_nowhere_is_refused():
    with pytest.raises(KernelError, match="belongs to no argument") as caught:
        k.from_nowhere[(1,)](torch.zeros(1))
    assert caught.value.kind == "pointer"


def test_two_views_of_one_memory_count_it_once():
    memory = torch.rand(512)
    with interpreting() as launches:
        k.copy[(2,)](memory[:256], memory[256:], 256, BLOCK=128)
        with pytest.raises(KernelError, match="race|same launch"):
            k.copy[(2,)](memory, memory[128:], 256, BLOCK=128)
    totals = list(launches.seen[0].arena.totals())
    assert totals == [("x_ptr", 1024, 1024, 0, 0), ("y_ptr", 0, 0, 1024, 1024)]


def test_a_name_error_in_the_kernel_is_told_with_its_line():
    with pytest.raises(KernelError) as caught:
        k.missing_name[(1,)](torch.zeros(1))
    assert caught.value.kind == "python"
    assert "NameError" in str(caught.value)
    assert caught.value.line is not None


def test_the_trace_tells_every_access_in_order():
    x, y = torch.rand(300), torch.zeros(300)
    with interpreting(trace=True) as launches:
        k.copy[(2,)](x, y, 300, BLOCK=256)
    told = [(a.program, a.argument, a.kind, a.offsets.size) for a in launches.seen[0].trace]
    assert told == [
        (0, "x_ptr", "load", 256),
        (0, "y_ptr", "store", 256),
        (1, "x_ptr", "load", 44),
        (1, "y_ptr", "store", 44),
    ]
    assert launches.seen[0].trace[2].offsets.tolist() == list(range(256, 300))
