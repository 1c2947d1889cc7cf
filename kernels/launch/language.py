"""What operators, calls, branches and loops of a kernel mean while it is interpreted.

`rewrite` turns a kernel's source into one that asks here for each of them. So `triton.language`
stays as it is while a kernel runs: what a thread interprets, another may compile. The meanings are
those of Triton's compiler: a builtin is handed the builder however it is called, by another name or
as a method; `and`, `or`, `not`, `min` and `max` act on blocks; constants stay Python's own.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as upstream
from triton.runtime.jit import ConstexprFunction, JITFunction

from kernels.launch import reductions
from kernels.launch.builder import MendedBuilder
from kernels.launch.formats import np_dtype
from kernels.launch.semantic import Semantic

_PYTHON = {
    name.strip("_"): getattr(operator, name)
    for name in "__add__ __sub__ __mul__ __truediv__ __floordiv__ __mod__ __pow__ __lshift__ "
    "__rshift__ __and__ __or__ __xor__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __neg__ __pos__ "
    "__invert__".split()
}
_LIBRARIES = {"triton.language.extra.libdevice": "triton.language.extra.cuda.libdevice"}
_CONDITIONS = (bool, int, type(None), np.bool_)


class _Method(NamedTuple):
    """A function in Triton that was looked up on a value: the value is its first argument."""

    value: Any
    function: JITFunction[Any]


def plain(value: Any) -> Any:
    """A constant of the kernel as Python's own."""
    return value.value if isinstance(value, tl.constexpr) else value


def passed(value: Any) -> Any:
    """An argument as a helper gets it: what the compiler knows is a constant there."""
    return value if isinstance(value, tl.core.base_value | tuple) else tl.constexpr(value)


@functools.cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _is_value(value: Any) -> bool:
    return isinstance(value, tl.core.base_value) and not isinstance(value, tl.constexpr)


