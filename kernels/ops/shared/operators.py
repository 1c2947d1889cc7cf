"""How operations meet PyTorch: operators for fake tensors, torch.compile, ledgers and autograd.

A kernel knows numbers alone: the tangents of forward-mode differentiation, the batches of `vmap`
and the wrapped tensors of `torch.func.grad` never reach it, and would be lost without a word. So an
operator says what PyTorch's own operators compute in its place (`composed`). That runs inside every
transform of `torch.func`. In forward mode alone the dispatcher offers no such place: the function
that `define` returns takes it there, and an operator called by itself raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from kernels.launch import launches
from kernels.launch.again import Ready
from kernels.launch.plan import MISS
from kernels.registry import Moves, Operator, add_operator

Tensor = torch.Tensor

_NOTHING = contextlib.nullcontext()

SHORT_WHERE = "is_cuda"  # the tensors whose calls take the short way, by an attribute of theirs

LIBRARY = torch.library.Library("fusing_kernels", "FRAGMENT")


def in_forward_mode() -> bool:
    """Whether a level of forward-mode differentiation is open, by hand or by `torch.func.jvp`."""
    return forward_ad._current_level >= 0


def define(
    schema: str,
    launch: Callable[..., Any],
    fake: Callable[..., Any],
    composed: Callable[..., Any],
    *,
    of: Sequence[str],
    tensors: Mapping[str, str],
    independent: str = "",
    checks: Callable[..., None] | None = None,
    gradient: Gradient | None = None,
    trained: Callable[..., Any] | None = None,
    moves: Callable[..., Moves | None] | None = None,
) -> Callable[..., Any]:
    """Define an operator on CPU and CUDA tensors; return the function that calls it.

    `launch` allocates and launches, `fake` gives outputs' shapes. `composed` takes the same
    arguments and computes the same with PyTorch's operators, so that every transform of
    `torch.func` goes through it (vmap, grad, jvp, and those made of them), and forward-mode
    differentiation. Each may return None for an output that is not there, in whose place the
    operator returns one element. `checks` raises for arguments that `launch` doesn't take.

    The function that is returned takes the short way where nobody looks at operators: on a GPU,
    outside compilers, transforms and modes, a call is its launches (`kernels.launch.again`), with
    `gradient` behind one `torch.autograd.Function`. Everywhere else it calls the operator. A call
    for which autograd will ask for a gradient goes to `trained`, if there is such.

    Where a derivative would be lost, by forward-mode differentiation or by a tensor that requires
    grad without a formula for it, the operator raises NotImplementedError with one sentence.

    `of` names the operations that call it. `tensors` gives the dimensions of its tensor arguments
    by letters, `*` for all leading dimensions as one, and `independent` those along which each part
    is computed alone: ledgers extend counts there. `moves` tells them by a formula what a call of
    these arguments launches, where running it takes too long. ValueError for an argument without
    its letters.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    operator = getattr(torch.ops.fusing_kernels, name).default
    places = _places_of_tensors(operator)
    numbers = _places_of_numbers(operator)

    def examined(*args: Any) -> None:
        if checks is not None:
            checks(*args)
        for place, argument in numbers:
            if isinstance(args[place], str) or args[place] is None:
                raise TypeError(f"{argument} is a {type(args[place]).__name__}; it takes a number")

    def checked(*args: Any) -> Any:
        examined(*args)
        return launch(*args)

    ready = Ready(checked, no_gradient=gradient is None)

    def guarded(work: Callable[..., Any]) -> Callable[..., Any]:
        def without_loss(*args: Any) -> Any:
            if forward_ad._current_level >= 0:
                _refuse(name, "forward-mode derivatives")
            # Inside a formula of autograd no gradient is recorded, so neither is one lost.
            if needs_gradient(*[args[place] for place in places]):
                _refuse(name, "gradients")
            return _filled(work(*args), args[places[0]])

        return without_loss

    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, guarded(checked), device)
    # The key through which every transform passes first, and an ordinary call never.
    LIBRARY.impl(
        name,
        lambda *args: _filled(composed(*args), args[places[0]]),
        "FuncTorchDynamicLayerFrontMode",
    )
    torch.library.register_fake(f"fusing_kernels::{name}", guarded(fake), lib=LIBRARY)
    taken = {operator._schema.arguments[place].name for place in places}
    if taken != set(tensors):
        raise ValueError(
            f"operator {name!r} takes the tensors {sorted(taken)}, not {list(tensors)}"
        )
    add_operator(Operator(name, tuple(of), dict(tensors), independent, moves))
    if gradient is not None:
        torch.library.register_autograd(
            f"fusing_kernels::{name}", gradient.formula, setup_context=gradient.keep, lib=LIBRARY
        )
    recent, look_up = ready.recent, ready.look_up
    short = None if gradient is None else _function(name, ready, gradient)

    def elsewhere(*args: Any) -> Any:
        examined(*args)
        return composed(*args) if in_forward_mode() else operator(*args)

    def call(*args: Any) -> Any:
        compiling = is_dynamo_compiling()
        if short is None and not compiling:
            for again in recent:
                result = again(*args)
                if result is not MISS:
                    return result
        wanted = False
        if torch.is_grad_enabled():
            for place in places:
                wanted = wanted or getattr(args[place], "requires_grad", False)
            if wanted and trained is not None:
                return trained(*args)
        if compiling or not _ordinary() or not getattr(args[0], SHORT_WHERE, False):
            return elsewhere(*args)
        if not wanted:
            return look_up(args)
        return operator(*args) if short is None else short(*args)

    call.ready, call.operator = ready, operator  # type: ignore[attr-defined]
    return call


