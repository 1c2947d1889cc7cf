"""Fake CUDA tensors that need neither a GPU nor a PyTorch that was built for one.

Two things would ask for a driver, and are replaced while something is counted:

- PyTorch makes a CUDA context before the first fake CUDA tensor (`no_context`).
- Indexing, copies and autograd ask for the guard, the stream and the thread of a tensor's device.
  `differentiable_fakes` makes tensors that dispatch as on CUDA, and say that they do to Python, but
  that C++ takes for "meta" tensors: that device has no guard, no stream, no thread.

Where PyTorch's C++ chooses an operator by asking a tensor for its device, `spelled` calls what it
chooses on CUDA.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes


class Fakes:
    """Fake CUDA tensors in the place of others, real or fake, one for each.

    Tensors that share memory get fakes that share memory: a tied weight stays tied, a view a view.
    To be used in a block of `differentiable_fakes`, whose own tensors (of `mode`) it leaves alone.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        # What a fake stands for is kept alive: a new tensor must not get the id of one that is
        # gone.
        self._fakes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._memory: dict[int, tuple[Any, torch.Tensor]] = {}
        self._values: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}

    def of(self, value: Any) -> Any:
        """The fake of a tensor, of its shape, strides, dtype; what is no tensor as it is.

        ValueError for a sparse or a quantized tensor, whose bytes are not those of a strided one.
        """
        if not isinstance(value, torch.Tensor) or getattr(value, "fake_mode", None) is self._mode:
            return value
        if id(value) not in self._fakes:
            with torch.no_grad():
                self._fakes[id(value)] = (value, self._make(value))
        return self._fakes[id(value)][1]

    def values_of(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The real tensor that a fake stands for, as long as nothing was written into the fake."""
        real, known, version = self._values.get(id(fake), (None, None, -1))
        return real if known is fake and fake._version == version else None

    def _make(self, value: torch.Tensor) -> torch.Tensor:
        if value.layout != torch.strided or value.is_quantized:
            kind = "quantized" if value.is_quantized else str(value.layout)
            raise ValueError(f"a {kind} tensor is not counted; it takes dense tensors with strides")
        storage = value.untyped_storage()
        if storage._cdata not in self._memory:
            base = torch.empty_strided((storage.nbytes(),), (1,), dtype=torch.uint8, device="cuda")
            self._memory[storage._cdata] = (storage, base)
        memory = self._memory[storage._cdata][1].untyped_storage()
        made = torch.empty_strided((0,), (1,), dtype=value.dtype, device="cuda")
        made.set_(memory, value.storage_offset(), value.shape, value.stride())
        if value.requires_grad:
            made.requires_grad_()
        if isinstance(value, torch.nn.Parameter):
            made._is_param = True
        if not isinstance(value, FakeTensor) and value.device.type != "meta":
            self._values[id(made)] = (value, made, made._version)
        return made


@contextlib.contextmanager
def in_place_of(fakes: Fakes, modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Put fakes in the place of all parameters and buffers of modules, and the modules back after.

    What a forward leaves in a module, an attribute or a buffer, is gone with the fakes.
    """
    every = list(dict.fromkeys(one for module in modules for one in module.modules()))
    kept = [(one, dict(vars(one)), dict(one._parameters), dict(one._buffers)) for one in every]
    try:
        for one, _, parameters, buffers in kept:
            one._parameters.update({name: fakes.of(value) for name, value in parameters.items()})
            one._buffers.update({name: fakes.of(value) for name, value in buffers.items()})
        yield
    finally:
        for one, attributes, parameters, buffers in kept:
            vars(one).clear()
            vars(one).update(attributes)
            for own, before in ((one._parameters, parameters), (one._buffers, buffers)):
                own.clear()
                own.update(before)  # type: ignore[arg-type]


@contextlib.contextmanager
def replaced(place: Any, name: str, value: Any) -> Iterator[None]:
    """Put something in the place of an attribute, if it is there: not every version has it."""
    if not hasattr(place, name):
        yield
        return
    original = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, original)


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    """Let what is called in the block run on real tensors, as if nothing were counted."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


@contextlib.contextmanager
def no_context() -> Iterator[None]:
    """Let fake CUDA tensors be made without a CUDA context: none is needed to count."""
    with replaced(fake_tensor, "init_gpu_context", lambda *_: None):
        yield


class _Mode(FakeTensorMode):
    """Put a tensor that C++ makes on "meta", beside one of ours, on the device that Python sees."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if getattr(kwargs.get("device"), "type", None) == "meta":
            kwargs["device"] = torch.device("cuda", 0)
        return super().dispatch(func, types, args, kwargs)


@contextlib.contextmanager
def differentiable_fakes() -> Iterator[Fakes]:
    """Make every fake CUDA tensor of the block one that autograd takes without a GPU.

    Yields what puts them in the place of others.
    """
    import torch._dynamo  # looks at torch.Tensor's functions when imported: before they change

    original = torch.Tensor._make_subclass

    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        keys = kwargs.get("device_for_backend_keys")
        if issubclass(cls, FakeTensor) and keys is not None and keys.type == "cuda":
            kwargs["dispatch_device"] = False  # C++ takes the device of the data, "meta"
        return original(cls, *args, **kwargs)

    torch.Tensor._make_subclass = staticmethod(make)  # type: ignore[method-assign]
    try:
        with _Mode() as mode:
            yield Fakes(mode)
    finally:
        del torch.Tensor._make_subclass
