"""A product in CUDA C++ on the emulator: against float64, in bytes and sectors, what it refuses."""

import pytest
import torch

from kernels.lab.counting import op_ledger, traffic
from kernels.launch import interpreting
from kernels.ops.products import linear_cuda
from kernels.ops.products.linear import OP, reference
from kernels.ops.products.linear_cuda import TILE, cuda_1, cuda_2
from kernels.registry import DTYPES, Case
from tests.ops.layouts import LAYOUTS
from tests.ops.test_linear import make, off, rounding

BOTH = pytest.mark.parametrize("fn", [cuda_1, cuda_2], ids=lambda fn: fn.__name__)


@BOTH
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(32, 32, 48), (17, 33, 19), (1, 1, 1), (3, 50, 1)], ids=str)
def test_every_size_and_dtype(fn, shape, dtype):
    given = make(shape, dtype)
    assert off(fn(**given), reference(**given)) <= rounding(dtype)


@BOTH
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_and_no_bias(fn, layout):
    given = make((18, 20, 22), torch.float32)
    x, weight = layout(given["x"]), layout(given["weight"])
    for bias in (None, LAYOUTS["every_second"](given["bias"])):
        y = fn(x, weight, bias)
        assert off(y, reference(x, weight, bias)) <= rounding(torch.float32)
    assert fn(x[:0], weight).shape == (0, 22)
    assert fn(x.reshape(3, 6, 20), weight).shape == (3, 6, 22)


def steps(fn, given):
    with interpreting() as launches:
        fn(**given)
    return traffic.ledger_of(launches).steps[0]


def test_a_tile_in_shared_memory_is_asked_for_a_tiles_width_less_often():
    given = make((32, 48, 64), torch.float32)
    one, two = steps(cuda_1, given), steps(cuda_2, given)
    for tensor in ("x", "w"):
        assert one.tensor(tensor).read_unique == two.tensor(tensor).read_unique
        assert one.tensor(tensor).read_requested == TILE * two.tensor(tensor).read_requested
    assert one.tensor("x").times_read == 64
    assert two.tensor("x").times_read == 64 / TILE


def test_neighbours_in_n_read_the_weight_a_sector_each():
    """By threads a request for w is 32 rows, so 32 sectors for 32 elements; by tiles 2 rows."""
    given = make((32, 64, 64), torch.float32)
    one, two = steps(cuda_1, given), steps(cuda_2, given)
    m, k, n = 32, 64, 64
    requests = m * k * n // 32  # of x and of w by the warps of cuda_1
    of_y = 32 * (m * n // 32) * 4  # 4 sectors a request; of the bias too, or 2 for 16 columns
    assert one.bytes_sectors == 32 * requests * (1 + 32) + 2 * of_y
    fetched = (m * k * n // TILE) * 2 * 4  # 16 elements of fp32 are two whole sectors
    assert two.bytes_sectors == fetched + of_y + of_y // 2


def test_a_large_case_is_told_by_formula():
    (case,) = linear_cuda.VARIANTS[0].cases
    m, k, n = case.shape
    for name, times in (("cuda_1", n), ("cuda_2", n // TILE)):
        ledger = op_ledger.count_case(OP, name, case)
        assert ledger.method == "formula"
        assert ledger.steps[0].tensor("x").read_requested == 2 * m * k * times
    assert op_ledger.count_case(OP, "cuda_2", Case((8, 8, 8), torch.float32)).method == "full"


@BOTH
def test_gradients_are_refused(fn):
    given = make((4, 5, 6), torch.float32)
    given["x"].requires_grad_()
    with pytest.raises(RuntimeError, match="linear has no backward pass"):
        fn(**given)