@dataclass(frozen=True)
class Gradient:
    """How an operator is differentiated, as `torch.library.register_autograd` takes it.

    `keep(ctx, inputs, output)` keeps what `formula(ctx, *gradients)` needs; an output that is not
    there may be None. The short way returns the first `n_returned` outputs that are there:
    what is only kept is not worth a place in autograd's graph.
    """

    keep: Callable[..., None]
    formula: Callable[..., Any]
    n_returned: int = 1


def _function(name: str, ready: Ready, gradient: Gradient) -> Callable[..., Any]:
    """The short way for a call that keeps something for its backward."""

    n_returned = gradient.n_returned

    recent, look_up = ready.recent, ready.look_up

    def forward(ctx: Any, *args: Any) -> Any:
        for again in recent:
            output = again(*args)
            if output is not MISS:
                break
        else:
            output = look_up(args)
        gradient.keep(ctx, args, output)
        if not isinstance(output, tuple):
            return output
        shown = n_returned
        while output[shown - 1] is None:  # at the end; in between None holds a place
            shown -= 1
        return output[:shown]

    made = type(
        name,
        (torch.autograd.Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(gradient.formula)},
    )
    # Past the wrapper in Python, which asks for transforms of torch.func: there are none here.
    apply: Callable[..., Any] = super(torch.autograd.Function, made).apply  # type: ignore[misc]
    return apply


def _ordinary() -> bool:
    """Whether nobody looks at operators: no ledger, transform, mode or trace is about."""
    return not (
        _dispatch_modes()
        or _transforms()
        or launches.mode() is not None
        or forward_ad._current_level >= 0
        or _function_modes()
        or _trace() is not None
    )


_dispatch_modes, _function_modes, _transforms, _trace = (
    torch._C._len_torch_dispatch_stack,
    torch._C._len_torch_function_stack,
    torch._C._are_functorch_transforms_active,
    torch._C._get_tracing_state,
)


def _filled(outputs: Any, like_device: Tensor) -> Any:
    """One element in place of each output that is not there: an operator returns tensors."""
    # Of size 0, two of them would count as aliases.
    if not isinstance(outputs, tuple):
        return outputs
    return tuple(
        torch.empty(1, dtype=torch.float32, device=like_device.device) if one is None else one
        for one in outputs
    )


def _places_of_tensors(operator: Any) -> tuple[int, ...]:
    types = [str(argument.type) for argument in operator._schema.arguments]
    if any("List[Tensor]" in kind or "List[Optional[Tensor]]" in kind for kind in types):
        raise TypeError(f"{operator} takes a list of tensors; it takes tensors one by one")
    return tuple(place for place, kind in enumerate(types) if "Tensor" in kind)


def _places_of_numbers(operator: Any) -> tuple[tuple[int, str], ...]:
    """Where an operator takes a number that isn't whole, and what it is called."""
    arguments = enumerate(operator._schema.arguments)
    return tuple((place, one.name) for place, one in arguments if str(one.type) == "float")


def _refuse(name: str, lost: str) -> None:
    raise NotImplementedError(
        f"torch.ops.fusing_kernels.{name} would lose {lost}: it is what a function of kernels.ops "
        f"launches, so call that function, or PyTorch's own operators where it has none"
    )


def refuse_second_derivative(operator: str, whose: str, instead: str) -> None:
    """Let a derivative of a backward operator raise NotImplementedError with one sentence."""

    def refuse(_ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            f"{whose} no second derivative here: call backward() or grad() without "
            f"create_graph=True, or use {instead} there"
        )

    torch.library.register_autograd(f"fusing_kernels::{operator}", refuse, lib=LIBRARY)


def like(x: Tensor) -> Tensor:
    """An empty contiguous tensor of x's shape, dtype and device."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def device_guard(x: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Make x's GPU the current one if it isn't: Triton launches on the current device."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device(x.device)


def needs_gradient(*tensors: Any) -> bool:
    """Whether autograd will ask for a gradient of one of `tensors`; what is none asks for none."""
    # A loop: any() over a generator takes twice as long, in every call.
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and getattr(tensor, "requires_grad", False):
                return True
    return False
