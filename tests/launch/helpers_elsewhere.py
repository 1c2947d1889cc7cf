"""Helpers in a file of their own, for the tests of how errors name it."""

import triton
import triton.language as tl


@triton.jit
def load_at(x_ptr, i):
    return tl.load(x_ptr + i)


@triton.jit
def misspelled(x):
    return x * not_there  # noqa: F821
