"""Attention by hand for Hopper moves the bytes of its formula, forward and back, on a card."""

import pytest
import torch

from kernels.ops.attention.backward_configurations import HOPPER_ROWS
from kernels.registry import Case, get
from tests.gpu.attention_child import LAUNCHED
from tests.gpu.profiled import kernels_of

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0"),
]
SM_WITHIN, DRAM_WITHIN = 0.03, 0.10


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """What Nsight Compute saw of the kernels of each of LAUNCHED."""
    count = sum(one[3] for one in LAUNCHED)
    folder = tmp_path_factory.mktemp("attention")
    kernels = iter(kernels_of(folder, "tests.gpu.attention_child", "requested", count))
    return {one: [next(kernels) for _ in range(one[3])] for one in LAUNCHED}


@pytest.mark.proves(
    "kernels.ops.attention.hopper_kernels",
    "kernels.ops.attention.hopper_backward_kernels",
    "kernels.ops.attention.hopper_dq_kernels",
    "kernels.ops.attention.moves",
)
@pytest.mark.parametrize("launched", LAUNCHED, ids=str)
def test_bytes_are_those_of_the_formula(launched, profiled):
    shape, options, pass_, _ = launched
    op, case, seen = get("attention"), Case(shape, torch.bfloat16, options), profiled[launched]
    variant = op.variant("fused_hopper")
    told = variant.moves(case, pass_)
    written = op.pass_(pass_).cost(case).write_bytes
    if pass_ == "bwd":  # and two numbers a row, in rows to whole tiles
        written += 8 * shape[0] * shape[1] * -(-shape[2] // HOPPER_ROWS) * HOPPER_ROWS
    requested = sum(kernel.sm_read for kernel in seen)
    assert requested == pytest.approx(told.requested - written, rel=SM_WITHIN)
    assert sum(kernel.sm_write for kernel in seen) == pytest.approx(written, rel=SM_WITHIN)
    read = told.unique - written
    assert read <= torch.cuda.get_device_properties(0).L2_cache_size * len(seen)
    assert sum(kernel.dram_read for kernel in seen) == pytest.approx(read, rel=DRAM_WITHIN)
