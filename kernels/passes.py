"""A pass of a variant as a call without arguments: what is timed, captured, counted and checked.

`fwd` is the variant's own call. `bwd` is PyTorch's autograd going back through it: the forward
runs once, when the call is made, and each call of it takes the gradients of the outputs back to
the inputs. What the forward saved stays alive until the call is dropped. `train` does both in each
call, as a training step does.

Autograd launches the kernels of a backward on the stream that its forward ran on. A backward that
is to be captured is therefore made on the stream that captures (see `capture` in
`kernels.lab.measuring.timing`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kernels.registry import Op, Variant

Tensor = torch.Tensor

# Far from the seeds of inputs: the same seed would give gradients that are the inputs again. Within
# 32 bits, which is all that the CPU's generator takes of a seed.
_APART = 1 << 31


def as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    """The outputs of a variant or a reference as a tuple, one tensor or several."""
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def differentiated(op: Op, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """The inputs that get gradients, in order: those of the operation's that are there."""
    wanted = op.backward.differentiates if op.backward else ()
    return tuple(name for name in wanted if isinstance(inputs.get(name), Tensor))


def upstream(outputs: Any, seed: int) -> tuple[Tensor, ...]:
    """Random gradients of the outputs, of their shapes and dtypes; the same for the same seed."""

    def one(number: int, output: Tensor) -> Tensor:
        generator = torch.Generator(output.device).manual_seed(_APART + seed + number)
        return torch.randn(
            output.shape, generator=generator, dtype=output.dtype, device=output.device
        )

    return tuple(one(number, output) for number, output in enumerate(as_tuple(outputs)))


@dataclass(frozen=True, eq=False)
class Backward:
    """A way back that can run again and again: `outputs` are those of the forward it was made by.

    Calling it returns the gradients of the inputs, in the order they were given.
    """

    outputs: tuple[Tensor, ...]
    run: Callable[[], tuple[Tensor, ...]]

    def __call__(self) -> tuple[Tensor, ...]:
        """Run once, and return the gradients."""
        return self.run()


def back(
    op: Op,
    fn: Callable[..., Any],
    inputs: Mapping[str, Any],
    gradients_of: Callable[[Any], Any],
    again: bool = False,
) -> Backward:
    """Run `fn(**inputs)` and return the call that takes gradients back to its inputs.

    `gradients_of(outputs)` makes the gradients of the outputs. The call returns the gradients of
    `differentiated(op, inputs)` in that order. With `again` each call runs forward anew before it
    goes back. ValueError if no output depends on one of them.
    """
    leaves = {name: inputs[name].detach().requires_grad_() for name in differentiated(op, inputs)}

    def forward() -> tuple[Tensor, ...]:
        with torch.enable_grad():
            return as_tuple(fn(**{**inputs, **leaves}))

    outputs = forward()
    gradients = tuple(gradients_of(outputs))
    if not any(output.requires_grad for output in outputs):
        raise ValueError(f"no output of {op.name!r} depends on an input that gets a gradient")

    def run() -> tuple[Tensor, ...]:
        made = forward() if again else outputs
        pairs = zip(made, gradients, strict=True)
        given = [(output, gradient) for output, gradient in pairs if output.requires_grad]
        return torch.autograd.grad(
            [output for output, _ in given],
            list(leaves.values()),
            [gradient for _, gradient in given],
            retain_graph=not again,
        )

    return Backward(outputs, run)


def bind(
    op: Op, variant: Variant, inputs: Mapping[str, Any], pass_: str = "fwd", seed: int = 0
) -> Callable[[], Any]:
    """Return a pass of a variant as a call without arguments; ValueError if it has no such pass.

    A backward starts from `upstream(outputs, seed)` and returns a tuple of gradients.
    """
    if not variant.has(pass_):
        raise ValueError(f"variant {variant.name!r} of {op.name!r} has no pass {pass_!r}")
    if pass_ == "fwd":
        return partial(variant.fn, **inputs)
    # A graph that torch.compile made lends the buffers it saved to its backward's own results,
    # and then refuses to run back twice.
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False  # type: ignore[assignment, unused-ignore]
    made = partial(upstream, seed=seed)
    return back(op, variant.fn, inputs, made, again=pass_ == "train")
