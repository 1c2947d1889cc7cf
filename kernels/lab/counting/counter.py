"""Operators written down as steps, while something runs on fake CUDA tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from kernels.lab.counting.fake_cuda import Fakes, without_modes
from kernels.lab.counting.ledger import Step, TensorTraffic
from kernels.lab.counting.operands import (
    Moved,
    moves_bytes,
    on_gpu,
    operands,
    tensors_in,
)
from kernels.lab.counting.our_operators import OURS, count_ours
from kernels.lab.counting.views import distinct_bytes

Tensor = torch.Tensor
_MOST = "as many as there can be: fake tensors have no values that would tell how many"
_ATTENTIONS = ("_scaled_dot_product", "_safe_softmax", "_softmax")


class Counter(TorchDispatchMode):
    """Write down a step for every operator that moves bytes.

    `fakes` puts fake tensors in the place of real ones that are met. While `forgets` is True steps
    are left out, and still give tensors their names.
    """

    def __init__(self, fakes: Fakes) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.forgets = False
        self.fakes = fakes
        self._names: dict[int, str] = {}  # of tensors, by the identity of their memory
        self._written = 0  # operators so far, left out or not: they number the tensors they made
        self._note = ""
        # Kept alive: a new storage must not get the identity of one that is gone.
        self._seen: list[Any] = []

    def _name(self, tensor: Tensor, default: str) -> str:
        storage = tensor.untyped_storage()
        self._seen.append(storage)
        return self._names.setdefault(storage._cdata, default)

    def remember(self, named: Iterable[tuple[str, Any]]) -> None:
        """Call tensors so, alone or inside other values, unless they have a name already."""
        for name, value in named:
            for number, tensor in enumerate(tensors_in(value)):
                self._name(tensor, name if number == 0 else f"{name}[{number}]")

    def gradients_of(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """A gradient for each output, `dy`, or `dy1`, `dy2` if there are several."""
        made = [torch.empty_like(output) for output in outputs]
        many = len(made) > 1
        self.remember((f"dy{i}" if many else "dy", one) for i, one in enumerate(made, 1))
        return made

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if "lift" not in func._schema.name:  # a constant that `torch.tensor` made on the CPU
            args, kwargs = tree_map(self.fakes.of, (args, kwargs))
        if func.namespace == OURS:
            result = func(*args, **kwargs)
            steps = () if self.forgets else count_ours(func, args, kwargs).steps
            self.steps += steps
            self._written += max(1, len(steps))
            last = steps[-1].name if steps else func._schema.name.split("::")[1]
            label = f"{last}_{self._written}"
            for number, tensor in enumerate(on_gpu(result)):
                self._name(tensor, label if number == 0 else f"{label}.{number}")
            return result
        name = func._schema.name.split("::")[1]
        if name == "nonzero":
            return self._nonzero(*args)
        if name == "masked_select":
            return self._masked_select(func, *args)
        if name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"):
            if name != "index" and _fills(args):
                name = "masked_fill_"
            else:
                args = (args[0], [*self._as_numbers(args[1])], *args[2:])
        if name == "_local_scalar_dense":
            return self._value(func, *args)
        try:
            result = func(*args, **kwargs)
        except DataDependentOutputException as error:
            raise ValueError(
                f"{name} goes by values of a tensor, and fake ones have none"
            ) from error
        except DynamicOutputShapeException as error:
            raise ValueError(
                f"the size of what {name} returns goes by values, and fake tensors have none"
            ) from error
        inputs, outputs = on_gpu((args, kwargs)), on_gpu(result)
        if moves_bytes(func, inputs, outputs):
            if name == "masked_fill_":
                written = [Moved(args[0], distinct_bytes(args[0]))]
                self._write_down(name, _all_of(on_gpu(args[:2])), written)
            else:
                self._write_down(name, *operands(func, args, kwargs, result))
        return result

    def spelled(self, operator: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Write down an operator that was put in another's place and that did not run."""
        self._write_down(operator, _all_of(inputs), _all_of(outputs))

    def tell(self, note: str) -> None:
        """Add a note to the next step of an attention."""
        self._note = note

    def _write_down(
        self, operator: str, reads: list[Moved], writes: list[Moved], note: str = ""
    ) -> None:
        self._written += 1
        label = f"{operator.strip('_')}{self._written}"
        traffic_of: dict[str, TensorTraffic] = {}
        read: dict[str, list[Moved]] = {}
        for moved in reads:
            read.setdefault(self._name(moved.tensor, "constant"), []).append(moved)
        for name, of_one in read.items():
            size = _together(of_one)
            traffic_of[name] = TensorTraffic(name, read_unique=size, read_requested=size)
        for number, moved in enumerate(writes):
            size = moved.size
            name = self._name(moved.tensor, label if number == 0 else f"{label}.{number}")
            written = TensorTraffic(name, write_unique=size, write_requested=size)
            traffic_of[name] = traffic_of.get(name, TensorTraffic(name)) + written
        if operator.startswith(_ATTENTIONS) and not operator.endswith("_backward"):
            note, self._note = self._note, ""
        if not self.forgets:
            self.steps.append(Step(operator, "aten", tuple(traffic_of.values()), note=note))

    def _value(self, func: Any, tensor: Tensor) -> Any:
        """The value of a tensor of one element that is known: it came from outside."""
        real = self.fakes.values_of(tensor)
        if tensor.device.type != "cuda" and real is None:
            return func(tensor)
        if real is None:
            raise ValueError(
                "a value is asked of a tensor (item, bool, float, int), and fake ones have none"
            )
        self._write_down("_local_scalar_dense", _all_of([tensor]), [])
        with without_modes():
            return real.item()

    def _nonzero(self, mask: Tensor) -> Tensor:
        """The places of a mask that are True: (how many, dimensions) of int64."""
        real = self.fakes.values_of(mask)
        if real is None:
            count = mask.numel()
        else:
            with without_modes():
                count = int(torch.count_nonzero(real))
        places = mask.new_empty((count, mask.dim()), dtype=torch.int64)
        self._write_down(
            "nonzero", _all_of([mask]), _all_of([places]), _MOST if real is None else ""
        )
        return places

    def _as_numbers(self, indices: Any) -> Any:
        """Indices with each mask replaced by the numbers of its True elements, as on a GPU."""
        for index in indices:
            if index is not None and index.dtype in (torch.bool, torch.uint8):
                yield from self._nonzero(index).unbind(1)
            else:
                yield index

    def _masked_select(self, func: Any, x: Tensor, mask: Tensor) -> Tensor:
        x, mask = torch.broadcast_tensors(x, mask)
        places = self._nonzero(mask)
        made = x.new_empty(places.shape[0])
        read = Moved(x, min(distinct_bytes(x), distinct_bytes(made)))
        self._write_down("masked_select", [read, *_all_of([places])], _all_of([made]))
        return made


def _all_of(tensors: list[Tensor]) -> list[Moved]:
    return [Moved(tensor, distinct_bytes(tensor)) for tensor in tensors]


def _together(several: list[Moved]) -> int:
    """The bytes that are read of one memory, through several views of it or through one."""
    of_view: dict[Any, int] = {}
    for moved in several:
        one = moved.tensor
        view = (one.storage_offset(), one.shape, one.stride(), one.dtype)
        of_view[view] = max(moved.size, of_view.get(view, 0))
    if len(of_view) == 1:
        return max(of_view.values())
    # Of a view that is gathered from, less may be read than it has.
    return min(sum(of_view.values()), distinct_bytes(*(moved.tensor for moved in several)))


def _fills(args: tuple[Any, ...]) -> bool:
    """Whether one value on the CPU is put where a mask is True: PyTorch fills then."""
    used = [one for one in args[1] if one is not None]
    masks = len(used) == 1 and used[0].dtype in (torch.bool, torch.uint8)
    return masks and args[2].numel() == 1 and args[2].device.type == "cpu"
