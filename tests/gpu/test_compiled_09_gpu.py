"""What set 09 says of the compiler's launches holds for the compiler and the card at hand."""

import pytest
import torch

from kernels.grading.questions.ch09 import forecast
from tests.grading import compiled_09

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def test_the_compiler_fuses_what_09_1_says():
    made = compiled_09.recorded(torch.device("cuda", torch.cuda.current_device()))
    launches = {name: len(told["names"]) for name, told in made["kernels"].items()}
    for name, known in forecast.KNOWN.items():
        assert (launches[name] == 1) == known.one_launch, launches
    assert made["texts"].keys() == set(compiled_09.SHOWN)
