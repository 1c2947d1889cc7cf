"""The kernels that a CUDA C++ source declares, and what each of their parameters takes."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from kernels.cuda.errors import CudaError

_UNSIGNED = {32: torch.uint32, 64: torch.uint64, 16: torch.uint16}
_DTYPES: dict[str, torch.dtype] = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "__half": torch.float16,
    "__nv_bfloat16": torch.bfloat16,
    "nv_bfloat16": torch.bfloat16,
    "bool": torch.bool,
    "char": torch.int8,
    "signed char": torch.int8,
    "int8_t": torch.int8,
    "unsigned char": torch.uint8,
    "uint8_t": torch.uint8,
    "short": torch.int16,
    "int16_t": torch.int16,
    "unsigned short": _UNSIGNED[16],
    "uint16_t": _UNSIGNED[16],
    "int": torch.int32,
    "int32_t": torch.int32,
    "unsigned": _UNSIGNED[32],
    "unsigned int": _UNSIGNED[32],
    "uint32_t": _UNSIGNED[32],
    "long": torch.int64,
    "long long": torch.int64,
    "long long int": torch.int64,
    "int64_t": torch.int64,
    "ptrdiff_t": torch.int64,
    "unsigned long": _UNSIGNED[64],
    "unsigned long long": _UNSIGNED[64],
    "uint64_t": _UNSIGNED[64],
    "size_t": _UNSIGNED[64],
    "__half2": torch.float16,
    "half2": torch.float16,
    "__nv_bfloat162": torch.bfloat16,
    "nv_bfloat162": torch.bfloat16,
}
for _width in "234":
    _DTYPES |= {
        f"float{_width}": torch.float32,
        f"double{_width}": torch.float64,
        f"int{_width}": torch.int32,
        f"uint{_width}": _UNSIGNED[32],
        f"short{_width}": torch.int16,
        f"char{_width}": torch.int8,
        f"uchar{_width}": torch.uint8,
    }

_KERNEL = re.compile(
    r"(?:template\s*<(?P<template>[^{};()]*)>\s*)?"
    r"(?:extern\s+\"C\"\s+)?(?:static\s+)?(?:inline\s+)?__global__\s+"
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+"
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?(?P<name>\w+)\s*\("
)
_VARIABLE = re.compile(r"\b(?:__device__|__managed__)\s+[^(){};=]*[=;]")
_NOT_OF_THE_TYPE = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|restrict|struct)\b")


@dataclass(frozen=True)
class Parameter:
    """One parameter: name, C++ type without qualifiers, and the dtype it holds or points at.

    `dtype` is None for `void*`, which takes any tensor.
    """

    name: str
    type: str
    pointer: bool
    dtype: torch.dtype | None

    @property
    def declared(self) -> str:
        """The type as the source has it: `float*`."""
        return self.type + "*" * self.pointer


@dataclass(frozen=True)
class Signature:
    """One kernel as it can be called: `expression` is its name with template arguments."""

    expression: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Declaration:
    """One `__global__` function of a source, before template arguments are known.

    `body` is where in the source the inside of its braces begins and ends.
    """

    name: str
    template: tuple[str, ...]
    parameters: tuple[str, ...]
    body: tuple[int, int]

    def signature(self, arguments: tuple[str, ...] = ()) -> Signature:
        """Fill in template `arguments`; CudaError if they don't fit."""
        if len(arguments) > len(self.template) or (self.template and not arguments):
            wanted = ", ".join(self.template) or "no template arguments"
            raise CudaError(
                f"kernel {self.name!r} takes {wanted}: write module["
                f'"{self.name}<...>"] with one value for each'
                if self.template
                else f"kernel {self.name!r} is no template and takes no template arguments"
            )
        given = dict(zip(self.template, arguments, strict=False))
        expression = f"{self.name}<{', '.join(arguments)}>" if arguments else self.name
        parameters = tuple(_parameter(self.name, text, given) for text in self.parameters)
        return Signature(expression, parameters)


def without_comments(source: str) -> str:
    """`source` with comments blanked out, every other character at its old place."""
    pattern = r"//[^\n]*|/\*.*?\*/|(\"(?:\\.|[^\"\\\n])*\")"

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[1] else re.sub(r"[^\n]", " ", match[0])

    return re.sub(pattern, blank, source, flags=re.DOTALL)


def has_variables(source: str) -> bool:
    """Whether a source declares variables on the device, which live between its launches."""
    return _VARIABLE.search(without_comments(source)) is not None


def split_outside_brackets(text: str) -> list[str]:
    """The parts of `text` between commas that stand in no bracket."""
    parts, depth = [""], 0
    for character in text:
        depth += character in "([{<"
        depth -= character in ")]}>"
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _closed(text: str, place: int, pair: str) -> int:
    """The place after the bracket that closes the one which was opened just before `place`."""
    depth = 1
    while depth and place < len(text):
        depth += {pair[0]: 1, pair[1]: -1}.get(text[place], 0)
        place += 1
    return place


def declarations(source: str) -> dict[str, Declaration]:
    """Every `__global__ void` function of `source`, by name; CudaError if there is none."""
    text = without_comments(source)
    found: dict[str, Declaration] = {}
    for match in _KERNEL.finditer(text):
        end = _closed(text, match.end(), "()")
        template = tuple(
            re.split(r"\s*=", part)[0].split()[-1]
            for part in split_outside_brackets(match["template"] or "")
        )
        parameters = tuple(split_outside_brackets(text[match.end() : end - 1]))
        if parameters == ("void",):
            parameters = ()
        if text[end:].lstrip().startswith(";"):
            continue  # announced here, defined further on
        start = text.find("{", end) + 1 or len(text)
        body = (start, _closed(text, start, "{}") - 1)
        found[match["name"]] = Declaration(match["name"], template, parameters, body)
    if not found:
        raise CudaError(
            "the source has no kernel: define at least one function as "
            "`__global__ void name(float* x, int n) { ... }`"
        )
    return found


def _parameter(kernel: str, text: str, template: dict[str, str]) -> Parameter:
    plain = _NOT_OF_THE_TYPE.sub(" ", text.split("=")[0])
    match = re.fullmatch(r"\s*(.*?)\s*(\**)\s*(\w+)\s*(\[\s*\w*\s*\])?\s*", plain, re.DOTALL)
    if not match or not match[1]:
        raise CudaError(f"kernel {kernel!r}: can't read the parameter `{text}`; write `type name`")
    kind = " ".join(match[1].replace("*", " * ").split())
    for name, value in template.items():
        kind = re.sub(rf"\b{name}\b", value, kind)
    stars = match[2] + ("*" if match[4] else "")
    if len(stars) > 1 or "*" in kind:
        raise CudaError(
            f"kernel {kernel!r}: parameter {match[3]!r} is a pointer to a pointer; "
            f"kernels here take pointers to numbers, and numbers"
        )
    if kind == "void" and stars:
        return Parameter(match[3], kind, True, None)
    if kind not in _DTYPES or (not stars and kind[-1] in "234" and kind != "float"):
        known = "float, double, __half, __nv_bfloat16, int, long long, bool and their pointers"
        raise CudaError(
            f"kernel {kernel!r}: parameter {match[3]!r} has the type `{kind}`, which is not "
            f"supported; parameters are {known}"
        )
    return Parameter(match[3], kind, bool(stars), _DTYPES[kind])
