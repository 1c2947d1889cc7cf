"""07.2: upstream gradients that hide one fault of LayerNorm's dx, and show two others."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import torch

from kernels.grading.question import Attempt, Wrong
from kernels.grading.questions.kits.numbers import answered, kind
from kernels.grading.questions.kits.wrong_models import Tensor, drawn

# A fault is hidden below the one error, and shown beyond the other, relative to the norm of dx.
HIDDEN, SHOWN = 0.001, 0.1
# dx must be more than this share of inv_std · g, or it is nothing but rounding.
_LEAST = 0.05

Formula = Callable[[Tensor, Tensor, Tensor], Tensor]


def right_dx(dy: Tensor, x_hat: Tensor, weight: Tensor) -> Tensor:
    """Return dx / inv_std of a LayerNorm's row, all (n,) in float64."""
    g = dy * weight
    return g - g.mean() - x_hat * (g * x_hat).mean()


def _no_mean(dy: Tensor, x_hat: Tensor, weight: Tensor) -> Tensor:
    g = dy * weight
    return g - x_hat * (g * x_hat).mean()


def _no_projection(dy: Tensor, x_hat: Tensor, weight: Tensor) -> Tensor:
    g = dy * weight
    return g - g.mean()


def _no_weight(dy: Tensor, x_hat: Tensor, _weight: Tensor) -> Tensor:
    return right_dx(dy, x_hat, torch.ones_like(dy))


FAULTY: Mapping[str, Formula] = {
    "no mean": _no_mean,
    "no projection": _no_projection,
    "no weight": _no_weight,
}
_WHY_SHOWN = {
    "no mean": "It leaves mean(g) out, so it shows wherever mean(g) isn't 0. g is dy · weight: "
    "take care that g has the mean 0, not dy.",
    "no projection": "It leaves x_hat · mean(g · x_hat) out, so it shows wherever that mean isn't "
    "0. g is dy · weight: take the part along x_hat out of g, and divide by weight afterwards.",
    "no weight": "It takes dy for g. That leaves dx alone where g - dy = dy · (weight - 1) is a "
    "number that dx doesn't see: a + b · x_hat.",
}
_WHY_HIDDEN = {
    "no mean": "It leaves mean(g) out: give g a mean that counts beside its spread.",
    "no projection": "It leaves x_hat · mean(g · x_hat) out. Random numbers have a part along "
    "x_hat of about 1 / √n only: give g more of x_hat.",
    "no weight": "It takes dy for g: that shows where weight varies and dy isn't of the form "
    "(a + b · x_hat) / (weight - 1).",
}


def errors(dy: Tensor, x_hat: Tensor, weight: Tensor) -> dict[str, float]:
    """Return how far each faulty dx is from the right one, relative to the right one's norm."""
    right = right_dx(dy, x_hat, weight)
    norm = float(right.norm())
    return {
        name: float((faulty(dy, x_hat, weight) - right).norm()) / norm
        for name, faulty in FAULTY.items()
    }


def _row(rng: random.Random, n: int) -> tuple[Tensor, Tensor]:
    """A random x_hat with mean 0 and mean square 1, and a weight from 1.2 to 1.9 everywhere."""
    x = drawn(rng, (n,), torch.float64)
    x_hat = (x - x.mean()) / x.std(correction=0)
    generator = torch.Generator().manual_seed(rng.getrandbits(31))
    return x_hat, 1.2 + 0.7 * torch.rand(n, generator=generator, dtype=torch.float64)


def _asked(attempt: Attempt, fault: str, x_hat: Tensor, weight: Tensor, what: str) -> Tensor:
    dy = answered(attempt, fault, x_hat.clone(), weight.clone())
    n = x_hat.numel()
    takes = f"dy is a torch.Tensor of shape ({n},) in fp64"
    if type(dy) is not torch.Tensor:
        raise Wrong(f"{what} returned {kind(dy)}; {takes}.")
    if dy.dtype != torch.float64 or tuple(dy.shape) != (n,):
        raise Wrong(f"{what} returned the shape {tuple(dy.shape)} in {dy.dtype}; {takes}.")
    dy = dy.detach().cpu().contiguous()
    if not bool(dy.isfinite().all()):
        raise Wrong(f"{what} returned a dy with numbers that are not finite.")
    return dy


def _grade_row(attempt: Attempt, fault: str, x_hat: Tensor, weight: Tensor) -> None:
    what = f"{attempt.name}({fault!r}, x_hat, weight) with n = {x_hat.numel()}"
    dy = _asked(attempt, fault, x_hat, weight, what)
    g, dx = dy * weight, right_dx(dy, x_hat, weight)
    if not float(dx.norm()) > _LEAST * float(g.norm()):
        raise Wrong(
            f"{what}: the right dx is 0, or nearly so: its norm is {float(dx.norm()):.3g}, that of "
            f"g is {float(g.norm()):.3g}.",
            "dx is 0 where g = a + b · x_hat. Such a dy tells nothing of a dx: give g something "
            "else as well.",
        )
    off = errors(dy, x_hat, weight)
    if off[fault] >= HIDDEN:
        raise Wrong(
            f"{what}: {fault!r} is off by {off[fault]:.2%} there; it has to stay below "
            f"{HIDDEN:.1%}.",
            _WHY_SHOWN[fault],
        )
    for other, error in off.items():
        if other != fault and error <= SHOWN:
            raise Wrong(
                f"{what}: {other!r} is off by {error:.2%} there; it has to show, by more than "
                f"{SHOWN:.0%}.",
                _WHY_HIDDEN[other],
            )


def grade_upstream(attempt: Attempt) -> None:
    """Grade `upstream(hidden, x_hat, weight)`: a dy that hides this fault, and no other."""
    rng = random.Random(attempt.seed)
    sizes = [16, 1000, rng.randrange(100, 600), rng.randrange(1000, 5000)]
    for fault in FAULTY:
        for n in sizes:
            _grade_row(attempt, fault, *_row(rng, n))
        attempt.held.append(f"a dy that hides {fault!r} alone, in {len(sizes)} rows")
