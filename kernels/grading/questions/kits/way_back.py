"""A gradient by autograd's own formulas, without its engine.

A check runs in a fork. Where the process before it went back through a graph on a GPU, the engine
has threads that a fork doesn't have, and refuses to run. The graph itself is there: its nodes are
called here one after the other, in this thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

Tensor = torch.Tensor


def _in_order(root: Any) -> list[Any]:
    """The nodes below `root`, each before those that it hands gradients to."""
    found: list[Any] = []
    seen = {root}
    stack = [(root, iter(root.next_functions))]
    while stack:
        node, rest = stack[-1]
        following = next((one for one, _ in rest if one is not None and one not in seen), None)
        if following is None:
            found.append(node)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(following.next_functions)))
    return found[::-1]


def _handed_on(node: Any, made: tuple[Any, ...]) -> Iterable[tuple[Any, tuple[Any, int]]]:
    """What a node made, each with whom it is for.

    A `torch.autograd.Function` makes one for each argument, and no tensor has nobody behind it.
    """
    following = node.next_functions
    needed = getattr(node, "needs_input_grad", None)
    if needed is not None and len(needed) == len(made):
        made = tuple(one for one, wanted in zip(made, needed, strict=True) if wanted)
        following = tuple(one for one in following if one[0] is not None)
    return zip(made, following, strict=True)


@torch.no_grad()
def gradient(output: Tensor, leaf: Tensor, upstream: Tensor) -> Tensor | None:
    """The gradient of `leaf` when `upstream` is that of `output`; None if none gets there.

    As `torch.autograd.grad(output, leaf, upstream, allow_unused=True)` gives it. `leaf` must be a
    leaf of the graph, and the graph can be gone through once.
    """
    if output is leaf:
        return upstream
    if output.grad_fn is None:
        return None
    gradients: dict[Any, dict[int, Tensor]] = defaultdict(dict)
    gradients[output.grad_fn][output.output_nr] = upstream
    for node in _in_order(output.grad_fn):
        given = gradients.pop(node, {})
        if not given:
            continue
        if getattr(node, "variable", None) is leaf:
            return given[0]
        if not node.next_functions:
            continue
        run = node if callable(node) else node.apply  # a torch.autograd.Function's
        made = run(*(given.get(number) for number in range(len(node._input_metadata))))
        made = made if isinstance(made, tuple) else (made,)
        for one, (following, number) in _handed_on(node, made):
            if one is not None and following is not None:
                # What was broadcast is summed, and cast, by the engine, not by a formula.
                wanted = following._input_metadata[number]
                one = one.sum_to_size(wanted.shape).to(wanted.dtype)
                before = gradients[following].get(number)
                gradients[following][number] = one if before is None else before + one
    return None
