"""What to tell people who write Triton as they would write CUDA C++ or PyTorch."""

from __future__ import annotations

import re
import traceback

from kernels.launch import KernelError

# (what stands in the line, what the error says, what to tell)
_HABITS = (
    (
        r"\b(?:torch|np|numpy|math)\s*\.",
        "",
        "Inside a kernel there is no PyTorch, NumPy or math: a kernel's blocks are made and "
        "reduced by triton.language, as tl.arange, tl.zeros, tl.sum and tl.max are.",
    ),
    (
        r"\b(?:threadIdx|blockIdx|blockDim|gridDim)\b",
        "",
        "A program of Triton is what a block of threads is in CUDA: tl.program_id(0) stands for "
        "blockIdx.x, and tl.arange(0, BLOCK) numbers its lanes, which have no names of their own.",
    ),
    (
        r"\w\s*\[[^\]]+\]",
        r"item assignment|_semantic|subscript|unsupported tensor index",
        "A pointer takes no index in Triton. Where C has x[i], write tl.load(x_ptr + i, mask=...), "
        "and tl.store(y_ptr + i, value, mask=...) where it has y[i] = value.",
    ),
    (
        r"\blen\s*\(|_ptr\s*\.\s*(?:shape|size|numel)\b",
        "",
        "A kernel gets the address of a tensor, and no size with it. What it has to know, as the "
        "number of elements or of columns, is an argument of its own.",
    ),
    (
        "",
        r"'tensor' object has no attribute",
        "A kernel's block is no tensor of PyTorch's and has none of its methods: it is "
        "x.to(tl.float32), tl.sum(x, axis=0), tl.exp(x), tl.sqrt(x).",
    ),
    (
        "",
        r"cannot be block type if pointer",
        "The pointer names one address here, and what goes with it is a block. A program's or a "
        "row's number is one offset; a block of them has tl.arange in it, as row * n_cols + cols.",
    ),
    (
        "",
        r"Unsupported ptr type",
        "That is no pointer. A launch takes the tensors themselves, not x.data_ptr(); a kernel "
        "gets their addresses, and adds offsets to them.",
    ),
    *(
        (
            line,
            words,
            "A pointer is an address and no number: tl.load(x_ptr + offsets, mask=...) fetches "
            "what lies there.",
        )
        for line, words in (("", "cannot cast pointer"), (r"_ptr\s*[*/]", "type pointer"))
    ),
    (
        "",
        r"make_shape_compatible|[Cc]annot broadcast",
        "Two blocks meet whose shapes don't fit. A reduction drops its axis: what "
        "tl.sum(x, axis=1) leaves of a tile meets the tile again as [:, None], or with "
        "keep_dims=True.",
    ),
    (
        r"\barange\b",
        r"power of 2|constexpr",
        "A block's width is a power of two that is known when the kernel is compiled: BLOCK: "
        "tl.constexpr, and at the launch BLOCK=triton.next_power_of_2(n). A mask does the rest.",
    ),
    (
        r"\btl\s*\.\s*dot\b",
        r"AssertionError$",
        "tl.dot adds to an accumulator of the product's own shape, in fp32: "
        "tl.zeros([BLOCK_M, BLOCK_N], tl.float32).",
    ),
    (
        "",
        r"invalid operands of type pointer|bounds of a loop must be whole|unexpected type fp",
        "An offset and the bounds of a loop are whole numbers. Of two whole numbers / makes a "
        "float; // divides and rounds down, and an address is a product: row * n_cols.",
    ),
    (
        "",
        r"one truth value|truth value of",
        "A block holds a value for each lane, so a condition is a block too and no if can take "
        "it. Give it to mask= of the load and of the store, or to tl.where; join conditions by & "
        "and |, which stand for and and or.",
    ),
    (
        "",
        r"Cannot call @triton.jit'd outside of the scope of a kernel",
        "A launch takes a grid in brackets before its arguments: kernel[(programs,)](x, y, n).",
    ),
)


def from_cuda(error: BaseException, said: str) -> str:
    """What belongs instead of a habit from elsewhere that raised `error`; "" for other errors.

    `said` is the error's text: to ask the error itself may raise another.
    """
    code = _code(error)
    for line, words, told in _HABITS:
        if re.search(line, code) and re.search(words, said):
            return told
    return ""


def _code(error: BaseException) -> str:
    """The line of the kernel that raised; "" if the error is none of a kernel's own code."""
    if not isinstance(error, KernelError) or error.kind != "python" or error.__cause__ is None:
        return ""
    frames = traceback.extract_tb(error.__cause__.__traceback__)
    lines = [frame.line for frame in frames if frame.lineno == error.line and frame.line]
    return re.sub(r"#.*", "", lines[0]) if lines else ""
