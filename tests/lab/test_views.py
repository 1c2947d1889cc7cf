"""The bytes of views, each once: against a walk over their elements."""

import random

import numpy as np
import pytest
import torch

from kernels.lab import aten
from kernels.lab.counting import views
from kernels.lab.counting.views import distinct_bytes


def walked(*several):
    """The bytes reached, one after the other."""
    found = set()
    for view in several:
        item = view.element_size()
        for index in np.ndindex(*view.shape):
            steps = zip(index, view.stride(), strict=True)
            first = (view.storage_offset() + sum(i * s for i, s in steps)) * item
            found.update(range(first, first + item))
    return len(found)


@pytest.mark.parametrize("seed", range(40))
def test_any_views_of_one_memory(seed, monkeypatch):
    rng = random.Random(seed)
    memory = torch.arange(400, dtype=torch.int16)
    several = []
    for _ in range(rng.randint(1, 4)):
        sizes = [rng.randint(0 if rng.random() < 0.05 else 1, 4) for _ in range(rng.randint(0, 3))]
        strides = [rng.choice([0, 1, 2, 3, 4, 5, 12, 20]) for _ in sizes]
        several.append(memory.as_strided(sizes, strides, rng.randint(0, 100)))
    if rng.random() < 0.3:
        several.append(memory[:200].view(torch.int32)[rng.randint(0, 9) :: 3])
    exact = walked(*several)
    assert distinct_bytes(*several) == exact
    monkeypatch.setattr(views, "MOST_RUNS", 0)  # as where there are too many
    assert exact <= distinct_bytes(*several)
    assert distinct_bytes(*several) <= sum(map(torch.Tensor.numel, several)) * 4


def test_large_views_need_no_walk():
    x = torch.empty(1 << 16, 1 << 14, dtype=torch.bfloat16, device="meta")
    assert distinct_bytes(x) == distinct_bytes(x.T) == distinct_bytes(x, x.T) == 2 << 30
    assert distinct_bytes(x[:, :5], x[:, 3:9]) == 2 * 9 << 16
    assert distinct_bytes(x.expand(7, *x.shape)) == 2 << 30
    assert distinct_bytes(x[:, ::2]) == 1 << 30
    assert distinct_bytes(x[:, ::2], x[:, 1::4]) == 3 << 29
    assert distinct_bytes(x[:0], x[0, :0]) == 0


def test_q_k_and_v_that_lie_in_one_tensor_are_all_read():
    b, h, s, d = 2, 4, 32, 16

    def attended(qkv):
        q, k, v = qkv.unflatten(-1, (3, h, d)).permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    qkv = torch.empty(b, s, 3 * h * d, dtype=torch.bfloat16, device="meta")
    (step,) = aten.count(attended, qkv)
    assert step.tensor("qkv").read_unique == qkv.nbytes


@pytest.mark.parametrize(
    ("fn", "read"),
    [
        (lambda x: x * x, 64),
        (lambda x: x[:4] * x[4:], 64),
        (lambda x: x[:4] * x[2:6], 48),
        (lambda x: x[::2] + x[1::2], 64),
        (lambda x: torch.cat([x[:4], x[:4]]), 32),
        (lambda x: x.unfold(0, 4, 1) + 1.0, 64),
        (lambda x: torch.where(x[:4] > 0, x[:4], x[4:]), 64),
    ],
)
def test_an_operator_reads_what_its_views_reach_once(fn, read):  # of 64 bytes
    x = torch.empty(8, 2, dtype=torch.float32, device="meta")
    ledger = aten.count(fn, x)
    assert ledger.steps[-1].tensor("x").read_unique == read
