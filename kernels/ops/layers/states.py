"""What a layer says of a `state_dict` that is not its own: a sentence, before it loads any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

MOST_NAMES = 12  # that a sentence names


def check_state(module: nn.Module, state: Mapping[str, Any], strict: bool = True) -> None:
    """Raise RuntimeError with one sentence unless `module` takes `state`, as PyTorch's does.

    It names the first parameter that is missing, is none of the module's or has another shape, and
    what is taken. Without `strict` names may be missing or more, as in PyTorch.
    """
    own, kind = module.state_dict(), type(module).__name__
    for name, value in own.items():
        found = state.get(name)
        if found is None:
            continue
        if not isinstance(found, torch.Tensor):
            raise RuntimeError(
                f"{name!r} is a {type(found).__name__} in state_dict; this {kind} takes a "
                f"torch.Tensor of shape {tuple(value.shape)}"
            )
        if found.shape != value.shape:
            raise RuntimeError(
                f"{name!r} has the shape {tuple(found.shape)} in state_dict; this {kind} takes "
                f"{tuple(value.shape)}"
            )
    if not strict:
        return
    more = [name for name in state if name not in own]
    missing = [name for name in own if name not in state]
    if more and (before := _prefix(state, own)):
        raise RuntimeError(
            f"state_dict has {more[0]!r}; this {kind} takes its names without {before!r} before "
            "them"
        )
    if missing:
        name, others = missing[0], len(missing) - 1
        told = f", and {others} more that are missing" if others else ""
        raise RuntimeError(
            f"state_dict has no {name!r}; this {kind} takes a tensor of shape "
            f"{tuple(own[name].shape)} for it{told}"
        )
    if more:
        names, others = list(own)[:MOST_NAMES], len(own) - MOST_NAMES
        told = f" and {others} more" if others > 0 else ""
        raise RuntimeError(
            f"state_dict has {more[0]!r}, which is no parameter of this {kind}; it takes "
            f"{', '.join(names)}{told}"
        )


def _prefix(state: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """What stands before every name of `state` that would else be the module's; "" if nothing."""
    first, last = next(iter(state)), next(iter(own))
    before = first.removesuffix(last)
    if before == first or not before:
        return ""
    return before if {f"{before}{name}" for name in own} == set(state) else ""
