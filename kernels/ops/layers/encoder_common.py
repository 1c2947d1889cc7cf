"""What the encoder layers have in common as operations of suite `encoder`: costs, variants, `Op`.

x and y are (B, S, E), heads of 64 numbers, the MLP 4·E wide inside, GELU with the error function;
the twelve parameters are inputs too, so that each has a gradient that is held to float64. With
T = B·S tokens and elements of s bytes the layer must move at least (2·T·E + 12·E² + 13·E)·s bytes:
x, parameters and y, each once. Its products are 24·T·E² FLOPs and attention's 4·B·S²·E.

Inference is the pass `fwd`, without dropout. Training is the pass `train`, with the option p=0.1;
`fused_checkpointed` is the same layer with both flags that spare memory. The seeds of the masks are
inputs, as they are of a chain with a dropout: the launch that draws them is not in a step, but for
`fused_graphs`, whose replays draw their own.

Sources: those of `encoder_layer`.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from kernels.ops.attention import attention
from kernels.ops.chains import activation_dropout
from kernels.ops.layers.by_operators import by_operators
from kernels.ops.layers.encoder_layer import N_DROPOUTS, FusedEncoderLayer
from kernels.ops.layers.masks import seen_by
from kernels.ops.layers.replayed import ReplayedEncoder
from kernels.ops.layers.replayed_step import ReplayedStep
from kernels.ops.norms import common as norms
from kernels.ops.products import linear as products
from kernels.ops.shared.available import needs_gpu
from kernels.registry import (
    Backward,
    Case,
    Cost,
    Op,
    Options,
    Pass,
    Random,
    Shape,
    Tolerance,
    Variant,
    cases,
    named,
)

Tensor = torch.Tensor

HEAD_DIM, INNER = 64, 4  # numbers of a head; the MLP's width in E
TRAINED: Options = (("p", 0.1),)
SHAPES: tuple[Shape, ...] = tuple(
    (*tokens, width)
    for width in (768, 1024)
    for tokens in ((1, 128), (8, 128), (32, 512), (8, 2048))
)
_SMALL: tuple[Shape, ...] = ((0, 4, 16), (2, 5, 12))
# Where a parameter stands in the module, and its dimensions: P = 3·E, I = 4·E.
PARAMETERS = {
    "in_proj_weight": ("self_attn.in_proj_weight", "PE"),
    "in_proj_bias": ("self_attn.in_proj_bias", "P"),
    "out_proj_weight": ("self_attn.out_proj.weight", "EE"),
    "out_proj_bias": ("self_attn.out_proj.bias", "E"),
    "linear1_weight": ("linear1.weight", "IE"),
    "linear1_bias": ("linear1.bias", "I"),
    "linear2_weight": ("linear2.weight", "EI"),
    "linear2_bias": ("linear2.bias", "E"),
    "norm1_weight": ("norm1.weight", "E"),
    "norm1_bias": ("norm1.bias", "E"),
    "norm2_weight": ("norm2.weight", "E"),
    "norm2_bias": ("norm2.bias", "E"),
}
TENSORS = {"x": "BSE", **{name: dims for name, (_, dims) in PARAMETERS.items()}}
MULTIPLES = {"P": ("E", 3), "I": ("E", INNER)}


def n_heads(width: int) -> int:
    """How many heads a width has: of 64 numbers; two, or one, where it is narrower."""
    return width // HEAD_DIM or (1 if width % 2 else 2)


def inputs(
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    *,
    p: float = 0.0,
) -> dict[str, Any]:
    """Fresh random x (B, S, E) and parameters, all off 0, the probability, seeds of the masks."""
    generator = torch.Generator(device=device).manual_seed(seed)
    sizes = dict(zip("BSE", shape, strict=True))
    sizes |= {one: times * sizes[of] for one, (of, times) in MULTIPLES.items()}

    def random(name: str) -> Tensor:
        size = [sizes[letter] for letter in TENSORS[name]]
        made = torch.randn(*size, generator=generator, device=device)
        if name == "x":
            return made
        if len(size) == 2:
            return made * size[1] ** -0.5
        return made * 0.2 + 1.0 if name in ("norm1_weight", "norm2_weight") else made * 0.2

    seeds = torch.arange(2 * N_DROPOUTS, device=device).view(N_DROPOUTS, 2) + (seed + 2**40)
    return {name: random(name).to(dtype) for name in TENSORS} | {"p": p, "seeds": seeds}


class Call:
    """A variant: `run(layer, x, seeds)` of a layer whose parameters are the given tensors.

    The layer is made once for each set of parameters, and kept with the first of them. So a call
    costs what a call of a layer costs, and what is made of parameters, as folded weights are or a
    captured graph, is made once.
    """

    def __init__(
        self,
        norm_first: bool,
        run: Callable[[Any, Tensor, Tensor], Tensor],
        kind: Callable[..., nn.TransformerEncoderLayer] = nn.TransformerEncoderLayer,
        **flags: bool,
    ) -> None:
        self._norm_first, self._run, self._kind, self._flags = norm_first, run, kind, flags

    def __call__(self, x: Tensor, p: float, seeds: Tensor, **parameters: Tensor) -> Tensor:
        """The layer of x (B, S, E), dropping with the probability p by `seeds`, int64 (4, 2)."""
        owner = parameters["in_proj_weight"]
        made: dict[Any, Any] = vars(owner).setdefault("_encoder_layers", {})
        key = self, p, *map(id, parameters.values())  # of tensors that the layer keeps alive
        known = made.get(key)
        if known is None:
            known = made[key] = self._made(p, parameters)
        return self._run(known, x, seeds)

    def _made(self, p: float, parameters: dict[str, Tensor]) -> nn.TransformerEncoderLayer:
        width = len(parameters["norm1_weight"])
        layer = self._kind(
            *(width, n_heads(width), INNER * width, p, "gelu"),
            batch_first=True,
            norm_first=self._norm_first,
            device="meta",
            **self._flags,
        )
        for name, tensor in parameters.items():
            owner, _, own_name = PARAMETERS[name][0].rpartition(".")
            # A tensor that gets a gradient here is no nn.Parameter; compilers and folding ask for
            # one, since it stays where it is.
            tensor._is_param = True
            layer.get_submodule(owner)._parameters[own_name] = tensor  # type: ignore[assignment]
        return layer.train(p > 0)


def _by_operators(layer: Any, x: Tensor, seeds: Tensor) -> Tensor:
    return by_operators(layer, x, seeds)


def _torch(layer: Any, x: Tensor, _seeds: Tensor) -> Tensor:
    # In inference too a model's weights ask for gradients. PyTorch goes by that: it copies the
    # turned x for one product with such a weight, and takes a product a token for any other.
    weight = layer.self_attn.in_proj_weight
    if not weight.requires_grad and not torch.is_grad_enabled():
        weight.requires_grad_()
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        y: Tensor = layer(x)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    return y


def _as_called(layer: Any, x: Tensor, _seeds: Tensor | None = None) -> Tensor:
    y: Tensor = layer(x)
    return y


def _fused(layer: FusedEncoderLayer, x: Tensor, seeds: Tensor) -> Tensor:
    """The layer's own forward, its masks by the seeds that are given."""
    rows, padding = layer.batched(x, None)
    seen = seen_by(None, padding, False, rows, layer.self_attn.num_heads)
    return layer.unbatched(layer.through(rows, seen, seeds), x)


