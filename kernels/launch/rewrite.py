"""A kernel's source as a Python function for one launch, over a copy of its globals.

Upstream writes its own globals into the kernel's module, loses closures, and gives a loop's
variable as a plain int, which has no `.to`. Here the module stays as it is, closures are seen, and
the variable is a tensor, as it is for the compiler.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeGuard

from triton.runtime import interpreter as upstream
from triton.runtime.jit import JITFunction

from kernels.launch.builder import MendedBuilder

_code: dict[int, tuple[Any, types.CodeType]] = {}


class _Transformer(upstream.ASTTransformer):
    """Upstream's rewriting of assignments, and loops whose variable is a tensor."""

    def visit_For(self, node: ast.For) -> ast.For:  # noqa: N802  (ast's name for it)
        self.generic_visit(node)
        call = node.iter
        named = getattr(call.func, "id", getattr(call.func, "attr", "")) if _is_call(call) else ""
        if named == "range":
            values = ast.Name(id=_LOOP_VALUES, ctx=ast.Load())
            node.iter = ast.Call(func=values, args=[call], keywords=[])
        return node


def _is_call(node: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call)


_LOOP_VALUES = "__loop_values__"


def _loop_values(numbers: Iterable[int]) -> Iterator[Any]:
    for number in numbers:
        yield upstream.interpreter_semantic.to_tensor(number, False)


class _Rewriter(upstream.FunctionRewriter):
    """Upstream's rewriting, but it returns code and leaves all globals alone."""

    ast_transformer = _Transformer()

    def _compile_and_exec(self, transformed_ast: Any) -> Any:
        module = compile(transformed_ast, filename=self.filename, mode="exec")
        return next(
            code
            for code in module.co_consts
            if isinstance(code, types.CodeType) and code.co_name == self.fn.__name__
        )


def _code_of(kernel: JITFunction[Any]) -> types.CodeType:
    # By id: hashing a JITFunction reads its source, and fails while the language is patched.
    if id(kernel) not in _code:
        rewritten = _Rewriter(kernel.fn).rewrite_ast()
        code = rewritten if isinstance(rewritten, types.CodeType) else rewritten.__code__
        _code[id(kernel)] = (kernel, code)
    return _code[id(kernel)][1]


def function_of(kernel: JITFunction[Any], builder: MendedBuilder) -> Callable[..., Any]:
    """The kernel as a Python function for one launch, over a copy of its globals."""
    code = _code_of(kernel)
    builder.kernel_code[code] = kernel.__name__
    closed = inspect.getclosurevars(kernel.fn).nonlocals
    namespace = {
        **kernel.fn.__globals__,
        **closed,
        "interpreter_semantic": upstream.interpreter_semantic,
        _LOOP_VALUES: _loop_values,
    }
    function = types.FunctionType(code, namespace, kernel.__name__, kernel.fn.__defaults__)
    function.__annotations__ = kernel.fn.__annotations__
    return function
