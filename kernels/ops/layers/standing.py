"""What a captured graph takes for granted of an encoder, and what has changed of it since.

A graph holds addresses, dtypes, and which launches there are. Numbers may change: each replay reads
them anew. So an optimizer that steps in place is followed, and a tensor that moves is not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from kernels.ops.layers.encoder_layer import FusedEncoderLayer

Tensor = torch.Tensor


class Facts(NamedTuple):
    """What must be as it was: the modules, their settings, and where and what the tensors are."""

    modules: tuple[int, ...]
    settings: tuple[Any, ...]
    tensors: tuple[Any, ...]


class Standing:
    """An encoder's modules and tensors, found once, so that looking at them costs little."""

    def __init__(self, encoder: nn.Module) -> None:
        named = list(encoder.named_modules())
        self._kept = [one for _, one in named]  # so that no other module gets its number
        self._children = [(one._modules, tuple(one._modules)) for one in self._kept]
        self._layers = [one for one in self._kept if isinstance(one, FusedEncoderLayer)]
        self._parameters, self._buffers = (
            [
                (held, name, f"{path}.{name}".lstrip("."))
                for path, module in named
                for held in (getattr(module, kind),)
                for name, one in held.items()
                if one is not None
            ]
            for kind in ("_parameters", "_buffers")
        )
        self._slots = self._parameters + self._buffers

    def facts(self) -> Facts:
        """What a graph that is captured now would take for granted."""
        return Facts(
            tuple(id(held.get(name)) for held, names in self._children for name in names),
            (*(one.training for one in self._kept), *map(_settings, self._layers)),
            tuple(_of(held.get(name)) for held, name, _ in self._slots),
        )

    def versions(self) -> tuple[int, ...]:
        """PyTorch's count of what was written into each parameter."""
        return tuple(held[name]._version for held, name, _ in self._parameters)

    def parameters(self) -> dict[str, Tensor]:
        """The parameters that are there now, by name; one that two modules share stands twice."""
        return {path: held[name] for held, name, path in self._parameters}

    def changed(self, before: Facts, now: Facts) -> str:
        """What has changed from one to the other, in words that end a sentence's first half."""
        pairs = zip(self._slots, before.tensors, now.tensors, strict=True)
        for (_, _, path), old, new in pairs:
            if old == new:
                continue
            if new is None:
                return f"{path!r} is gone since prepare()"
            if old[:-1] == new[:-1]:
                wants = "wants a gradient, and did not" if new[-1] else "wants no gradient, and did"
                return f"{path!r} {wants} at prepare()"
            return f"{path!r} lies elsewhere than at prepare(), or has another shape or dtype"
        if before.modules != now.modules:
            return "a module of the encoder is another than at prepare()"
        return "a setting of the encoder (mode, dropout, eps, activation) is not as at prepare()"


def _settings(layer: FusedEncoderLayer) -> Any:
    return layer.probabilities(), layer.norm1.eps, layer.norm2.eps, layer.activation_form


def _of(one: Tensor | None) -> Any:
    return None if one is None else (one.data_ptr(), one.shape, one.dtype, one.requires_grad)
