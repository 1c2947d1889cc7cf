"""Philox in Triton by products of 64 bits: the words of `philox_triton`, in fewer instructions.

A round takes both halves of two products. `tl.philox` asks for each by itself, and so the compiler
computes two products for one; PTX has an instruction that gives both. On an H200 the backward of
the chain behind a norm, which instructions bind, takes 265 µs with these for 278 (16384×8192, bf16,
`python -m kernels.lab bench pointwise`). Its forward does not gain, and has `tl.philox`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from kernels.launch.assembly import means

FACTOR_0 = tl.constexpr(0xD2511F53)
FACTOR_1 = tl.constexpr(0xCD9E8D57)


def wide_product(factor: int) -> str:
    """PTX for the low and the high half of a product of 32-bit numbers."""
    return f"{{ .reg .b64 t; mul.wide.u32 t, $2, {factor:#x}; mov.b64 {{$0, $1}}, t; }}"


def _halves(factor: int) -> Any:
    def of(x: Any) -> tuple[Any, Any]:
        product = x.astype(np.uint64) * np.uint64(factor)
        return product.astype(np.uint32), (product >> np.uint64(32)).astype(np.uint32)

    return of


PRODUCT_0 = tl.constexpr(wide_product(FACTOR_0.value))
PRODUCT_1 = tl.constexpr(wide_product(FACTOR_1.value))
means(PRODUCT_0.value, _halves(FACTOR_0.value))
means(PRODUCT_1.value, _halves(FACTOR_1.value))


@triton.jit
def _wide(x, PRODUCT: tl.constexpr):
    return tl.inline_asm_elementwise(
        PRODUCT, "=r,=r,r", [x], dtype=(tl.uint32, tl.uint32), is_pure=True, pack=1
    )


@triton.jit
def words_by_wide_products(seed_offset_ptr, block):
    """The four uint32 words of each block, int64 of any shape."""
    seed = tl.load(seed_offset_ptr)
    offset = tl.load(seed_offset_ptr + 1)
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    c0, c1 = block.to(tl.uint32), (block >> 32).to(tl.uint32)
    # In the first round a counter's second half is a scalar still.
    product = (offset & 0xFFFFFFFF).to(tl.uint64) * FACTOR_1
    low_0, high_0 = _wide(c0, PRODUCT_0)
    c2, c3 = high_0 ^ (offset >> 32).to(tl.uint32) ^ high, low_0
    c0, c1 = (product >> 32).to(tl.uint32) ^ c1 ^ low, tl.zeros_like(c0) + product.to(tl.uint32)
    for _ in tl.static_range(9):
        low, high = low + 0x9E3779B9, high + 0xBB67AE85
        low_0, high_0 = _wide(c0, PRODUCT_0)
        low_1, high_1 = _wide(c2, PRODUCT_1)
        c0, c1, c2, c3 = high_1 ^ c1 ^ low, low_1, high_0 ^ c3 ^ high, low_0
    return c0, c1, c2, c3
