"""A kernel's source as a Python function for one launch, over a copy of its globals.

Operators, calls, branches and loops become calls to the launch's `Language`; the module that the
kernel stands in is left alone, and closures are seen.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from typing import Any

from triton.runtime.jit import JITFunction, get_jit_fn_file_line

from kernels.launch.language import Language, passed

_LANGUAGE = "__language__"
_BINARY: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
_UNARY: dict[type[ast.unaryop], str] = {
    ast.USub: "neg",
    ast.UAdd: "pos",
    ast.Invert: "invert",
    ast.Not: "not",
}

_code: dict[int, tuple[Any, str, types.CodeType]] = {}


def _ask(method: str, *args: ast.expr, keywords: list[ast.keyword] | None = None) -> ast.Call:
    language = ast.Name(id=_LANGUAGE, ctx=ast.Load())
    function = ast.Attribute(value=language, attr=method, ctx=ast.Load())
    call = ast.Call(func=function, args=list(args), keywords=keywords or [])
    # An error names the line of the call: that of what it stands for, not of the whole statement.
    located = [arg for arg in args if hasattr(arg, "lineno")]
    return ast.copy_location(call, located[0]) if located else call


class _Transformer(ast.NodeTransformer):
    """Makes each construct whose meaning is Triton's a call to the launch's language."""

    def __init__(self) -> None:
        self._names = 0

    def visit(self, node: ast.AST) -> Any:
        """Visit a node; what takes its place keeps its line."""
        new = super().visit(node)
        if isinstance(node, ast.expr | ast.stmt) and new is not node:
            ast.copy_location(new, node)
        return new

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.body = [self.visit(statement) for statement in node.body]
        node.decorator_list, node.returns = [], None
        return node

    # Statements

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        self.generic_visit(node)
        node.value = _ask("settled", node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            return node
        is_constant = ast.unparse(node.annotation).split(".")[-1] == "constexpr"
        value = _ask("constant" if is_constant else "settled", self.visit(node.value))
        return ast.Assign(targets=[self.visit(node.target)], value=value)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        before = ast.parse(ast.unparse(node.target), mode="eval").body
        value = ast.copy_location(
            ast.BinOp(ast.copy_location(before, node), node.op, node.value), node
        )
        return self.visit(ast.copy_location(ast.Assign(targets=[node.target], value=value), node))

    def visit_If(self, node: ast.If) -> ast.If:
        self.generic_visit(node)
        node.test = _ask("truth", node.test)
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        self.generic_visit(node)
        node.test = _ask("again", node.test)
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        over = node.iter
        self.generic_visit(node)
        if isinstance(over, ast.Call) and isinstance(node.iter, ast.Call):
            node.iter.func.attr = "turns"  # type: ignore[attr-defined]
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        self.generic_visit(node)
        message = [node.msg] if node.msg is not None else []
        return ast.Expr(_ask("claim", node.test, *message))

    # Expressions

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        name = _BINARY.get(type(node.op))
        return node if name is None else _ask("binary", ast.Constant(name), node.left, node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.operand, ast.Constant):
            return node
        return _ask("unary", ast.Constant(_UNARY[type(node.op)]), node.operand)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) > 1:
            return _ask("chained")
        how, left, right = node.ops[0], node.left, node.comparators[0]
        if isinstance(how, ast.Is | ast.IsNot):
            same = _ask("same", left, right)
            return same if isinstance(how, ast.Is) else ast.UnaryOp(ast.Not(), same)
        name = _BINARY.get(type(how))
        return node if name is None else _ask("binary", ast.Constant(name), left, right)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        name = ast.Constant("and" if isinstance(node.op, ast.And) else "or")
        whole = node.values[0]
        for right in node.values[1:]:
            # A name of its own for what is on the left, which is computed once.
            self._names += 1
            left = f"__left_{self._names}__"
            test = _ask("goes_on", name, ast.NamedExpr(ast.Name(left, ast.Store()), whole))
            known = ast.Name(left, ast.Load())
            whole = ast.IfExp(test, _ask("both", name, known, right), known)
        return whole

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        self.generic_visit(node)
        node.test = _ask("truth", node.test)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        return _ask("call", node.func, *node.args, keywords=node.keywords)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        return _ask("attribute", node.value, ast.Constant(node.attr))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        return _ask("item", node.value, _index(node.slice))

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.FormattedValue:
        self.generic_visit(node)
        node.value = _ask("shown", node.value)
        return node


def _index(node: ast.expr) -> ast.expr:
    """What stands in brackets, as an expression."""
    if isinstance(node, ast.Tuple):
        return ast.Tuple([_index(part) for part in node.elts], ast.Load())
    if not isinstance(node, ast.Slice):
        return node
    parts = [part or ast.Constant(None) for part in (node.lower, node.upper, node.step)]
    return _ask("slice", *parts)


def _code_of(kernel: JITFunction[Any]) -> types.CodeType:
    # By id: hashing a JITFunction reads its source and that of all that it calls.
    known = _code.get(id(kernel))
    if known is not None and known[1] == kernel.src:
        return known[2]
    file, first = get_jit_fn_file_line(kernel)
    tree = _Transformer().visit(ast.parse(kernel.src))
    ast.increment_lineno(ast.fix_missing_locations(tree), first - 1)
    module = compile(tree, filename=file, mode="exec")
    code = next(
        constant
        for constant in module.co_consts
        if isinstance(constant, types.CodeType) and constant.co_name == kernel.fn.__name__
    )
    _code[id(kernel)] = (kernel, kernel.src, code)
    return code


def function_of(kernel: JITFunction[Any], language: Language) -> Callable[..., Any]:
    """The kernel, or a helper of it, as a Python function for one launch."""
    code = _code_of(kernel)
    if not str(kernel.fn.__module__).startswith("triton."):  # lines of Triton's own tell nothing
        language.builder.codes[code] = code.co_filename
    namespace = {**kernel.get_capture_scope(), _LANGUAGE: language}
    defaults = tuple(map(passed, kernel.fn.__defaults__ or ()))
    return types.FunctionType(code, namespace, kernel.__name__, defaults)
