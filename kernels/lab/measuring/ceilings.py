"""What the card can do at most, measured: a large copy, a large product, a launch, a load.

These are operations like any other, so that the bench treats them alike, but they stand in no
registry: no chapter teaches them and no grader asks for them.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.lab.measuring.copying import copy_by_driver, copy_by_kernel
from kernels.lab.measuring.memory_probes import probes
from kernels.registry import DTYPES, Case, Cost, Op, Pass, Shape, Tolerance, Variant, named

COPY_COLS = 4096
MIB = 1 << 20
COPY_BYTES = (64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB)
MATMUL_SIZE = 8192


def _random(shape: Shape, dtype: torch.dtype, device: torch.device, seed: int) -> torch.Tensor:
    generator = torch.Generator(device=device).manual_seed(seed)
    # Random data, since zeros make a matrix product draw less power and run faster than real data.
    return torch.randn(shape, dtype=dtype, device=device, generator=generator)


def _one(
    shape: Shape, dtype: torch.dtype, device: torch.device, seed: int, **_: Any
) -> dict[str, Any]:
    return {"x": _random(shape, dtype, device, seed)}


def _two(
    shape: Shape, dtype: torch.dtype, device: torch.device, seed: int, **_: Any
) -> dict[str, Any]:
    m, k, n = shape
    return {
        "a": _random((m, k), dtype, device, seed),
        "b": _random((k, n), dtype, device, seed + 1),
    }


def _copy_cost(case: Case) -> Cost:
    size = case.shape[0] * case.shape[1] * case.dtype.itemsize
    return Cost(0, size, size)


def _add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1.0


def _launch_cost(case: Case) -> Cost:
    return Cost(1, case.dtype.itemsize, case.dtype.itemsize)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def _product_tf32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return a @ b
    finally:
        torch.set_float32_matmul_precision(before)


def _product_cost(case: Case) -> Cost:
    m, k, n = case.shape
    size = case.dtype.itemsize
    return Cost(2 * m * k * n, (m * k + k * n) * size, m * n * size)


def _needs_tensor_cores(device: torch.device) -> str | None:
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "tf32 needs compute capability 8.0 or later"
    return None


def _tolerance(case: Case, _name: str) -> Tolerance:
    # tf32 keeps 10 bits of an fp32 operand: 3e-4 was measured.
    bound = {torch.float32: 1e-3, torch.float16: 2e-3, torch.bfloat16: 1e-2}[case.dtype]
    return Tolerance(bound, 10 * bound)


def ceiling_ops() -> list[Op]:
    """Return the operations of the suite `ceilings`."""
    fp32 = torch.float32
    copy = Op(
        name="copy",
        suite="ceilings",
        inputs=_one,
        reference=lambda x: x.double(),
        dims="RN",
        tensors={"x": "RN"},
        outputs={"y": "RN"},
        independent="R",
        variants=named(Variant("torch", copy_by_driver), Variant("kernel", copy_by_kernel)),
        forward=Pass(_copy_cost, _tolerance),
        # The bytes of one side; a copy reads and writes that many each.
        shapes=tuple((size // (4 * COPY_COLS), COPY_COLS) for size in COPY_BYTES),
        dtypes=(fp32,),  # a copy is the same in any dtype, and every card has this one
    )

    def product(name: str, variant: Variant, dtypes: tuple[torch.dtype, ...]) -> Op:
        return Op(
            name=name,
            suite="ceilings",
            inputs=_two,
            reference=lambda a, b: a.double() @ b.double(),
            dims="MKN",
            tensors={"a": "MK", "b": "KN"},
            outputs={"product": "MN"},
            variants=named(variant),
            forward=Pass(_product_cost, _tolerance),
            shapes=((MATMUL_SIZE,) * 3,),
            dtypes=dtypes,
        )

    launch = Op(
        name="launch",
        suite="ceilings",
        inputs=_one,
        reference=lambda x: x.double() + 1.0,
        dims="N",
        tensors={"x": "N"},
        outputs={"y": "N"},
        variants=named(Variant("torch", _add_one)),
        forward=Pass(_launch_cost, _tolerance),
        shapes=((1,),),
        dtypes=(fp32,),
    )
    tf32 = Variant("torch_tf32", _product_tf32, unavailable=_needs_tensor_cores)
    return [
        copy,
        product("matmul", Variant("torch", _product), tuple(DTYPES.values())),
        product("matmul", tf32, (fp32,)),
        launch,
        *probes(),
    ]
