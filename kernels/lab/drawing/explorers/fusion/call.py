"""`fusion`: the explorer of a chain by name, or of a reader's own steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kernels.lab.drawing.explorers.fusion import encoder, model, pointwise
from kernels.lab.drawing.explorers.fusion.chain import Chain, Preset, Step, checked, terms
from kernels.lab.drawing.explorers.fusion.widget import FusionExplorer, fusion_cards, preset
from kernels.lab.drawing.explorers.roofline import LARGEST_SIZE, todays_card
from kernels.registry import DTYPES

_HEAD = 64  # numbers of a head, where their number is not told
_WIDER = 4  # the MLP's columns for one of the layer's, where they are not told


class _Named(NamedTuple):
    """A chain by name: the sizes of its shape, those that slide in the page, and its chains.

    `chains` takes the bytes of a number and the dtype's name.
    """

    shape: tuple[str, ...]
    default: tuple[int, ...]
    slides: tuple[str, ...]
    chains: Callable[[int, str], tuple[Chain, ...]]


def _pointwise(made: Callable[[int], Chain]) -> _Named:
    sizes = pointwise.SIZES
    return _Named(sizes, (16384, 8192), sizes, lambda size, _dtype: (made(size),))


def _encoder(pre: bool) -> _Named:
    def chains(size: int, dtype: str) -> tuple[Chain, ...]:
        return tuple(encoder.encoder(pre, size, dtype, trained) for trained in (False, True))

    return _Named(encoder.SIZES[:3], (32, 512, 1024), encoder.SIZES[:2], chains)


NAMED: dict[str, _Named] = {
    "bias_gelu_dropout_residual": _pointwise(pointwise.bias_gelu_dropout_residual),
    "layernorm_gelu_dropout_residual": _pointwise(pointwise.layernorm_gelu_dropout_residual),
    "encoder_pre": _encoder(True),
    "encoder_post": _encoder(False),
}


def fusion(
    chain: str | Sequence[Step],
    shape: Sequence[int] | None = None,
    dtype: str = "bf16",
    card: str | None = None,
    *,
    closed: str | Sequence[bool] = "open",
    tensors: Mapping[str, float] | None = None,
    kept: Sequence[str] = (),
    heads: int | None = None,
    inner: int | None = None,
    launched: str = "graph",
) -> FusionExplorer:
    """Return a page in which the joints between a chain's steps can be closed and opened.

    It shows the launches, the bytes that they move, the most bytes of their tensors that are alive
    at once, and the least time on a card: for each launch the larger of its bytes over the
    bandwidth and its FLOPs over the peak, and what a launch takes by itself. `plan()` returns the
    same numbers.

    chain: the name of one, or a list of steps, `Step(name, reads, writes, flops=…)`, whose tensors'
    bytes are told by name in `tensors`; those in `kept` are written in any case and last until the
    end. Names, with their shapes: "bias_gelu_dropout_residual" and
    "layernorm_gelu_dropout_residual" (rows, columns); "encoder_pre" and "encoder_post" (batch,
    length, width), in which `heads` are of 64 numbers and `inner` is 4 · width if None. dtype:
    "bf16", "fp16" or "fp32", of a chain by name. card: a card's key or short name, such as
    "h100-sxm"; this machine's if None. closed: "open" or "everything"; of an encoder "torch",
    "book", "hopper" (pre-LN) and "training" too; or one bool a joint. launched: "graph", replayed,
    or "host", from Python.

    ValueError, TypeError or TraitError says in a sentence what is not taken.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; it takes: {', '.join(DTYPES)}")
    cards = fusion_cards()
    if card is None:
        card = todays_card(cards)
    elif card not in {one[name] for one in cards for name in ("key", "slug")}:
        known = ", ".join(dict.fromkeys(one["slug"] for one in cards))
        raise ValueError(f"card is {card!r}; it takes: {known}")
    if isinstance(chain, str):
        if tensors is not None or kept:
            raise ValueError("tensors and kept belong to a list of steps; a name has its own")
        own = _known(chain)
        sizes = _sizes(chain, own, shape, heads, inner)
        chains, slides = own.chains(DTYPES[dtype].itemsize, dtype), own.slides
    else:
        if not all(one is None for one in (shape, heads, inner)):
            raise ValueError("shape, heads and inner belong to a chain by name; steps tell bytes")
        chains, sizes, slides, dtype = (_own(chain, tensors, kept),), {}, (), ""
    if not isinstance(closed, str | list | tuple):
        raise TypeError(f"closed is {closed!r}; it takes the name of a choice, or one bool a joint")
    if isinstance(closed, str):
        first, choice = preset(chains, closed)
        joints = first.closed(choice)
    else:
        first, joints = chains[0], list(closed)
    return FusionExplorer(
        chains,
        sizes,
        slides,
        dtype,
        cards,
        chain=first.key,
        closed=joints,
        card=card,
        launched=launched,
    )


def _known(name: str) -> _Named:
    if name not in NAMED:
        raise ValueError(f"chain is {name!r}; it takes a list of steps, or: {', '.join(NAMED)}")
    return NAMED[name]


def _sizes(
    name: str, known: _Named, shape: Sequence[int] | None, heads: int | None, inner: int | None
) -> dict[str, int]:
    given = known.default if shape is None else shape
    if not isinstance(given, list | tuple) or len(given) != len(known.shape):
        raise ValueError(f"shape is {given}; {name!r} takes ({', '.join(known.shape)})")
    sizes = dict(zip(known.shape, given, strict=True))
    for what, size in (*sizes.items(), ("heads", heads), ("inner", inner)):
        if size is not None and (type(size) is not int or not 1 <= size <= LARGEST_SIZE):
            raise ValueError(
                f"{what} is {size!r}; it takes a whole number from 1 to {LARGEST_SIZE}"
            )
    if "width" not in sizes:
        if heads is not None or inner is not None:
            raise ValueError(f"heads and inner belong to an encoder; {name!r} has neither")
        return sizes
    width = sizes["width"]
    sizes |= {"heads": heads or -(-width // _HEAD), "inner": inner or _WIDER * width}
    if width % sizes["heads"]:
        raise ValueError(f"width is {width}; it takes a multiple of heads, {sizes['heads']}")
    return sizes


def _own(steps: Sequence[Step], tensors: Mapping[str, float] | None, kept: Sequence[str]) -> Chain:
    if not isinstance(steps, list | tuple):
        raise TypeError(f"chain is {steps!r}; it takes a list of steps, or: {', '.join(NAMED)}")
    if tensors is None:
        raise ValueError("tensors is missing; it takes the bytes of each tensor by its name")
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors is {tensors!r}; it takes the bytes of each tensor by its name")
    if isinstance(kept, str):
        raise TypeError(f"kept is {kept!r}; it takes a list of names")
    told = {name: terms(size) for name, size in tensors.items()}
    own = checked(Chain("own", "Your chain", tuple(steps), told, tuple(kept)))
    closed = [False] * own.joints
    for joint in range(own.joints):
        closed[joint] = model.barred(own, closed, joint) is None
    together = tuple(step.name for step, shut in zip(own.steps, closed, strict=False) if shut)
    most = Preset("everything", "everything that can be closed", together)
    return Chain(own.key, own.label, own.steps, told, own.kept, presets=(*own.presets, most))