def _replayed(layer: FusedEncoderLayer, x: Tensor, _seeds: Tensor) -> Tensor:
    ready = vars(layer).get("_replayed")
    if ready is None:
        trains = layer.training or (torch.is_grad_enabled() and layer.norm1.weight.requires_grad)
        kind = ReplayedStep if trains else ReplayedEncoder
        ready = vars(layer)["_replayed"] = kind(layer.train(trains))
        ready.prepare(x)
    y: Tensor = ready(x)
    return y


@functools.cache
def _compiled(mode: str | None, *_: Any) -> Any:
    # A code object of its own for each case, as in `shared.compiled`.
    own = types.FunctionType(_as_called.__code__.replace(), globals(), "compiled_layer", (None,))
    return torch.compile(own, dynamic=False, mode=mode)


def _by_compiler(layer: Any, x: Tensor, _seeds: Tensor, mode: str | None = None) -> Tensor:
    p = layer.dropout.p
    case = layer.norm_first, p, tuple(x.shape), x.dtype, torch.is_grad_enabled()
    if mode is not None:  # each call is an iteration: what the last one gave may be written over
        torch.compiler.cudagraph_mark_step_begin()
    y: Tensor = _compiled(mode, *case)(layer, x)
    return y


_by_graphs = functools.partial(_by_compiler, mode="reduce-overhead")

# -------------------------------------------------------------------------- the least it must do


def _products(case: Case) -> list[Case]:
    batch, length, e = case.shape
    sizes = (e, 3 * e), (e, e), (e, INNER * e), (INNER * e, e)
    return [Case((batch * length, k, n), case.dtype) for k, n in sizes]


def _n_parameters(case: Case) -> int:
    e = case.shape[2]
    return sum(k * n + n for _, k, n in (one.shape for one in _products(case))) + 4 * e


