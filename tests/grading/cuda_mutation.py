"""Mutants of a solution's CUDA C++, and many sources compiled as one: g++ starts once for all."""

import ast
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.cuda import cuda
from tests.grading.mutation import Graded

_FUNCTION = re.compile(r"__(?:global|device)__\s+(?:[\w*]+\s+)+(\w+)\s*\(")
_UNTOUCHED = ("//", "#", "__global__", "__device__", "struct")
_MACRO = re.compile(r"#define (\w+) .*")


def merged(sources: Sequence[str], time_limit_s: float = 20.0) -> list[Any]:
    """For each source something with its kernels as attributes, like the module of it alone."""
    texts, names = [], []
    for number, source in enumerate(sources):
        own = _FUNCTION.findall(source)
        for name in own + _MACRO.findall(source):
            source = re.sub(rf"\b{name}\b", f"{name}_{number}", source)
        texts.append(source)
        names.append(own)
    module = cuda("\n".join(["#include <cuda_fp16.h>", *texts]), time_limit_s=time_limit_s)
    return [
        types.SimpleNamespace(
            **{name: module[f"{name}_{n}"] for name in own if f"{name}_{n}" in module.declared}
        )
        for n, own in enumerate(names)
    ]


@dataclass(frozen=True)
class Mutant:
    """A source with one change; `told` says which, with the line before and after."""

    source: str
    told: str


# What a reader gets wrong, as a pattern in one line of code and what stands there instead.
_CHANGES: tuple[tuple[str, str, str], ...] = (
    ("barrier dropped", r"__syncthreads\(\);", ";"),
    ("bound one up", r">= (?=n_|n\b)", "> "),
    ("bound one up", r"< (?=n_|n\b)", "<= "),
    ("bound one down", r">= (n_?\w*)", r">= \1 - 1"),
    ("bound one down", r"(?<=[\w] )< (n_?\w*)", r"< \1 - 1"),
    ("guard dropped", r"^(\s*)if \([^;]*n(?:_rows|_cols)?\) return;", r"\1;"),
    ("half of a guard", r"if \((row [<>]=? n_rows) (?:&&|\|\|) col [<>]=? n_cols\)", r"if (\1)"),
    ("half of a guard", r"if \(row [<>]=? n_rows (?:&&|\|\|) (col [<>]=? n_cols)\)", r"if (\1)"),
    ("shuffle begins at half", r"offset = 16", "offset = 8"),
    ("shuffle ends early", r"offset > 0", "offset > 1"),
    ("shuffle steps by four", r"offset /= 2", "offset /= 4"),
    ("tree begins at half", r"half = THREADS / 2", "half = THREADS / 4"),
    ("tree ends early", r"half > 0", "half > 1"),
    ("accumulator narrowed", r"float sum = 0;", "int sum = 0;"),
    ("accumulator narrowed", r"sum \+= (.*);", r"sum = __half2float(__float2half(sum + \1));"),
    ("one thread more", r"threadIdx\.x < half\b", "threadIdx.x <= half"),
    ("another thread stores", r"threadIdx\.x == 0", "threadIdx.x == 1"),
    ("every thread stores", r"if \(threadIdx\.x == 0\) ", ""),
    ("another lane stores", r"lane == 0", "lane == 1"),
    ("root dropped", r"rsqrtf", ""),
    ("padding dropped", r"\[33\]", "[32]"),
    ("indices exchanged", r"tile\[threadIdx\.x\]\[k\]", "tile[k][threadIdx.x]"),
    ("x and y exchanged", r"(blockIdx|threadIdx)\.x", r"\1.y"),
    ("x and y exchanged", r"(blockIdx|threadIdx)\.y", r"\1.x"),
    ("operator swapped", r" \+ (?!=)", " - "),
    ("operator swapped", r" - (?!=)", " + "),
    ("operator swapped", r" \* (?=\w)(?!x\b|y\b|row =|out\b)", " + "),
    ("operator swapped", r" / ", " * "),
    ("sum replaced", r"\+=", "="),
    ("sum taken away", r"(?<=sum )\+=|(?<=value )\+=|(?<=\] )\+=", "-="),
    ("step lost", r"\+= (8|blockDim\.x|THREADS)\)", "+= 32)"),
    ("sign lost", r"\(-", "("),
    ("no neutral element", r": 0\.0f", ": 1.0f"),
)


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a source: each change at each place where it fits."""
    lines = source.splitlines()
    seen = {source}
    for number, line in enumerate(lines):
        if line.lstrip().startswith(_UNTOUCHED) or "float*" in line:
            # Comments, signatures, types, and pointers whose `*` is no product.
            continue
        for name, pattern, instead in _CHANGES:
            for match in re.finditer(pattern, line):
                changed = line[: match.start()] + match.expand(instead) + line[match.end() :]
                text = "\n".join([*lines[:number], changed, *lines[number + 1 :]])
                if text not in seen:
                    seen.add(text)
                    yield Mutant(text, f"{name}: {line.strip()} -> {changed.strip()}")


def kernels_of(asked: Graded) -> dict[str, str]:
    """The source of each `name = cuda(...)` in the cells of a question, by its name."""
    found = {}
    for _, text in asked.cells:
        for node in ast.parse(text).body:
            if _is_module(node):
                found[ast.unparse(node.targets[0])] = ast.literal_eval(node.value.args[0])
    return found


def _is_module(node: Any) -> bool:
    called = isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    return called and ast.unparse(node.value.func) == "cuda"


def answer_of(asked: Graded, name: str = "", kernels: Any = None) -> Any:
    """The function that answers a question, with other kernels under one of its names."""
    module = types.ModuleType(f"solution_{asked.question.replace('.', '_')}")
    for cell, source in asked.cells:
        wanted = [
            node
            for node in ast.parse(source).body
            if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef) or _is_module(node)
        ]
        exec(compile(ast.Module(wanted, []), f"<{asked.question} {cell}>", "exec"), vars(module))
    if name:
        setattr(module, name, kernels)
    return vars(module)[asked.answer]
