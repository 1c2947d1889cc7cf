"""Answers to 15.3, 15.5, 15.6 and 15.7: functions that autograd goes back through, and one back."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from kernels.ops.layers.checkpointed import activated_product as the_packages
from kernels.philox import kept_elements, scale


def gelu_back(da, u):
    return torch.ops.aten.gelu_backward(da, u)


def gelu_back_over(da, u):
    return torch.ops.aten.gelu_backward.grad_input(da, u, grad_input=da)


def tanh_back(da, u):
    return torch.ops.aten.gelu_backward(da, u, approximate="tanh")


# 15.3
class _Over(torch.autograd.Function):
    """x + y, written over one of the two without a trace."""

    @staticmethod
    def forward(ctx, x, y, over):
        total = (x if over == "x" else y).data
        total += y if over == "x" else x
        return total

    @staticmethod
    def backward(ctx, dtotal):
        return dtotal, dtotal, None


def mlp_block_with(fault=""):
    def mlp_block(x, w1, w2):
        u = x @ w1.T
        a = F.gelu(u, approximate="tanh" if fault == "tanh" else "none")
        if fault == "u over":
            u.data.copy_(a)
        y = a @ w2.T
        if fault == "over x":
            return _Over.apply(x, y, "x")
        if fault == "x in place":
            return x.add_(y)
        if fault == "x put back":
            made = _Over.apply(x.clone(), y, "x")
            return made
        if fault == "a over":
            a.data.copy_(u)
        if fault == "a new tensor":
            return x + y
        if fault == "residual by data":
            y.data += x.data
            return y
        if fault == "mlp detached":
            return y.detach().add_(x)
        if fault == "all detached":
            return y.detach().add_(x.detach())
        if fault == "no residual":
            return y
        if fault == "twice":
            return y.add_(x, alpha=2)
        if fault == "taken away":
            return y.sub_(x)
        return y.add_(x)

    return mlp_block


def mlp_block_by_addmm(x, w1, w2):
    return torch.addmm(x, F.gelu(F.linear(x, w1)), w2.t())


def mlp_block_over_y(x, w1, w2):
    """A Function of its own that writes over what no backward reads."""
    return _Over.apply(x, F.gelu(x @ w1.T) @ w2.T, "y")


# 15.5
def product_with(fault=""):
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, u, weight, bias):
            a = F.gelu(u, approximate="tanh" if fault == "tanh" else "none")
            if fault == "relu":
                a = u.relu()
            y = F.linear(a, weight, None if fault == "no bias" else bias)
            ctx.save_for_backward(u, weight)
            if fault == "a kept":
                ctx.save_for_backward(u, weight, a)
            if fault == "y kept":
                ctx.save_for_backward(u, weight, y)
            if fault == "a on ctx":
                ctx.a = a
            if fault == "in a list":
                _KEPT.append(a)
            if fault == "u copied":
                ctx.save_for_backward(u.clone(), weight)
            if fault == "slope kept":
                ctx.slope = gelu_back(torch.ones_like(u), u)
            return y

        @staticmethod
        def backward(ctx, dy):
            u, weight = ctx.saved_tensors[:2]
            a = F.gelu(u)
            if fault == "a of u":
                a = u
            if fault == "gelu twice":
                a = F.gelu(a)
            if fault == "by the engine":
                with torch.enable_grad():
                    leaves = [one.detach().requires_grad_() for one in (u, weight)]
                    made = F.gelu(leaves[0]) @ leaves[1].T
                return *torch.autograd.grad(made, leaves, dy), dy.sum(0)
            if fault == "tanh for dweight":
                a = F.gelu(u, approximate="tanh")
            if fault == "16 bits":
                u = u.bfloat16().float()
            dweight, dbias = dy.T @ a, dy.sum(0)
            if fault == "mean of bias":
                dbias = dy.mean(0)
            da = dy @ weight
            if fault == "tanh slope":
                return tanh_back(da, u), dweight, dbias
            if fault == "over u":
                return u.copy_(gelu_back(da, u)), dweight, dbias
            if fault == "slope at a":
                return gelu_back(da, a), dweight, dbias
            if fault == "slope at da":
                return gelu_back(u, da), dweight, dbias
            if fault == "no slope":
                return da, dweight, dbias
            if fault == "gelu for slope":
                return da * a, dweight, dbias
            if fault == "no gradient":
                return gelu_back(da, u), None, dbias
            if fault == "order":
                return gelu_back(da, u), dbias, dweight
            return gelu_back(da, u), dweight, dbias

    def activated_product(u, weight, bias):
        return Product.apply(u, weight.detach() if fault == "cut off" else weight, bias)

    return activated_product


_KEPT = []


class _Needed(torch.autograd.Function):
    """Saved as it came in, and the slope by its formula."""

    @staticmethod
    def forward(ctx, u, weight, bias):
        ctx.save_for_backward(u, weight)
        return torch.addmm(bias, F.gelu(u), weight.t())

    @staticmethod
    def backward(ctx, dy):
        u, weight = ctx.saved_tensors
        du = dweight = dbias = None
        if ctx.needs_input_grad[0]:
            normal = torch.exp(-0.5 * u**2) / (2 * torch.pi) ** 0.5
            du = torch.mm(dy, weight) * (torch.special.ndtr(u) + u * normal)
        if ctx.needs_input_grad[1]:
            dweight = torch.mm(dy.t(), F.gelu(u))
        if ctx.needs_input_grad[2]:
            dbias = torch.sum(dy, dim=0)
        return du, dweight, dbias


def product_as_needed(u, weight, bias):
    return _Needed.apply(u, weight, bias)


def product_by_operators(u, weight, bias):
    return F.linear(F.gelu(u), weight, bias)


def product_by_checkpoint(u, weight, bias):
    return checkpoint(product_by_operators, u, weight, bias, use_reentrant=False)


def product_by_the_package(u, weight, bias):
    return the_packages(u, weight, bias, "gelu")


# 15.6
P = 0.25


def draw():
    return torch.randint(2**62, (2,))


def factors(u, seed_offset):
    return kept_elements(tuple(u.shape), P, seed_offset) * scale(P)


_LAST = {}


def dropped_with(fault=""):
    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, u, weight):
            seed_offset = torch.tensor([5, 6]) if fault == "one seed" else draw()
            _LAST["seed"] = seed_offset
            made = factors(u, seed_offset)
            if fault == "no dropout":
                made = torch.ones_like(u)
            if fault == "no scale":
                made = made / scale(P)
            if fault == "scale twice":
                made = made * scale(P)
            a = F.gelu(u * made) if fault == "gelu last" else F.gelu(u) * made
            ctx.save_for_backward(u, weight, seed_offset)
            if fault == "mask kept":
                ctx.mask = made
            if fault == "mask of bool":
                ctx.mask = made > 0
            if fault == "a kept":
                ctx.a = a
            if fault == "generator's state":
                ctx.state = torch.get_rng_state()
            return a @ weight.T

        @staticmethod
        def backward(ctx, dy):
            u, weight, seed_offset = ctx.saved_tensors
            if fault == "drawn again":
                seed_offset = draw()
            if fault == "last call's":
                seed_offset = _LAST["seed"]
            made = factors(u, seed_offset)
            if fault == "next offset":
                made = factors(u, seed_offset + torch.tensor([0, 1]))
            if fault == "turned":
                made = factors(u.T, seed_offset).T
            if fault == "one seed" or fault == "":
                pass
            of_a = F.gelu(u) * made
            of_u = dy @ weight * made
            if fault == "no mask in du":
                of_u = dy @ weight
            if fault == "no mask in dweight":
                of_a = F.gelu(u)
            if fault == "no scale in du":
                of_u = of_u / scale(P)
            if fault == "factors twice":
                of_u = of_u * made
            return gelu_back(of_u, u), dy.T @ of_a

    def dropped_product(u, weight):
        return Dropped.apply(u, weight)

    return dropped_product


class _OnCtx(torch.autograd.Function):
    """The seed as two numbers of Python; the factors multiply what forward multiplied."""

    @staticmethod
    def forward(ctx, u, weight):
        ctx.seed = draw().tolist()
        ctx.save_for_backward(u, weight)
        return F.linear(F.gelu(u).mul_(factors(u, torch.tensor(ctx.seed))), weight)

    @staticmethod
    def backward(ctx, dy):
        u, weight = ctx.saved_tensors
        made = factors(u, torch.tensor(ctx.seed))
        return gelu_back(made * (dy @ weight), u), (F.gelu(u) * made).T.mm(dy).T


def dropped_by_numbers(u, weight):
    return _OnCtx.apply(u, weight)


class _Masked(torch.autograd.Function):
    """Other random numbers than the book's: a generator of its own, whose seed is kept."""

    @staticmethod
    def forward(ctx, u, weight):
        ctx.seed = int(torch.randint(2**62, (1,)))
        ctx.save_for_backward(u, weight)
        return (F.gelu(u) * _of_generator(u, ctx.seed)) @ weight.T

    @staticmethod
    def backward(ctx, dy):
        u, weight = ctx.saved_tensors
        made = _of_generator(u, ctx.seed)
        return gelu_back(dy @ weight * made, u), dy.T @ (F.gelu(u) * made)


