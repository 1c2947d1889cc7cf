"""A training step between pieces of memory that stay where they are, as a graph takes it.

It runs on aliases of the parameters, leaves of their own: hooks and whoever else stands in
autograd's graph of the user's parameters are called at each backward, and not captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.func import functional_call

from kernels.ops.layers.encoder import FusedEncoder
from kernels.ops.layers.encoder_layer import FusedEncoderLayer
from kernels.ops.layers.standing import Facts

Tensor = torch.Tensor

ALIGNED = 256  # bytes: where a gradient may begin, so that kernels take it by whole vectors
_Where = tuple[torch.dtype, torch.Size, tuple[int, ...], int]


class Gradients:
    """Where the gradients of parameters end: one piece of memory a dtype.

    places: a view of it for each parameter, of its shape and strides.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._where, sizes = self._laid_out(parameters)
        device = parameters[0].device if parameters else None
        self._memory = {
            dtype: torch.zeros(size, dtype=dtype, device=device) for dtype, size in sizes.items()
        }
        self.places = self._views(self._memory)

    @staticmethod
    def _laid_out(parameters: Sequence[Tensor]) -> tuple[list[_Where], dict[torch.dtype, int]]:
        """Where each begins in the memory of its dtype, and how many numbers that has."""
        where: list[_Where] = []
        sizes: dict[torch.dtype, int] = {}
        for one in parameters:
            like = torch.empty_like(one, device="meta")  # dense, whatever the parameter's strides
            begin, grain = sizes.get(one.dtype, 0), ALIGNED // one.element_size()
            where.append((one.dtype, like.shape, like.stride(), begin))
            sizes[one.dtype] = begin + -(-one.numel() // grain) * grain
        return where, sizes

    def suits(self, parameters: Sequence[Tensor]) -> bool:
        """Whether gradients of these have their places here."""
        return self._where == Gradients._laid_out(parameters)[0] and (
            {one.device for one in parameters} == {one.device for one in self.places}
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(one.nbytes for one in self._memory.values())

    def copies(self) -> list[Tensor]:
        """The gradients as they are now, in memory of their own: one copy a dtype."""
        return self._views({dtype: one.clone() for dtype, one in self._memory.items()})

    def _views(self, memory: dict[torch.dtype, Tensor]) -> list[Tensor]:
        return [
            memory[dtype].as_strided(shape, stride, begin)
            for dtype, shape, stride, begin in self._where
        ]


class PreparedStep:
    """A step of given shapes: the tensors that it reads, and those that it writes.

    `parameters` are those that get gradients, each once; `reached` says which of them y depends on.
    y and dsrc belong to the first run behind `begin_anew`, and later ones write into them.
    `gradients` may be those of another shape: they are copied as soon as they are there.
    """

    def __init__(
        self,
        encoder: FusedEncoder | FusedEncoderLayer,
        parameters: dict[str, Tensor],
        facts: Facts,
        src: Tensor,
        masks: tuple[Tensor | None, Tensor | None],
        is_causal: bool,
        gradients: Gradients | None = None,
    ) -> None:
        self.src = src.detach().clone().requires_grad_(src.requires_grad)
        self.mask, self.padding = (None if m is None else m.clone() for m in masks)
        self.dy = torch.zeros_like(self.src)
        self.facts = facts
        self._encoder, self._causal = encoder, is_causal
        alias = {
            id(one): one.detach().requires_grad_(one.requires_grad) for one in parameters.values()
        }
        self._aliases = {name: alias[id(one)] for name, one in parameters.items()}
        wanted = {id(one): one for one in parameters.values() if one.requires_grad}
        self.parameters = list(wanted.values())
        self._leaves = [alias[number] for number in wanted]
        fits = gradients is not None and gradients.suits(self.parameters)
        self.gradients = gradients if gradients and fits else Gradients(self.parameters)
        self.reached: tuple[bool, ...] = ()
        self._made: Tensor | None = None  # y with autograd's graph, between both ways
        self.y: Tensor | None = None
        self.dsrc: Tensor | None = None
        self.tables: tuple[Tensor, ...] = ()  # that graphs read, and that live as long
        self.forward: Any = None  # what replays `run`, and `run_back`
        self.backward: Any = None

    @property
    def goes_back(self) -> bool:
        """Whether anything wants a gradient."""
        return self.src.requires_grad or bool(self._leaves)

    def run(self) -> None:
        """The encoder of src, into y."""
        told = (self.src, self.mask, self.padding, self._causal)
        with torch.inference_mode(False), torch.enable_grad():
            made: Tensor = functional_call(self._encoder, self._aliases, told)
        self._made = made
        self.y = _into(self.y, made.detach())

    def run_back(self) -> None:
        """The gradients for dy, into dsrc and `gradients`; behind each `run` once."""
        made, self._made = self._made, None
        assert made is not None
        wanted = self._leaves + [self.src] * self.src.requires_grad
        found = list(torch.autograd.grad(made, wanted, self.dy, allow_unused=True))
        if self.src.requires_grad:
            self.dsrc = _into(self.dsrc, found.pop())
        self.reached = tuple(one is not None for one in found)
        pairs = zip(self.gradients.places, found, strict=True)
        there = [(place, one) for place, one in pairs if one is not None]
        if there:
            with torch.no_grad():
                torch._foreach_copy_([place for place, _ in there], [one for _, one in there])

    def begin_anew(self) -> None:
        """Forget what was made, so that the next run gives its own memory to it."""
        self._made = self.y = self.dsrc = None


class _Again:
    """What stands for a graph on a CPU: the same work, done again into the same memory."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


def captured(work: Callable[[], None], device: torch.device, pool: Any, stream: Any) -> Any:
    """A graph of what `work` launches; on a CPU, where it runs once, what runs it again."""
    if device.type != "cuda":
        work()
        return _Again(work)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        work()
    return graph


def _into(place: Tensor | None, value: Tensor) -> Tensor:
    return value if place is None else place.copy_(value)
