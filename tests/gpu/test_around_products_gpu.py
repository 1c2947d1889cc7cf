"""What fuses around a product by hand for Hopper moves the bytes of its formula, on a card."""

import pytest
import torch

from kernels.registry import Case, get
from tests.gpu.around_child import LAUNCHED
from tests.gpu.profiled import kernels_of

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0"),
]
SECTOR = 32  # bytes
SM_WITHIN, DRAM_WITHIN = 0.03, 0.10
# Rows that begin within a line of 128 bytes make the copy engine fetch some parts twice.
STRADDLING_WITHIN, LINE = 0.08, 128


def stored(written, row):
    """Bytes of the sectors that stores of an output touch, in lines from a row's start.

    `written` bytes in rows of `row`. Where rows aren't whole sectors, some lines begin within one,
    and touch a fifth.
    """
    lines = [(at, min(at + LINE, row)) for at in range(0, row, LINE)]
    starts = range(0, written, row)
    return SECTOR * sum(
        -(-(start + end) // SECTOR) - (start + at) // SECTOR
        for start in starts
        for at, end in lines
    )


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """What Nsight Compute saw of each of LAUNCHED."""
    folder = tmp_path_factory.mktemp("around")
    # One launch each, the weights folded before.
    kernels = kernels_of(folder, "tests.gpu.around_child", "requested", len(LAUNCHED))
    return dict(zip(LAUNCHED, kernels, strict=True))


@pytest.mark.alone
@pytest.mark.proves(
    "kernels.ops.epilogues.hopper_kernels",
    "kernels.ops.epilogues.moves",
    "kernels.ops.prologues.hopper_kernels",
    "kernels.ops.prologues.moves",
)
@pytest.mark.parametrize("launched", LAUNCHED, ids=str)
def test_bytes_are_those_of_the_formula(launched, profiled):
    name, shape = launched
    op, case = get(name), Case(shape, torch.bfloat16)
    variant = op.variant("fused_hopper")
    assert variant.fits(case)
    assert variant.moves is not None
    seen, told = profiled[launched], variant.moves(case, "fwd")
    written = op.forward.cost(case).write_bytes
    k = shape[2] if name == "qkv" else shape[1]
    within = STRADDLING_WITHIN if k * 2 % LINE else SM_WITHIN
    assert seen.sm_read == pytest.approx(told.requested - written, rel=within)
    assert seen.sm_write == pytest.approx(
        stored(written, 2 * shape[-1 if name == "qkv" else 2]), rel=SM_WITHIN
    )
    assert seen.l2_read_sectors * SECTOR < seen.sm_read  # neighbours' requests reach it as one
    read = told.unique - written
    assert read <= torch.cuda.get_device_properties(0).L2_cache_size
    assert seen.dram_read == pytest.approx(read, rel=DRAM_WITHIN)  # each once, then from the L2
