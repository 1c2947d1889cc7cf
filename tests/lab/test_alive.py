"""Bytes alive at once: storages, not views; what autograd keeps; fake tensors of any size."""

import torch

from kernels.lab.counting.alive import Alive, peak_of_a_step


def test_a_storage_counts_until_its_last_reference_is_gone():
    x = torch.ones(1000)
    with Alive(x) as alive:
        y = x + 1
        view = y[:10]
        z = y * 2
        del y
        assert alive.now == alive.peak == 8000
        del view, z
        assert alive.now == 0
        x.add_(1)  # known, and not made
    assert alive.peak == 8000


def test_what_autograd_keeps_is_alive():
    x = torch.ones(1000, requires_grad=True)
    with Alive(x) as alive:
        y = x.exp()
        loss = y.sum()
        del y  # its node keeps it for the backward
        assert alive.now == 4000 + 4
        del loss
        assert alive.now == 0


def test_a_step_takes_no_memory_and_its_gradients_are_no_surplus():
    def loss(x, weight, targets):
        kept = (x * weight).exp()
        return kept.sum() + targets.sum()

    rows, cols = 1 << 20, 1 << 14
    with torch.device("meta"):
        x, weight = torch.empty(rows, cols), torch.empty(cols)
        targets = torch.empty(3, dtype=torch.int64)
    whole = 4 * rows * cols
    # Going back: the gradient of the product, that of x, and that of weight before it is summed up.
    numbers = 4 + 8 + 4  # the sums and their total
    assert 0 <= peak_of_a_step(loss, x, weight, targets) - 2 * whole <= numbers
    assert peak_of_a_step(lambda x: x.sum(), torch.ones(1000)) == 4 + 4  # the sum and its gradient
