"""The hook on `JITFunction.run`: one `@triton.jit` function, run three ways.

- run: all tensors on a GPU: Triton compiles and launches, as always.
- interpret: tensors on the CPU, or a ledger is counting: every program runs in the interpreter,
  over the arena.
- record: the launch is kept, with its arguments, and nothing runs; `compile_launch` then compiles
  the specialization it would have used for any compute capability, with no GPU.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from triton import knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from kernels.launch import launches, tape
from kernels.launch.again import forget
from kernels.launch.arena import Access
from kernels.launch.errors import LaunchError
from kernels.launch.interpreter import interpret, normalized_grid, tensors_of
from kernels.launch.triton_launch import TritonLaunch

LAUNCH_OPTIONS = frozenset(
    "num_warps num_stages num_ctas enable_fp_fusion maxnreg launch_cooperative_grid launch_pdl "
    "cluster_dims debug sanitize_overflow instrumentation_mode extern_libs arch".split()
)


@functools.cache
def _cuda_options() -> frozenset[str]:
    """The options of Triton's compiler for CUDA, of which few are ever written at a launch."""
    from triton.backends.nvidia.compiler import CUDAOptions

    return frozenset(CUDAOptions.__dataclass_fields__)


def _bind(kernel: JITFunction[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = [parameter.name for parameter in kernel.params]
    options = {key: value for key, value in kwargs.items() if key not in names}
    unknown = sorted(set(options) - LAUNCH_OPTIONS)
    if unknown and not set(unknown) <= _cuda_options():
        raise LaunchError(
            f"kernel {kernel.__name__!r}: argument {unknown[0]!r} is neither a parameter "
            f"({', '.join(names)}) nor a launch option"
        )
    try:
        bound = kernel.signature.bind(
            *args, **{key: value for key, value in kwargs.items() if key in names}
        )
    except TypeError as error:
        raise LaunchError(f"kernel {kernel.__name__!r}: {error}") from None
    bound.apply_defaults()
    return bound.arguments, options


def _devices(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[str]:
    values = (*args, *kwargs.values())
    return {tensor.device.type for value in values for tensor in tensors_of(value)}


def _refuse_mixed(kernel: JITFunction[Any], arguments: dict[str, Any]) -> None:
    where = {name: _devices((value,), {}) for name, value in arguments.items()}
    told = ", ".join(f"{name!r} on {'/'.join(d)}" for name, d in where.items() if d)
    raise LaunchError(
        f"kernel {kernel.__name__!r}: its tensors lie on different devices ({told}); "
        f"move them to one device"
    )


def _refuse_without_gpu(kernel: JITFunction[Any]) -> None:
    if not torch.cuda.is_available():
        raise LaunchError(
            f"kernel {kernel.__name__!r}: no argument is a CPU tensor and PyTorch finds no GPU; "
            f"give it CPU tensors to interpret it"
        )


def _take(kernel: JITFunction[Any], args: Any, kwargs: Any, grid: Any, mode: str) -> None:
    for hook in kernel.pre_run_hooks:
        hook(*args, **kwargs)
    arguments, options = _bind(kernel, args, kwargs)
    if len(_devices((), arguments)) > 1:
        _refuse_mixed(kernel, arguments)
    sizes = normalized_grid(grid, arguments)
    launch = TritonLaunch(kernel=kernel, arguments=arguments, options=options, grid=sizes)
    if mode != "record":
        trace: list[Access] | None = [] if launches.wants_trace() else None
        with tape.unseen():
            arena = interpret(kernel, arguments, sizes, trace, options, launches.time_limit_s())
        launch = replace(launch, arena=arena, trace=tuple(trace or ()))
        if (taping := tape.active()) is not None:
            taping.launched(kernel, arguments, options, sizes, None)
    launches.keep(launch)


def _compiled_run(
    original: Any, kernel: JITFunction[Any], args: Any, kwargs: Any, grid: Any
) -> Any:
    compiled = original(kernel, *args, grid=grid, warmup=False, **kwargs)
    if (taping := tape.active()) is not None:
        arguments, options = _bind(kernel, args, kwargs)
        taping.launched(kernel, arguments, options, normalized_grid(grid, arguments), compiled)
    return compiled


def _hooked_run(original: Any) -> Any:
    @functools.wraps(original)
    def run(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        mode = launches.mode()
        if warmup and not torch.cuda.is_available():
            raise LaunchError(
                f"kernel {self.__name__!r}: warmup compiles for the GPU at hand, and PyTorch finds "
                f"none; kernels.launch.compile_launch compiles a recorded launch for any card"
            )
        if mode is None:
            # The common case on a GPU: one look at the first tensor, then straight on.
            first = args[0] if args else None
            if warmup:
                return original(self, *args, grid=grid, warmup=warmup, **kwargs)
            if getattr(first, "is_cuda", False):
                return _compiled_run(original, self, args, kwargs, grid)
            if "cpu" not in _devices(args, kwargs):
                _refuse_without_gpu(self)
                return _compiled_run(original, self, args, kwargs, grid)
        elif warmup:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        return _take(self, args, kwargs, grid, mode or "interpret")

    run.__kernels_hook__ = True  # type: ignore[attr-defined]
    return run


def _hooked_tune(original: Any) -> Any:
    @functools.wraps(original)
    def run(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
        named = dict(zip(self.arg_names, args, strict=False))
        tape.spoil()  # it launches to compare, and may reset arguments between
        if launches.mode() is None and "cpu" not in _devices(args, kwargs):
            return original(self, *args, **kwargs)
        # Nothing is timed without a GPU: the first configuration left after pruning is taken.
        self.nargs = named
        config = self.prune_configs(kwargs)[0] if len(self.configs) > 1 else self.configs[0]
        self.best_config, self.nargs = config, None
        if config.pre_hook is not None:
            # It sees what the kernel will get, and may change it: blocks of descriptors, a zero.
            config.pre_hook({**named, **kwargs, **config.all_kwargs()})
        return self.fn.run(*args, **{**kwargs, **config.all_kwargs()})

    run.__kernels_hook__ = True  # type: ignore[attr-defined]
    return run


def _telling(original: Any) -> Any:
    @functools.wraps(original)
    def change(self: Any, *args: Any, **kwargs: Any) -> Any:
        forget()
        if isinstance(self, JITFunction):
            self.device_caches.clear()  # whose keys say nothing of the source
        return original(self, *args, **kwargs)

    return change


def install() -> None:
    """Put the hook on `JITFunction.run` and on `Autotuner.run`, once in a process.

    What changes a kernel's source, its hooks or those of all launches is made to tell it, for
    launches that are kept.
    """
    if not hasattr(JITFunction.run, "__kernels_hook__"):
        JITFunction.run = _hooked_run(JITFunction.run)
        Autotuner.run = _hooked_tune(Autotuner.run)
        for name in ("_unsafe_update_src", "add_pre_run_hook"):
            if hasattr(JITFunction, name):
                setattr(JITFunction, name, _telling(getattr(JITFunction, name)))
        settings: Any = type(knobs.runtime)
        settings.__setattr__ = _telling(settings.__setattr__)
