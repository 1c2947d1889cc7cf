"""Descriptors that a kept launch hands over encoded: once an address, and as Triton would."""

from types import SimpleNamespace

import pytest
import torch
from triton.backends.nvidia import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.launch import encoded, plan
from kernels.launch.tape import Source

META = {"swizzle": 3}
SIGNATURE = {0: "*bf16", 1: "tensordesc<bf16[8, 64]>", 2: "i32"}


@pytest.fixture
def encodings(monkeypatch):
    """The addresses that were encoded, by a stand-in for the driver's call."""
    seen = []

    def encode(descriptor, meta):
        seen.append(descriptor.base.data_ptr())
        return [("map", seen[-1], meta["swizzle"]), *descriptor.shape, *descriptor.strides]

    monkeypatch.setattr(driver, "make_tensordesc_arg", encode)
    return seen


def launched(*args):
    """What a launcher in C would be given behind its own arguments."""
    return args[-1] if isinstance(args[-1], list) else list(args[13:])


def descriptor():
    return TensorDescriptor.from_tensor(torch.zeros(32, 64), [8, 64])


def test_beneath_is_the_launcher_and_what_it_knows_of_each_descriptor(encodings):
    wrapped = driver.wrap_handle_tensordesc(launched, SIGNATURE, [META])
    assert encoded.beneath(wrapped) == (launched, {1: META})
    assert encoded.beneath(driver.wrap_handle_tensordesc(launched, SIGNATURE, None)) is None
    assert encoded.beneath(launched) is None  # takes no descriptor
    assert encoded.beneath(lambda *args: launched(*args)) is None
    assert encoded.beneath(object()) is None


def test_each_address_is_encoded_once_and_as_triton_encodes_it(encodings):
    one = descriptor()
    by_address = encoded.Encoded(lambda at: plan._at(one, at), META)
    address = one.base.data_ptr()
    assert by_address[address] == tuple(driver.make_tensordesc_arg(one, META))
    assert by_address[address] is by_address[address]
    assert by_address[64] == (("map", 64, 3), 32, 64, 64, 1)
    assert encodings == [address, address, 64]  # the second is the test's own
    for at in range(3 * encoded.MOST_ADDRESSES):
        assert by_address[at][0][1] == at
        assert len(by_address) <= encoded.MOST_ADDRESSES


def recorded(values, sources):
    """The text of a launch of such values in a record, the names it uses, and the record."""
    run = SimpleNamespace(
        launch=driver.wrap_handle_tensordesc(lambda *args: list(args[13:]), SIGNATURE, [META]),
        launch_cooperative_grid=False,
        launch_pdl=False,
    )
    taped = SimpleNamespace(
        compiled=SimpleNamespace(run=run, function=7, packed_metadata=8),
        sources=sources,
        values=values,
        grid=(4, 1, 1),
    )
    record = object.__new__(plan.Plan)
    record.ways, record.device, record._names = ["c"], torch.device("cuda", 0), {}
    names = {"stream": lambda index: index}
    text = record._launch(0, taped, names)
    return text, names | record._names


def test_a_record_hands_them_over_by_address(encodings):
    """The text of a launch, run: two addresses, three calls, two encodings."""
    text, names = recorded((torch.zeros(1), descriptor(), 5), [(0, Source(1)), (1, Source(0, 128))])
    for p0 in (1024, 2048, 1024):
        given = eval(text, names | {"p0": p0, "p1": 16})
        assert given == [16, ("map", p0 + 128, 3), 32, 64, 64, 1, 5]
    assert encodings == [1024 + 128, 2048 + 128]


def test_a_tables_is_encoded_with_the_record_and_never_again(encodings):
    table = descriptor()
    text, names = recorded((torch.zeros(1), table, 5), [(0, Source(0))])
    address = table.base.data_ptr()
    for _ in range(2):
        assert eval(text, names | {"p0": 16}) == [16, ("map", address, 3), 32, 64, 64, 1, 5]
    assert encodings == [address]
    assert any(value is table for value in names.values())  # so that its address stays its own
