"""The Python of a GPU machine, often another version, gives sources the hashes that ours gives."""

import pytest

from kernels.lab.records import sources
from tests.lab.test_sources import EVERYTHING, ITS_HASH

pytestmark = pytest.mark.gpu  # runs anywhere, and on a GPU machine before any proof is believed


def test_this_python_gives_the_hashes_of_every_other():
    assert sources.digest(EVERYTHING, True) == ITS_HASH
