"""The makers' figures against what the driver says of the card that is here."""

import pytest
import torch

from kernels.lab.cards import devices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def test_the_driver_says_what_the_maker_says():
    told = torch.cuda.get_device_properties(0)
    try:
        card = devices.this_card()
    except LookupError:
        pytest.skip(f"{told.name} is not in the table")
    assert card.slug == devices.describe()["slug"]
    assert divmod(card.capability, 10) == (told.major, told.minor)
    assert card.sms in (None, told.multi_processor_count)
    assert card.l2_bytes is None or card.l2_bytes == pytest.approx(told.L2_cache_size, rel=0.01)
    limits = card.limits
    assert limits.registers_per_sm == told.regs_per_multiprocessor
    assert limits.shared_bytes_per_sm == told.shared_memory_per_multiprocessor
    assert limits.shared_bytes_per_block == told.shared_memory_per_block_optin
    pins_bytes_per_s = 2 * told.memory_clock_rate * 1e3 * told.memory_bus_width / 8
    assert card.bandwidth_bytes_per_s == pytest.approx(pins_bytes_per_s, rel=0.02)
