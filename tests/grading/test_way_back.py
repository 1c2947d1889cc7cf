"""Gradients without autograd's engine are those of the engine."""

import pytest
import torch

from kernels.grading.questions.kits.way_back import gradient


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * dy * x**2


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, factor, x, constant, y):
        ctx.factor = factor
        return factor * x + constant + y

    @staticmethod
    def backward(ctx, dy):
        return None, ctx.factor * dy, None, dy


FUNCTIONS = {
    "of one's own": lambda x: Cube.apply(x) + x,
    "of arguments that are no tensors": lambda x: Scaled.apply(3, x, torch.ones(8), x * x),
    "scaled": lambda x: x * 3,
    "twice used": lambda x: x * x.sum() + x,
    "a norm": lambda x: x * torch.where(x.norm() > 1, 1 / x.norm(), torch.ones(())),
    "parts": lambda x: torch.cat([part * (n + 1) for n, part in enumerate(x.split(3))]),
    "two outputs": lambda x: torch.stack([x.sort().values, x.topk(8).values]).sum(0),
    "views": lambda x: x.view(2, 4).t().reshape(-1).exp(),
    "a side that stops": lambda x: x.detach() * x,
    "the leaf": lambda x: x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_gradient_is_the_engines(name):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(8, generator=generator).requires_grad_()
    upstream = torch.randn(8, generator=generator)
    (expected,) = torch.autograd.grad(FUNCTIONS[name](x), x, upstream)
    torch.testing.assert_close(gradient(FUNCTIONS[name](x), x, upstream), expected)


def test_the_root_of_zero_is_as_bad_as_the_engines():
    x = torch.zeros(4, requires_grad=True)
    y = x * torch.where(x.square().sum().sqrt() > 1, 0.5, 1 / x.square().sum().sqrt())
    assert bool(gradient(torch.nan_to_num(y), x, torch.ones(4)).isnan().all())


def test_what_does_not_reach_the_leaf_gives_none():
    x, other = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    assert gradient(other * 2, x, torch.ones(3)) is None
    assert gradient(torch.ones(3), x, torch.ones(3)) is None
