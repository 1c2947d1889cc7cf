"""What an operation moves and computes, as data: the one place where an explorer's formulas stand.

An explorer answers in the page, where no Python runs. So a formula is a sum of products of sizes,
which the page's JavaScript adds up without knowing any operation. The tests hold the sums equal to
`Op.cost` of every operation that is registered.
"""

from __future__ import annotations

from dataclasses import dataclass

# (7, "rows", "cols") is 7 · rows · cols.
Term = tuple[int | str, ...]


@dataclass(frozen=True)
class Formula:
    """The ideal elements and the FLOPs of one operation, each a sum of terms.

    `read` and `write` count elements: each input once, each output once. `flops` counts as `Cost`
    does: an FMA is 2; exp, rsqrt, erf and tanh are 1 each. `arithmetic` is the dtype computed in,
    hence the ceiling that holds; None where it is the dtype of the tensors. `counted` says in a
    sentence where the FLOPs come from, `source` and `url` where the equation does.
    """

    key: str
    label: str
    sizes: tuple[str, ...]
    read: tuple[Term, ...]
    write: tuple[Term, ...]
    flops: tuple[Term, ...]
    counted: str
    source: str
    url: str
    arithmetic: str | None = "fp32"


_ELEMENTS: tuple[Term, ...] = ((1, "rows", "cols"),)

FORMULAS = (
    Formula(
        key="copy",
        label="Copy",
        sizes=("rows", "cols"),
        read=_ELEMENTS,
        write=_ELEMENTS,
        flops=(),
        counted="A copy computes nothing.",
        source="McCalpin, STREAM, which counts a copy as one read and one write",
        url="https://www.cs.virginia.edu/stream/ref.html",
    ),
    Formula(
        key="add",
        label="Residual add",
        sizes=("rows", "cols"),
        read=((2, "rows", "cols"),),
        write=_ELEMENTS,
        flops=_ELEMENTS,
        counted="An element costs 1 FLOP, the sum.",
        source="Vaswani et al., Attention Is All You Need: the residual connection",
        url="https://arxiv.org/abs/1706.03762",
    ),
    Formula(
        key="gelu",
        label="GELU",
        sizes=("rows", "cols"),
        read=_ELEMENTS,
        write=_ELEMENTS,
        flops=((5, "rows", "cols"),),
        counted="In x/2 · (1 + erf(x/√2)) an element costs 5 FLOPs: 1 to halve x, 1 to scale it "
        "by 1/√2, 1 for erf, 1 to add, 1 to multiply.",
        source="Hendrycks and Gimpel, Gaussian Error Linear Units",
        url="https://arxiv.org/abs/1606.08415",
    ),
    Formula(
        key="layernorm",
        label="LayerNorm",
        sizes=("rows", "cols"),
        read=((1, "rows", "cols"), (2, "cols")),
        write=_ELEMENTS,
        flops=((7, "rows", "cols"), (4, "rows")),
        counted="An element costs 7 FLOPs: 1 into the sum, 1 to centre, 2 into the sum of "
        "squares, 1 to scale, 2 for weight and bias. A row costs 4 more: two divisions, one sum, "
        "one rsqrt.",
        source="Ba, Kiros and Hinton, Layer Normalization",
        url="https://arxiv.org/abs/1607.06450",
    ),
    Formula(
        key="softmax",
        label="Softmax",
        sizes=("rows", "cols"),
        read=_ELEMENTS,
        write=_ELEMENTS,
        flops=((5, "rows", "cols"),),
        counted="An element costs 5 FLOPs: 1 into the largest, 1 to subtract it, 1 for exp, 1 into "
        "the sum, 1 to divide.",
        source="Milakov and Gimelshein, Online normalizer calculation for softmax",
        url="https://arxiv.org/abs/1805.02867",
    ),
    Formula(
        key="matmul",
        label="Matrix product",
        sizes=("m", "k", "n"),
        read=((1, "m", "k"), (1, "k", "n")),
        write=((1, "m", "n"),),
        flops=((2, "m", "k", "n"),),
        counted="Each of the M·N results takes K multiply-adds, 2 FLOPs each.",
        source="NVIDIA, Matrix Multiplication Background User's Guide",
        url="https://docs.nvidia.com/deeplearning/performance/"
        "dl-performance-matrix-multiplication/index.html",
        arithmetic=None,
    ),
)
