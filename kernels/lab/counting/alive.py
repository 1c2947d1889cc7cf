"""How much memory a call needs at once, counted with no GPU: the bytes alive beside its arguments.

Each storage that an operator of PyTorch makes counts from then until its last tensor is gone, which
Python's and autograd's own references decide. An allocator rounds up and keeps, and a library may
take workspace: neither is seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):
    """A block in which storages are counted: `now` and `peak`, in bytes, beside what is `known`."""

    def __init__(self, *known: Any) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}
        for tensor in tree_leaves(known):
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor, counts=False)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # To keep the compiler out of this mode PyTorch would import it, a second at the first call.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, and follow what it made."""
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor)
        return made

    def _follow(self, tensor: torch.Tensor, counts: bool = True) -> None:
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes() if counts else 0
        if key in self._seen:
            return

        def gone(_: Any) -> None:
            del self._seen[key]
            self.now -= size

        self._seen[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)


def peak_of_a_step(fn: Callable[..., torch.Tensor], *args: Any) -> int:
    """The most bytes alive at once in a training step, beside `args` and the gradients of them.

    `fn(*args)` returns a loss of one number, and `backward()` goes back from it to each floating
    tensor of `args`. It runs on fake tensors such as these, of any size, which claim no memory. As
    a gradient is no surplus, the bytes of all of them are taken off the peak, wherever it lies.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(one) if isinstance(one, torch.Tensor) else one for one in args]
        leaves = [
            one.detach().requires_grad_()
            if isinstance(one, torch.Tensor) and one.is_floating_point()
            else one
            for one in fakes
        ]
        with Alive(leaves) as alive:
            fn(*leaves).backward()
    gradients = (one.grad for one in leaves if isinstance(one, torch.Tensor))
    return alive.peak - sum(one.nbytes for one in gradients if one is not None)