def _flops(case: Case, back: bool) -> int:
    """Of the products, attention, both norms, GELU, the residuals; dropouts are counted nowhere."""
    batch, length, e = case.shape
    rows, tokens = Case((batch * length, e), case.dtype), batch * length
    heads = Case((batch, n_heads(e), length, e // n_heads(e)), case.dtype)
    of_norm = norms.backward_cost if back else norms.forward_cost
    of_product = products.backward_cost if back else products.forward_cost
    of_heads = attention.backward_cost if back else attention.cost
    inner = Case((tokens, INNER * e), case.dtype)
    gelu = activation_dropout.backward_cost if back else activation_dropout.forward_cost
    return (
        sum(of_product(one).flops for one in _products(case))
        + of_heads(heads).flops
        + 2 * of_norm(("x", "weight", "bias"))(rows).flops
        + gelu(inner).flops
        + 2 * tokens * e
    )


def forward_cost(case: Case) -> Cost:
    """What the layer must do at least: x and parameters in, y out, each once."""
    size, x = case.dtype.itemsize, math.prod(case.shape)
    return Cost(_flops(case, back=False), (x + _n_parameters(case)) * size, x * size)


def backward_cost(case: Case) -> Cost:
    """What its backward must do at least: x, dy and parameters in, a gradient of each out.

    What a forward keeps is left out: it can be made again of these.
    """
    size, x, own = case.dtype.itemsize, math.prod(case.shape), _n_parameters(case)
    return Cost(_flops(case, back=True), (2 * x + own) * size, (x + own) * size)


def _tolerance(case: Case, roundings: int, terms: int) -> Tolerance:
    unit = torch.finfo(case.dtype).eps / 2
    sums = 2.0**-22 * (4 + math.sqrt(terms))
    return Tolerance(roundings * unit + sums, 4 * roundings * unit + 4 * sums)


def tolerance(case: Case, _name: str) -> Tolerance:
    """Six tensors are rounded between x and y, each a part of y; sums are of 4·E terms at most.

    Those are qkv, the weights, o, h, a and y, and between two PyTorch rounds once more.
    """
    return _tolerance(case, 6, INNER * case.shape[2])


def gradient_tolerance(case: Case, _name: str) -> Tolerance:
    """The same six and their gradients, which are rounded too; sums run over tokens as well."""
    batch, length, e = case.shape
    return _tolerance(case, 12, max(INNER * e, batch * length))


# ------------------------------------------------------------------------------------ registration

_BOTH = ("fwd", "bwd")
_INFERENCE = cases(SHAPES, "bf16")
_STEPS = cases(SHAPES, "bf16", options=(TRAINED,))
_EAGER = cases([(8, 128, 1024)], "bf16", options=((), TRAINED))
# Compiling takes half a minute a case, and graphs of its own help where launches are the time.
_GRAPHED = cases([one for one in SHAPES if one[2] == 1024], "bf16", options=((), TRAINED))


def _drops(case: Case) -> bool:
    return bool(dict(case.options).get("p"))


def _drops_nothing(case: Case) -> bool:
    return not _drops(case)


def op_of(name: str, norm_first: bool) -> Op:
    """Return the `Op` of the layer that normalises first, or of the one that does so behind."""
    whole = functools.partial(Call, norm_first)
    by_masks = whole(_by_operators)

    def reference(
        x: Tensor, p: float, seeds: Tensor, first_row: int = 0, **parameters: Tensor
    ) -> Tensor:
        """The layer in float64; `first_row` is the place of x's first sequence in the batch."""
        wide = {one: value.double() for one, value in parameters.items()}
        placed = whole(lambda layer, u, drawn: by_operators(layer, u, drawn, first_row=first_row))
        return placed(x.double(), p, seeds, **wide)

    return Op(
        name=name,
        suite="encoder",
        dims="BSE",
        tensors=TENSORS,
        outputs={"y": "BSE"},
        multiples=MULTIPLES,
        independent="B",
        degrees={"B": 1, "S": 2, "E": 2},
        inputs=inputs,
        reference=reference,
        variants=named(
            Variant("eager", by_masks, _BOTH, counted="aten", cases=_EAGER),
            Variant("torch", whole(_torch), _BOTH, counted="aten", own_random=True),
            # One operator, whose kernels no ledger of operators sees.
            Variant("eager_fastpath", whole(_as_called), fits=_drops_nothing),
            Variant("compile", whole(_by_compiler), _BOTH, unavailable=needs_gpu, own_random=True),
            Variant(
                "compile_graphs",
                whole(_by_graphs),
                _BOTH,
                unavailable=needs_gpu,
                own_random=True,
                waits=True,
                cases=_GRAPHED,
            ),
            Variant("fused", whole(_fused, FusedEncoderLayer), _BOTH),
            Variant(
                "fused_graphs",
                whole(_replayed, FusedEncoderLayer),
                ("fwd", "train"),
                own_random=True,
                waits=True,
            ),
            Variant(
                "fused_checkpointed",
                whole(
                    _fused,
                    FusedEncoderLayer,
                    gelu_checkpoint=True,
                    attn_dropout_checkpoint=True,
                    norm_checkpoint=True,
                ),
                _BOTH,
                fits=_drops,
            ),
        ),
        shapes=SHAPES,
        small=_SMALL,
        options=((), TRAINED),
        forward=Pass(cost=forward_cost, tolerance=tolerance, cases=_INFERENCE),
        backward=Backward(
            cost=backward_cost,
            tolerance=gradient_tolerance,
            cases=(),
            differentiates=tuple(TENSORS),
            train_cases=_STEPS,
        ),
        random=Random(None),
        made_of=(
            *("layernorm", "linear", "linear_bias_gelu", "linear_bias_residual", "attention"),
            *("layernorm_linear", "layernorm_linear_gelu", "dropout_add_layernorm"),
            *("dropout_residual", "activation_dropout"),
        ),
    )
