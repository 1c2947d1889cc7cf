"""Fake CUDA tensors that need neither a GPU nor a PyTorch that was built for one.

Three things would ask for a driver, and are replaced while something is counted:

- PyTorch makes a CUDA context before the first fake CUDA tensor (`no_context`).
- `x[...]`, `x[...] = y` and `copy_` ask for a CUDA device guard before any operator is dispatched:
  `FakeCudaMode` spells them as the operators they dispatch.
- Autograd notes the device and the stream of every tensor, and runs a backward in a thread of the
  device. `differentiable_fakes` makes tensors that dispatch as on CUDA, and say that they do to
  Python, but that C++ takes for "meta" tensors: that device needs no guard, no stream, no thread.

Where PyTorch's C++ chooses an operator by asking a tensor for its device, or by what was built, the
modes spell what it chooses on CUDA: dropout in one operator, and RMSNorm.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

_aten = torch.ops.aten

# Takes an operator's name, what it reads, and what it writes.
WriteDown = Callable[[str, list[torch.Tensor], list[torch.Tensor]], None]


def _index(x: torch.Tensor, key: Any) -> torch.Tensor:
    """`x[key]` by select, slice, unsqueeze and index, as PyTorch's own indexing does it."""
    parts = list(key) if isinstance(key, tuple) else [key]
    if not any(part is Ellipsis for part in parts):
        parts.append(Ellipsis)
    dim = 0
    tensors: dict[int, torch.Tensor] = {}
    for part in parts:
        if part is None:
            x = _aten.unsqueeze.default(x, dim)
        elif part is Ellipsis:
            dim = x.dim() - _consumed_after(parts)
            continue
        elif isinstance(part, slice):
            x = _aten.slice.Tensor(x, dim, part.start, part.stop, part.step or 1)
        elif isinstance(part, torch.Tensor):
            tensors[dim] = part
        elif isinstance(part, int):
            x = _aten.select.int(x, dim, part)
            continue
        else:
            raise TypeError(f"an index of type {type(part).__name__} is not understood")
        dim += 1
    if tensors:
        x = _aten.index.Tensor(x, [tensors.get(d) for d in range(max(tensors) + 1)])
    return x


def _consumed_after(parts: list[Any]) -> int:
    at = next(i for i, part in enumerate(parts) if part is Ellipsis)
    return sum(part is not None for part in parts[at + 1 :])


class _RmsNorm(torch.autograd.Function):
    """PyTorch's RMSNorm on CUDA: one operator forward, which keeps 1 / rms, and one backward."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, n_dims: int, weight: torch.Tensor | None, write_down: WriteDown
    ) -> torch.Tensor:
        y = torch.empty_like(x)
        rows = (*x.shape[: x.dim() - n_dims], *[1] * n_dims)
        inverse = torch.empty(rows, dtype=torch.float32, device=x.device)
        given = [x] if weight is None else [x, weight]
        write_down("_fused_rms_norm", given, [y, inverse])
        ctx.save_for_backward(*given, inverse)
        ctx.write_down = write_down
        return y

    @staticmethod
    def backward(ctx: Any, *dy: torch.Tensor) -> Any:
        *given, inverse = ctx.saved_tensors
        made = [torch.empty_like(tensor) for tensor in given]
        ctx.write_down("_fused_rms_norm_backward", [*dy, *given, inverse], made)
        return made[0], None, (made[1] if len(made) > 1 else None), None


def _rms_norm(
    write_down: WriteDown,
    input: torch.Tensor,
    normalized_shape: Any,
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    if weight is not None and weight.dtype != input.dtype:  # PyTorch does it step by step
        return torch.rms_norm(input, normalized_shape, weight, eps)
    result: torch.Tensor = _RmsNorm.apply(input, len(normalized_shape), weight, write_down)
    return result


def _dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    if inplace or not training or not 0 < p < 1:
        return F.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


class SpelledMode(TorchFunctionMode):
    """Call the operators that PyTorch's C++ chooses on CUDA; `write_down` gets those not run."""

    def __init__(self, write_down: WriteDown) -> None:
        super().__init__()
        self._write_down = write_down

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return _dropout(*args, **kwargs)
        if func in (F.rms_norm, torch.rms_norm):
            return _rms_norm(self._write_down, *args, **kwargs)
        return func(*args, **kwargs)


class FakeCudaMode(SpelledMode):
    """Spell too what needs a device guard; for tensors that are not differentiated."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__getitem__:
            return _index(*args)
        if func is torch.Tensor.__setitem__:
            x, key, value = args
            self._copy(_index(x, key), value)
            return None
        if func is torch.Tensor.copy_:
            self._copy(args[0], args[1])
            return args[0]
        return super().__torch_function__(func, types, args, kwargs)

    def _copy(self, target: torch.Tensor, source: Any) -> None:
        read = [source] if isinstance(source, torch.Tensor) else []
        self._write_down("copy_", read, [target])


@contextlib.contextmanager
def no_context() -> Iterator[None]:
    """Let fake CUDA tensors be made without a CUDA context: none is needed to count."""
    name = "init_gpu_context"
    original = getattr(fake_tensor, name, None)  # not every version has it
    if original is None:
        yield
        return
    setattr(fake_tensor, name, lambda *_: None)
    try:
        yield
    finally:
        setattr(fake_tensor, name, original)


class _Mode(FakeTensorMode):
    """Put a tensor that C++ makes on "meta", beside one of ours, on the device that Python sees."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if getattr(kwargs.get("device"), "type", None) == "meta":
            kwargs["device"] = torch.device("cuda", 0)
        return super().dispatch(func, types, args, kwargs)


@contextlib.contextmanager
def differentiable_fakes() -> Iterator[None]:
    """Make every fake CUDA tensor of the block one that autograd takes without a GPU."""
    import torch._dynamo  # looks at torch.Tensor's functions when imported: before they change

    original = torch.Tensor._make_subclass

    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        keys = kwargs.get("device_for_backend_keys")
        if issubclass(cls, FakeTensor) and keys is not None and keys.type == "cuda":
            kwargs["dispatch_device"] = False  # C++ takes the device of the data, "meta"
        return original(cls, *args, **kwargs)

    torch.Tensor._make_subclass = staticmethod(make)  # type: ignore[method-assign]
    try:
        with _Mode():
            yield
    finally:
        del torch.Tensor._make_subclass
