"""A kernel's hash and its globals do not depend on what was hashed before."""

import pytest
import triton
import triton.language as tl

from kernels.launch.settled import settle

HALF = tl.constexpr(0.5)


@triton.jit
def halved(x):
    return x * HALF


@triton.jit
def quartered(x):
    return halved(halved(x))


@triton.jit
def kernel(x_ptr):
    tl.store(x_ptr, quartered(tl.load(x_ptr)))


@triton.jit
def both(x):
    return quartered(x) + halved(x)


@triton.jit
def recursive(x):
    return recursive(x) if x > HALF else halved(x)


ALL = halved, quartered, kernel, both, recursive


@pytest.fixture(autouse=True)
def new():
    for function in ALL:
        function.hash, function.used_global_vals = None, {}


def test_a_kernel_knows_the_globals_of_what_it_calls():
    _ = kernel.cache_key
    assert not kernel.used_global_vals  # what Triton alone finds out
    settle(kernel)
    assert [name for name, _ in kernel.used_global_vals] == ["HALF"]


@pytest.mark.parametrize("before", [(), (halved,), (halved, quartered), (kernel, halved)])
def test_its_hash_is_the_same_whatever_was_hashed_before(before):
    settle(kernel)
    settled = kernel.cache_key
    for function in ALL:
        function.hash, function.used_global_vals = None, {}
    for function in before:
        _ = function.cache_key
    settle(kernel)
    assert kernel.cache_key == settled


def test_a_change_reaches_all_who_call():
    settle(both)
    known = both.cache_key, quartered.cache_key
    source = halved.src
    try:
        halved._unsafe_update_src(source.replace("* HALF", "+ HALF"))
        settle(quartered)  # halved is settled again before both asks
        settle(both)
        assert not set(known) & {both.cache_key, quartered.cache_key}
    finally:
        halved._unsafe_update_src(source)


def test_a_function_that_calls_itself_is_settled():
    settle(recursive)
    assert [name for name, _ in recursive.used_global_vals] == ["HALF"]


def test_a_settled_kernel_is_left_alone_and_a_changed_one_is_not():
    settle(kernel)
    known, seen = kernel.cache_key, kernel.used_global_vals
    settle(kernel)
    assert kernel.used_global_vals is seen
    source = halved.src
    try:
        halved._unsafe_update_src(source.replace("* HALF", "+ HALF"))
        settle(kernel)
        assert kernel.cache_key != known
    finally:
        halved._unsafe_update_src(source)


def test_what_is_no_function_of_tritons_is_left_alone():
    settle(print)