class Language:
    """The language of one launch, over its builder; `function_of` makes a helper callable."""

    def __init__(
        self, builder: MendedBuilder, function_of: Callable[[JITFunction[Any]], Callable[..., Any]]
    ) -> None:
        self.builder = builder
        self.semantic = Semantic(builder)
        self._function_of = function_of
        self._functions: dict[int, Callable[..., Any]] = {}
        self._special: dict[int, Callable[..., Any]] = {
            id(function): meaning
            for functions, meaning in (
                ((tl.reduce, tl.tensor.reduce), self._reduce),
                ((tl.associative_scan, tl.tensor.associative_scan), self._scan),
                ((tl.core._reduce_with_indices,), self._reduce_with_indices),
                ((getattr(tl, "map_elementwise", None),), self._map_elementwise),
                ((tl.multiple_of, tl.max_contiguous, tl.max_constancy), self._hint),
                ((tl.static_print,), self._static_print),
                ((tl.static_assert,), self._static_assert),
                ((builtins.print,), self._print),
                ((builtins.min,), functools.partial(self.call, tl.core.builtin_min)),
                ((builtins.max,), functools.partial(self.call, tl.core.builtin_max)),
            )
            for function in functions
        }

    # Values

    slice = builtins.slice

    def settled(self, value: Any) -> Any:
        """What a variable holds once a value is assigned to it: numbers become tensors."""
        if type(value) is tuple:
            return tuple(map(self.settled, value))
        if isinstance(value, tuple):
            return type(value)(*map(self.settled, value))
        value = plain(value)
        if isinstance(value, bool | int | float):
            return self.semantic.to_tensor(value)
        return value

    def constant(self, value: Any) -> Any:
        """What a variable annotated as `tl.constexpr` holds."""
        return value if _is_value(value) else tl.constexpr(value)

    def shown(self, value: Any) -> Any:
        """A value inside an f-string."""
        return value.handle.data if isinstance(value, tl.tensor) else plain(value)

    def attribute(self, owner: Any, name: str) -> Any:
        """`owner.name`."""
        if isinstance(owner, tl.tensor) and name == "T":
            return self.semantic.permute(owner, (1, 0))
        if isinstance(owner, tl.constexpr) and name not in ("value", "type"):
            owner = owner.value
        found = getattr(owner, name)
        if isinstance(found, JITFunction) and _is_value(owner):
            return _Method(owner, found)
        return found

    def item(self, owner: Any, index: Any) -> Any:
        """`owner[index]`."""
        if _is_value(owner):
            return self.call(owner.__getitem__, index)
        index = tuple(map(plain, index)) if isinstance(index, tuple) else plain(index)
        return plain(owner)[index]

    # Operators

    def binary(self, name: str, left: Any, right: Any) -> Any:
        """`left + right` and the like; `name` is that of the method without underscores."""
        if isinstance(left, tl.tensor):
            return getattr(left, f"__{name}__")(right, _semantic=self.semantic)
        if isinstance(right, tl.tensor):
            return getattr(right, f"__r{name}__")(left, _semantic=self.semantic)
        if isinstance(right, tl.constexpr) and not _is_value(left):
            left = tl.constexpr(left)
        return _PYTHON[name](left, right)

    def unary(self, name: str, value: Any) -> Any:
        """`-value` and the like."""
        if isinstance(value, tl.tensor):
            return getattr(value, f"__{name}__")(_semantic=self.semantic)
        if name == "not":
            return tl.constexpr(not plain(value))
        return _PYTHON[name](value)

    def same(self, left: Any, right: Any) -> bool:
        """`left is right`."""
        return plain(left) is plain(right)

    def goes_on(self, name: str, left: Any) -> bool:
        """Whether `left and …` or `left or …` (`name`) asks for what is on its right."""
        return isinstance(left, tl.tensor) or bool(left) is (name == "and")

    def both(self, name: str, left: Any, right: Any) -> Any:
        """`left and right` or `left or right`, where the left one does not decide."""
        if not isinstance(left, tl.tensor):
            return right
        if isinstance(right, tl.tensor):
            return self.call(getattr(left, f"logical_{name}"), right)
        return left if bool(right) is (name == "and") else right

    def chained(self) -> None:
        """`a < b < c`, which Triton's compiler refuses."""
        raise TypeError("Triton takes one comparison at a time: write (a < b) & (b < c)")

    def claim(self, condition: Any, message: Any = "") -> None:
        """`assert condition, message`."""
        self.call(tl.device_assert, condition, message)

    # Branches and loops

    def truth(self, condition: Any) -> bool:
        """Whether a branch is taken."""
        if isinstance(condition, tl.tensor):
            if condition.handle.data.size != 1:
                raise TypeError(
                    f"a condition must be one truth value, and this one is a block of shape "
                    f"{tuple(condition.handle.data.shape)}; use tl.where"
                )
            return bool(condition.handle.data.item())
        value = plain(condition)
        if type(value) not in _CONDITIONS:
            raise TypeError(f"a condition must be a truth value, not a {type(value).__name__}")
        return bool(value)

    def again(self, condition: Any) -> bool:
        """Whether a `while` takes another turn."""
        self.builder.tick()
        # `tl.condition`, which Triton 3.6 has too, holds the condition and a hint.
        return self.truth(getattr(condition, "condition", condition))

    def turns(self, iterator: Any, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """The values of a loop over `range(…)`, `tl.range(…)` or `tl.static_range(…)`."""
        if iterator is tl.static_range:
            for number in _static(*args, **kwargs):
                self.builder.tick()
                yield tl.constexpr(number)
            return
        if iterator is not builtins.range and iterator is not tl.range:
            raise TypeError("a loop goes over range, tl.range or tl.static_range")
        bounds = tl.range(*args, **kwargs)
        values = [self.semantic.to_tensor(v) for v in (bounds.start, bounds.end, bounds.step)]
        kind = functools.reduce(self.semantic.integer_promote_impl, map(_whole, values))
        data = np_dtype(kind)
        for number in builtins.range(*(int(v.handle.data.item()) for v in values)):
            self.builder.tick()
            yield tl.tensor(upstream.TensorHandle(np.array([number]).astype(data), kind), kind)

    # Calls

    def call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """`function(*args, **kwargs)`, whatever the function is."""
        function = plain(function)
        if isinstance(function, _Method):
            function, args = function.function, (function.value, *args)
        if isinstance(function, JITFunction):
            named = {name: passed(value) for name, value in kwargs.items()}
            return self.helper(function)(*map(passed, args), **named)
        if isinstance(function, ConstexprFunction):
            told = {name: _deeply_plain(value) for name, value in kwargs.items()}
            return tl.constexpr(function.fn(*map(_deeply_plain, args), **told))
        owner = getattr(function, "__self__", None)
        bound = getattr(function, "__func__", function)
        if isinstance(bound, ConstexprFunction):
            return self.call(bound, owner, *args, **kwargs)
        library = _LIBRARIES.get(getattr(function, "__module__", None) or "")
        if library is not None:
            function = getattr(importlib.import_module(library), function.__name__)
            bound = function
        special = self._special.get(id(bound))
        if special is not None:
            return special(*((owner,) if _is_value(owner) else ()), *args, **kwargs)
        if _is_value(owner) or tl.core.is_builtin(function):
            taken = _parameters(bound)
            if "_semantic" in taken:
                kwargs["_semantic"] = self.semantic
            if "_generator" in taken:
                kwargs["_generator"] = None  # what asks for it is among the special ones
            return function(*args, **kwargs)
        if isinstance(function, type) and issubclass(function, tl.core.base_value):
            return function(*args, **kwargs)
        return function(*map(plain, args), **{name: plain(v) for name, v in kwargs.items()})

    def helper(self, function: JITFunction[Any]) -> Callable[..., Any]:
        """A function in Triton, to be called."""
        # By id: hashing a JITFunction reads its source and that of all that it calls.
        if id(function) not in self._functions:
            self._functions[id(function)] = self._function_of(function)
        return self._functions[id(function)]

    def _reduce(self, input: Any, axis: Any, combine_fn: Any, *args: Any, **kwargs: Any) -> Any:
        return reductions.reduce(self.call, input, axis, plain(combine_fn), *args, **kwargs)

    def _scan(self, input: Any, axis: Any, combine_fn: Any, *args: Any, **kwargs: Any) -> Any:
        return reductions.scan(self.call, input, axis, plain(combine_fn), *args, **kwargs)

    def _reduce_with_indices(
        self, input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False
    ) -> Any:
        shape = input.handle.data.shape
        along = reductions._axis(plain(axis), len(shape))
        index = np.arange(shape[along], dtype=np.int32)
        index = index.reshape([-1 if d == along else 1 for d in range(len(shape))])
        numbered = reductions.tensor_of(np.broadcast_to(index, shape), tl.int32)
        return self._reduce((input, numbered), along, combine_fn, keep_dims)

    def _map_elementwise(self, scalar_fn: Any, *args: Any, **kwargs: Any) -> Any:
        blocks = [self.semantic.to_tensor(arg) for arg in args]
        return reductions.map_elementwise(self.call, plain(scalar_fn), *blocks, **kwargs)

    def _hint(self, input: Any, values: Any) -> Any:
        return input

    def _static_print(self, *values: Any, **kwargs: Any) -> None:
        if self.builder.grid_idx == (0, 0, 0):
            print(*map(self.shown, values), **kwargs)

    def _static_assert(self, condition: Any, message: Any = "") -> None:
        if not self.truth(condition):
            raise AssertionError(plain(message) or "a static assertion failed")

    def _print(self, *values: Any, **kwargs: Any) -> None:
        # Without a text in front a GPU takes none; here it still helps to look at a value.
        if values and isinstance(plain(values[0]), str):
            self.call(tl.device_print, *values, **kwargs)
        else:
            print(self.builder.grid_idx, *map(self.shown, values))


def _deeply_plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_deeply_plain, value))
    return plain(value)


def _static(first: Any, last: Any = None, step: Any = 1) -> builtins.range:
    start, stop = (0, plain(first)) if last is None else (plain(first), plain(last))
    if not all(isinstance(bound, int) for bound in (start, stop, plain(step))):
        raise TypeError("the bounds of tl.static_range must be constants")
    return builtins.range(start, stop, plain(step))


def _whole(value: Any) -> Any:
    if value.handle.data.size != 1 or not value.dtype.is_int():
        raise TypeError(f"the bounds of a loop must be whole numbers, not {value.type}")
    return value.dtype


def tell_signs() -> None:
    """Let `tl.dtype.to_ir` tell our builder int32 from uint32, once in a process.

    MLIR's integers have no sign, NumPy's do. Triton's own builders get what they always got.
    """
    original = tl.dtype.to_ir
    if hasattr(original, "__kernels_hook__"):
        return

    @functools.wraps(original)
    def to_ir(self: Any, builder: Any) -> Any:
        return self if isinstance(builder, MendedBuilder) else original(self, builder)

    to_ir.__kernels_hook__ = True  # type: ignore[attr-defined]
    tl.dtype.to_ir = to_ir