def _of_generator(u, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(u.shape, generator=generator) >= P) / (1 - P)


def dropped_by_a_generator(u, weight):
    return _Masked.apply(u, weight)


# 15.7
def back_with(fault=""):
    def product_backward(dy, u, weight):
        if fault == "as given out":
            a = F.gelu(u)
            da = dy @ weight
            return gelu_back(da, u), dy.T @ a
        if fault == "over u":
            dweight = dy.T @ F.gelu(u)
            da = dy @ weight
            return u.copy_(gelu_back_over(da, u)), dweight
        if fault == "da first":
            da = dy @ weight
            dweight = dy.T @ F.gelu(u)
            return gelu_back_over(da, u), dweight
        a = F.gelu(u)
        if fault == "a written over":
            torch.mm(dy, weight, out=a)
            return gelu_back_over(a, u), dy.T @ a
        if fault == "du over a first":
            torch.mm(dy, weight, out=a)
            gelu_back_over(a, u)
            return a, dy.T @ a
        if fault == "a of u":
            a = u
        across = dy.T.contiguous() if fault == "dy copied" else dy.T
        dweight = a.T @ dy if fault == "transposed" else across @ a
        if fault == "mean":
            dweight /= len(dy)
        if fault != "a held":
            del a
        da = dy @ weight
        if fault == "tanh slope":
            return tanh_back(da, u), dweight
        if fault == "a new du":
            return gelu_back(da, u), dweight
        if fault == "no slope":
            return da, dweight
        if fault == "slope at da":
            return gelu_back(u, da), dweight
        if fault == "changed places":
            return dweight, gelu_back_over(da, u)
        if fault == "du alone":
            return gelu_back_over(da, u)
        return gelu_back_over(da, u), dweight

    return product_backward


def back_in_one_buffer(dy, u, weight):
    """a's own memory takes da, and then du."""
    buffer = F.gelu(u)
    dweight = torch.mm(dy.t(), buffer)
    torch.mm(dy, weight, out=buffer)
    torch.ops.aten.gelu_backward.grad_input(buffer, u, grad_input=buffer)
    return [buffer, dweight]


def back_in_pieces(dy, u, weight):
    """A few columns of a at a time: no a, and yet more than the results."""
    du, dweight = dy @ weight, torch.empty_like(weight)
    for first in range(0, u.shape[1], 8):
        cols = slice(first, first + 8)
        dweight[:, cols] = dy.T @ F.gelu(u[:, cols])
    return gelu_back_over(du, u), dweight


def back_inside(dy, u, weight):
    """a has no name."""
    dweight = torch.einsum("te,ti->ei", dy, F.gelu(u))
    du = torch.matmul(dy, weight)
    return gelu_back_over(du, u), dweight
