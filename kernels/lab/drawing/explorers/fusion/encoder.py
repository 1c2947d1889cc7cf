"""The layer of a transformer's encoder for the fusion explorer, pre-LN and post-LN (chapter 14).

Every step alone: what `kernels.ops.layers.encoder_layer` composes, with attention's three parts
apart. Tokens are batch · length, `width` is E, `inner` the MLP's I. The presets close what that
layer closes; tests hold them to its ledger and to its memory, byte by byte.

Dropout's masks are Philox's, made again from a seed, and so no tensors. What is kept for the
backward is what that layer keeps. FLOPs are those of the operations' `Cost`, and beside attention's
5 a score for its softmax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernels.lab.drawing.explorers.fusion.chain import Chain, Preset, Step, Term, Terms

SIZES = ("batch", "length", "width", "heads", "inner")
_SCORES = ("batch", "heads", "length", "length")

# Which steps no launch holds together, and why.
_KEYS = "A query's scores need the keys of its whole sequence, and other programs make those."
_HEADS = "A row of this product takes all heads of a token, and a program of attention has one."
_ROW = "A norm needs the whole row, and a tile of the product holds a part of it."
_INNER = "Its sums run over all columns of the MLP, and a program of the first product has a few."
_TWICE = "Each column of tiles would add the residual again, and h must be written all the same."
_AGAIN = "h is read again behind the MLP, and a norm folded into a product never makes it."
_KEPT = "The backward reads LayerNorm(h), and a norm folded into a product never makes it."
_DRAWN = "PyTorch's generator draws the seeds, by an operator of its own."

# What it takes to close the joint in front of a step.
_ONLINE = "A row's largest score and its sum are put right tile by tile (chapter 12)."
_FOLD = (
    "This book's layer does it on Hopper: the weights carry γ, and mean and scale are put right in "
    "the sums. Elsewhere each column of tiles would normalise its rows again."
)
_FOLD_TOO = "As for the first norm."
_FOLD_EACH = "Weights change at every step, so γ would be folded into them anew each time."
_EPILOGUE = "An epilogue: it works on the product's sums before they are stored (chapter 11)."
_PROLOGUE = "Each column of tiles would compute it again for the rows that it reads."
_TOO = "An epilogue too."
_EITHER = "An epilogue. It keeps the norm out of the launch; this book's layer takes the norm."


class _Layer:
    """The steps of a layer and their tensors, of numbers of `size` bytes in `dtype`."""

    def __init__(self, size: int, dtype: str, trained: bool) -> None:
        self.size, self.dtype, self.trained = size, dtype, trained
        self.steps: list[Step] = []
        self.tensors: dict[str, Terms] = {}
        self.tokens("width", "x")

    def tokens(self, width: str, *names: str) -> None:
        self.tensors |= dict.fromkeys(names, ((self.size, "batch", "length", width),))

    def norm(
        self, number: int, x: str, y: str, statistics: bool, holds: tuple[str, ...] = ()
    ) -> None:
        """A LayerNorm; with its statistics where the backward reads them, 2 of fp32 a row."""
        parameters = f"γ{number}", f"β{number}"
        kept = [f"statistics {number}"] * statistics
        self.tensors |= dict.fromkeys(parameters, ((self.size, "width"),))
        self.tensors |= dict.fromkeys(kept, ((8, "batch", "length"),))
        self.tokens("width", y)
        flops: Terms = ((7, "batch", "length", "width"), (4, "batch", "length"))
        self.steps.append(
            Step(f"LayerNorm {number}", [x, *parameters], [y, *kept], flops, holds=holds)
        )

    def product(self, name: str, x: str, ys: list[str], k: str, n: str) -> None:
        """Tensors of `n` columns each, side by side: one product of `k` columns, with its bias."""
        parameters, times = (f"W {name}", f"b {name}"), len(ys)
        self.tensors[parameters[0]] = ((times * self.size, k, n),)
        self.tensors[parameters[1]] = ((times * self.size, n),)
        self.tokens(n, *ys)
        tokens: Term = (times, "batch", "length", n)
        flops: Terms = ((2 * times, "batch", "length", k, n), tokens)
        self.steps.append(Step(name, [x, *parameters], ys, flops, self.dtype))

    def attention(self) -> None:
        """Scores, softmax, dropout of the weights in training, and the product with V."""
        weights = ["s", "p", *(["p′"] * self.trained)]
        self.tensors |= dict.fromkeys(weights, ((self.size, *_SCORES),))
        self.tokens("width", "o")
        statistics = ["log-sum-exp"] * self.trained
        self.tensors |= dict.fromkeys(statistics, ((4, "batch", "heads", "length"),))
        multiplied: Terms = ((2, "batch", "length", "length", "width"),)
        self.steps += [
            Step("scores", ["q", "k"], ["s"], multiplied, self.dtype),
            Step("softmax", ["s"], ["p", *statistics], ((5, *_SCORES),)),
        ]
        if self.trained:
            self.each("dropout 1", ["p", "seed 1"], "p′", 1)
        self.steps.append(Step("weights · V", [weights[-1], "v"], ["o"], multiplied, self.dtype))

    def each(self, name: str, reads: list[str], y: str, flops: int) -> None:
        """A step element by element, as large as what it reads first."""
        self.tensors[y] = self.tensors[reads[0]]
        terms: Terms = tuple(_counted(flops, term) for term in self.tensors[y])
        self.steps.append(Step(name, reads, [y], terms))

    def added(self, number: int, y: str, z: str, onto: str) -> None:
        """z = onto + dropout(y); the dropout in training alone."""
        if self.trained:
            self.each(f"dropout {2 * number}", [y, f"seed {2 * number}"], f"{y}′", 1)
            y = f"{y}′"
        self.each(f"residual {number}", [y, onto], z, 1)

    def mlp(self, x: str) -> None:
        self.product("up", x, ["u"], "width", "inner")
        self.each("GELU", ["u"], "g" if self.trained else "a", 9)
        if self.trained:
            self.each("dropout 3", ["g", "seed 3"], "a", 1)
        self.product("down", "a", ["z"], "inner", "width")


def _counted(flops: int, term: Term) -> Term:
    return (flops, *term[1:])


def _layer(pre: bool, size: int, dtype: str, trained: bool) -> _Layer:
    layer = _Layer(size, dtype, trained)
    if trained:
        seeds = [f"seed {number}" for number in range(1, 5)]
        layer.tensors |= dict.fromkeys(seeds, ((16,),))
        layer.steps.append(Step("draw", [], seeds))
    if pre:
        layer.norm(1, "x", "n", statistics=False)
    layer.product("QKV", "n" if pre else "x", ["q", "k", "v"], "width", "width")
    layer.attention()
    layer.product("out", "o", ["t"], "width", "width")
    if pre:
        layer.added(1, "t", "h", "x")
        layer.norm(2, "h", "m", trained)
        layer.mlp("m")
        layer.added(2, "z", "y", "h")
    else:
        layer.added(1, "t", "r", "x")
        layer.norm(1, "r", "h", trained)
        layer.mlp("h")
        layer.added(2, "z", "w", "h")
        # In inference the layer's own functions hold h and a until they return.
        layer.norm(2, "w", "y", trained, () if trained else ("h", "a"))
    return layer


def _apart(pre: bool, trained: bool) -> dict[tuple[str, str], str]:
    first, last = ("LayerNorm 2", "LayerNorm 2") if pre else ("LayerNorm 1", "LayerNorm 2")
    found = {
        ("QKV", "scores"): _KEYS,
        ("weights · V", "out"): _HEADS,
        ("out", first): _ROW,
        ("up", "down"): _INNER,
    }
    if trained:
        found["draw", "LayerNorm 1" if pre else "QKV"] = _DRAWN
    if not pre:
        return {**found, ("down", last): _ROW, (first, "up"): _AGAIN}
    return {**found, (first, "up"): _KEPT} if trained else {**found, ("residual 1", "up"): _TWICE}


def _takes(pre: bool, trained: bool) -> dict[str, str]:
    found = {"softmax": _ONLINE, "GELU": _EPILOGUE if trained else _TOO, "down": _PROLOGUE}
    if pre:
        found["QKV"] = _FOLD_EACH if trained else _FOLD
    if pre and not trained:
        found["up"] = _FOLD_TOO
    if trained:
        return {**found, "dropout 2": _EITHER, "dropout 4": _TOO if pre else _EITHER}
    return {**found, "residual 1": _EPILOGUE, "residual 2": _TOO}


def _presets(pre: bool, trained: bool) -> tuple[Preset, ...]:
    first = ("LayerNorm 1",) if pre else ()
    last = () if pre else ("residual 2",)
    attention = ("scores", "softmax")
    if trained:
        book = (*attention, "dropout 1", "dropout 2", "residual 1", "GELU", "dropout 4", *last)
        most = (*first, *book, "up", *(("down",) if pre else ()))
        return (
            Preset("training_open", "training: every step a launch"),
            Preset("training", "training: this book's layer", book),
            Preset("training_everything", "training: everything that can be closed", most),
        )
    book = (*attention, "out", "up", "down")
    everything = (*first, *book, *(("LayerNorm 2",) if pre else ()))
    return (
        Preset("open", "eager: every step a launch"),
        Preset("torch", "PyTorch's layer in inference", (*attention, "up")),
        Preset("book", "this book's layer", book),
        *([Preset("hopper", "this book's layer on Hopper", everything)] if pre else []),
        Preset("everything", "everything that can be closed", everything),
    )


def _kept(pre: bool, layer: _Layer) -> tuple[str, ...]:
    """What the layer's backward reads of what the forward made."""
    if not layer.trained:
        return ()
    statistics = [name for name in layer.tensors if name.startswith(("statistics", "log-sum"))]
    seeds = [name for name in layer.tensors if name.startswith("seed")]
    own = ("h", "m") if pre else ("r", "h", "w")
    return ("q", "k", "v", "o", *own, "u", "a", *statistics, *seeds)


def encoder(pre: bool, size: int, dtype: str, trained: bool) -> Chain:
    """One layer as a chain, of numbers of `size` bytes; in training with its four dropouts."""
    layer = _layer(pre, size, dtype, trained)
    apart, takes = _apart(pre, trained), _takes(pre, trained)
    steps = tuple(
        replace(
            step,
            apart=_reasons(apart, step.name),
            takes=takes.get(step.name, ""),
        )
        for step in layer.steps
    )
    kind = "pre-LN" if pre else "post-LN"
    return Chain(
        key=f"encoder_{'pre' if pre else 'post'}{'_training' if trained else ''}",
        label=f"Encoder layer, {kind}, {'training' if trained else 'inference'}",
        steps=steps,
        tensors=layer.tensors,
        kept=_kept(pre, layer),
        kept_for="the backward reads it",
        presets=_presets(pre, trained),
    )


def _reasons(apart: Mapping[tuple[str, str], str], name: str) -> dict[str, str]:
    return {earlier: why for (earlier, later), why in apart.items() if later == name}
