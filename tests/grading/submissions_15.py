"""Answers to the questions of set 15 that tell numbers and names: right ones and known-wrong ones.

15.1, 15.2, 15.4, 15.9 and 15.10; the functions of the others stand beside it.
"""

import numpy as np
import torch

from kernels.grading.questions.ch15 import costs, inverted, kept
from kernels.grading.questions.ch15 import peaks as timelines


def parts_replaced(right, *parts):
    """The tuple of `right` with some parts by other functions of the same arguments."""

    def answer(*args):
        told = right(*args)
        return tuple(f(*args) if f else r for f, r in zip(parts, told, strict=True))

    return answer


# 15.1
def kept_bytes(*args):
    return tuple(one(*args) for one in kept.RIGHT)


def kept_tensor_by_tensor(batch, length, width, inner, heads, itemsize):
    tokens = np.int64(batch * length)
    wide = {"qkv": 3 * width, "o": width, "h": width, "n": width, "y": width}
    wide |= {"u": inner, "a": inner}
    rest = 4 * tokens * heads + 2 * 4 * tokens + 8 * 8

    def without(*names):
        return sum(tokens * n * itemsize for name, n in wide.items() if name not in names) + rest

    return [without(), without("a"), without("a", "o")]


def kept_with(plain=None, gelu=None, both=None):
    return parts_replaced(kept_bytes, plain, gelu, both)


def off_by(one, of):
    """A number of 15.1 with as many bytes less as a function of the call tells."""
    return lambda *args: one(*args) - of(kept.Call(*args))


def all_off_by(of):
    return kept_with(*(off_by(one, of) for one in kept.RIGHT))


# 15.2
def kept_for_nothing_with(fault=""):
    def kept_for_nothing(layer):
        saved = dict(layer.saved)
        right = layer.backward(saved)
        names = []
        for name, one in saved.items():
            if fault == "numbers alone" and one.dtype == torch.bool:
                continue
            if fault == "zeros":
                other = torch.zeros_like(one)
            elif fault == "ones":
                other = torch.ones_like(one)
            elif one.dtype == torch.bool:
                other = torch.full_like(one, torch.nan) if fault == "nan in masks" else ~one
            elif fault == "one number":
                other = one.clone()
                other[..., -1] *= 1.0
            elif fault == "doubled":
                other = 2 * one
            else:
                other = torch.randn(one.shape, dtype=one.dtype)
            if fault == "all at once":
                saved[name] = other
                made = layer.backward(saved)
            else:
                made = layer.backward(saved | {name: other})
            compared = list(zip(right, made, strict=True))
            if fault == "first gradient":
                compared = compared[:1]
            if fault == "last gradient":
                compared = compared[-1:]
            if fault == "sums":
                same = all(torch.allclose(a.sum(), b.sum()) for a, b in compared)
            else:
                same = all(torch.equal(a, b) for a, b in compared)
            if same != (fault == "turned"):
                names.append(name)
        return names

    return kept_for_nothing


def kept_for_nothing_by_nan(layer):
    """Of masks both values are tried."""
    right = layer.backward(layer.saved)

    def unread(name, one):
        fill = not bool(one.flatten()[0]) if one.dtype == torch.bool else float("nan")
        others = {**layer.saved, name: torch.full_like(one, fill)}
        return all(map(torch.equal, right, layer.backward(others)))

    return frozenset(name for name, one in layer.saved.items() if unread(name, one))


def kept_by_trying_long(layer):
    for _ in range(9):
        layer.backward(layer.saved)
    return kept_for_nothing_by_nan(layer)


# 15.4
def peaks(*args):
    return timelines.peaks(*args)


def peaks_as_time_goes(steps, back, sizes, again):
    """Step by step, a set of what is alive, readers counted down."""

    def peak(steps):
        lives = []
        for reads, writes in steps:
            lives.append([reads, dict.fromkeys(writes, 0)])
        owner = {}
        for number, (reads, writes) in enumerate(lives):
            for name in reads:
                if name in owner:
                    lives[owner[name]][1][name] = number
            owner |= dict.fromkeys(writes, number)
        alive, most = {}, 0
        for number, (_, writes) in enumerate(lives):
            for name, last in writes.items():
                if last == 0:
                    last = len(steps) - 1 if owner[name] == number else number
                alive[name, number] = last
            most = max(most, sum(sizes[name] for name, _ in alive))
            alive = {key: last for key, last in alive.items() if last > number}
        return most

    made = next(step for step in steps if again in step[1])
    place = min(n for n, (reads, _) in enumerate(steps) if n >= back and again in reads)
    return [peak(steps), peak([*steps[:place], made, *steps[place:]])]


def peaks_with(plain=None, with_again=None):
    return parts_replaced(peaks, plain, with_again)


# 15.9
def rebuilt(y, weight, bias, tolerance):
    wide, scaled = y.float(), weight.float()
    lost = wide.abs().amax(0) * torch.finfo(y.dtype).eps / 2 > tolerance * scaled.abs()
    lost |= scaled == 0
    return ((wide - bias.float()) / scaled).masked_fill(lost, 0), lost


def rebuilt_the_other_way(y, weight, bias, tolerance):
    """By the bound itself, which is infinite or nan where weight is 0."""
    bound = torch.finfo(y.dtype).eps / 2 * y.double().abs().max(0).values / weight.double().abs()
    fine = bound <= tolerance
    x_hat = torch.zeros(y.shape)
    x_hat[:, fine] = (y.float()[:, fine] - bias.float()[fine]) / weight.float()[fine]
    return [x_hat, ~fine]


def rebuilt_by_rule(rule):
    """Another rule for what is lost, by a function of the arguments as `inverted.Given`."""

    def answer(*args):
        given = inverted.Given(*args)
        lost = rule(given)
        x_hat = (given.y.float() - given.bias.float()) / given.weight.float()
        return torch.where(lost, 0.0, x_hat), lost

    return answer


def rebuilt_with(x_hat):
    """The right rule, and another x_hat, by a function of y, weight, bias in fp32 and lost."""

    def answer(y, weight, bias, tolerance):
        _, lost = rebuilt(y, weight, bias, tolerance)
        return x_hat(y.float(), weight.float(), bias.float(), lost).float(), lost

    return answer


# 15.10
def again_costs(*args):
    return tuple(one(*args) for one in costs.RIGHT)


def again_costs_of_a_sequence(length, itemsize, flops_per_s, bytes_per_s):
    """Whole tensors of one sequence, 64 wide, and then their bytes."""
    spared = np.float64(length * 64 * itemsize)
    of_bytes, of_flops = 4 * spared / bytes_per_s, 2 * 2 * length * length * 64 / flops_per_s
    turn = length * of_bytes / of_flops
    return [2 * spared / bytes_per_s / spared, np.maximum(of_bytes, of_flops) / spared, turn]


def costs_with(gelu=None, attention=None, turn=None):
    return parts_replaced(again_costs, gelu, attention, turn)
