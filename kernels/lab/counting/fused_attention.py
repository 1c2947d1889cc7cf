"""Which fused attention `scaled_dot_product_attention` takes on a GPU, and why.

PyTorch tries its backends in an order and takes the first whose conditions hold. A build without
CUDA has none of them, so order and conditions are told here. They are those of PyTorch 2.11 to 2.13
with the cuDNN of its wheels (9.15.1 or later), for dense tensors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

Tensor = torch.Tensor
CUDNN, FLASH, EFFICIENT, MATH = "cudnn", "flash", "efficient", "math"
_NUMBERS = {0: MATH, 1: FLASH, 2: EFFICIENT, 3: CUDNN}  # torch.nn.attention.SDPBackend
_USUAL = (FLASH, EFFICIENT, MATH, CUDNN)
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Attention:
    """One call: query, key, value of (batch, heads, length, head dimension), and how they meet.

    `capability` is that of the card, as (9, 0).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    grouped: bool
    capability: tuple[int, int]

    @property
    def differentiated(self) -> bool:
        """Whether the log-sum-exp is kept for a backward."""
        given = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)


def _common(call: Attention) -> Iterator[tuple[bool, str]]:
    q, k, v = call.query, call.key, call.value
    yield {q.dim(), k.dim(), v.dim()} == {4}, "it takes four dimensions"
    if {q.dim(), k.dim(), v.dim()} != {4}:
        return
    yield q.shape[0] == k.shape[0] == v.shape[0], "the batches differ"
    if call.grouped:
        divides = k.shape[1] == v.shape[1] and q.shape[1] % k.shape[1] == 0
        yield divides, "the heads of keys don't divide those of queries"
    else:
        yield q.shape[1] == k.shape[1] == v.shape[1], "the heads differ"
    yield q.shape[2] > 0 and k.shape[2] > 0, "a sequence is empty"
    straight = all(tensor.stride(-1) == 1 or tensor.shape[-1] == 1 for tensor in (q, k, v))
    yield straight, "the last dimension has a stride"


def _is_half(call: Attention) -> bool:
    allowed = _HALF if call.capability >= (8, 0) else _HALF[:1]
    same = call.query.dtype == call.key.dtype == call.value.dtype
    return same and call.query.dtype in allowed


def _heads(call: Attention) -> tuple[int, int, int]:
    return call.query.shape[-1], call.key.shape[-1], call.value.shape[-1]


def _flash(call: Attention) -> Iterator[tuple[bool, str]]:
    yield torch.backends.cuda.flash_sdp_enabled(), "it is switched off"
    yield call.capability >= (8, 0), "it needs compute capability 8.0"
    yield _is_half(call), f"it takes fp16 and bf16, not {call.query.dtype}"
    yield call.mask is None, "it takes no mask"
    yield from _common(call)
    q_dim, k_dim, v_dim = _heads(call)
    yield q_dim == k_dim == v_dim <= 256, "it takes equal head dimensions up to 256"
    square = call.query.shape[-2] == call.key.shape[-2]
    yield not call.causal or square, "its causal mask takes sequences of one length"
    small = (8, 6) <= call.capability <= (8, 9) or call.capability >= (12, 0)
    fits = q_dim <= 192 or (call.dropout == 0 and q_dim > 224)
    yield not (small and call.differentiated) or fits, "its backward takes heads up to 192 there"


def _efficient(call: Attention) -> Iterator[tuple[bool, str]]:
    yield torch.backends.cuda.mem_efficient_sdp_enabled(), "it is switched off"
    allowed = (*_HALF, torch.float32)
    yield call.query.dtype in allowed, f"it takes fp16, bf16 and fp32, not {call.query.dtype}"
    bf16 = call.query.dtype == torch.bfloat16
    yield not bf16 or call.capability >= (8, 0), "bf16 needs compute capability 8.0"
    yield from _common(call)
    last = all(tensor.stride(-1) == 1 for tensor in (call.query, call.key, call.value))
    yield last and (call.mask is None or call.mask.stride(-1) == 1), "a last stride isn't 1"
    tensor_cores = call.capability >= (8, 0) or call.query.dtype in _HALF
    step = 16 // call.query.element_size() if tensor_cores else 1
    q_dim, k_dim, v_dim = _heads(call)
    even = q_dim == k_dim and q_dim % step == 0 and v_dim % step == 0
    yield even, f"it takes head dimensions that {step} divides"


def _cudnn(call: Attention) -> Iterator[tuple[bool, str]]:
    enabled = getattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: False)
    yield enabled(), "it is switched off"
    yield call.capability >= (8, 0), "it needs compute capability 8.0"
    yield _is_half(call), f"it takes fp16 and bf16, not {call.query.dtype}"
    yield from _common(call)
    q_dim, _, v_dim = _heads(call)
    wide = call.capability[0] in (9, 10) and (q_dim, v_dim) == (192, 128)
    yield wide or max(q_dim, v_dim) <= 128, "it takes head dimensions up to 128"
    yield q_dim % 8 == 0 and v_dim % 8 == 0, "it takes head dimensions that 8 divides"
    yield call.key.shape[-2] > 1, "it takes two keys or more"
    yield call.dropout == 0 or call.query.shape[-2] > 1, "with dropout it takes two queries or more"
    if call.mask is not None:
        yield not call.mask.requires_grad, "it takes no mask with a gradient"
        yield call.mask.dim() in (2, 4), "its mask has two dimensions or four"
    yield not torch.are_deterministic_algorithms_enabled(), "it is not deterministic"


_CONDITIONS: dict[str, Callable[[Attention], Iterator[tuple[bool, str]]]] = {
    FLASH: _flash,
    EFFICIENT: _efficient,
    CUDNN: _cudnn,
}


def order(capability: tuple[int, int]) -> tuple[str, ...]:
    """The backends in the order they are tried: what the user set, or the usual of a card."""
    asked = tuple(_NUMBERS[n] for n in torch._C._get_sdp_priority_order() if n in _NUMBERS)
    last = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED", "") == "1"
    if asked == _USUAL and capability[0] in (9, 10) and not last:
        return (CUDNN, FLASH, EFFICIENT, MATH)
    return asked


def choose(call: Attention) -> tuple[str, str]:
    """The backend that a GPU takes, and a sentence on why.

    RuntimeError if none is left, as PyTorch raises then.
    """
    passed_over: list[str] = []
    for backend in order(call.capability):
        if backend == MATH:
            unmet = None if torch.backends.cuda.math_sdp_enabled() else "it is switched off"
        else:
            conditions = _CONDITIONS[backend](call)
            unmet = next((told for met, told in conditions if not met), None)
        if unmet is None:
            major, minor = call.capability
            why = "; ".join([f"attention by {backend} on sm_{major}{minor}", *passed_over])
            first = not passed_over
            return backend, why + (", the first that is tried there" if first else "")
        passed_over.append(f"not {backend}: {unmet}")
    raise RuntimeError(f"no attention is left to take: {'; '.join(passed_over)}")


def attend(call: Attention, scale: float | None, tell: Callable[[str], None]) -> Tensor:
    """Call the operator that a GPU takes; `tell` gets the sentence on why."""
    backend, why = choose(call)
    tell(why)
    aten = torch.ops.aten
    q, k, v = call.query, call.key, call.value
    if backend == FLASH:
        size = q.shape[-1]
        scale = size**-0.5 if scale is None else scale
        padded = [_padded(tensor, 8) for tensor in (q, k, v)]
        out: Tensor = aten._scaled_dot_product_flash_attention.default(
            *padded, call.dropout, call.causal, False, scale=scale
        )[0]
        return out if out.shape[-1] == size else out[..., :size]
    if backend == EFFICIENT:
        mask = _laid_out(_added(call.mask, q.dtype), call)
        out = aten._scaled_dot_product_efficient_attention.default(
            q, k, v, mask, call.differentiated, call.dropout, call.causal, scale=scale
        )[0]
        return out
    if backend == CUDNN:
        mask = _added(call.mask, q.dtype)
        out = aten._scaled_dot_product_cudnn_attention.default(
            q, k, v, mask, call.differentiated, call.dropout, call.causal, False, scale=scale
        )[0]
        return out
    return _maths(call, scale)


def _padded(tensor: Tensor, multiple: int) -> Tensor:
    short = -tensor.shape[-1] % multiple
    return torch.constant_pad_nd(tensor, [0, short]) if short else tensor


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask of booleans as what is added to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(-torch.inf, dtype=dtype, device=mask.device))


def _laid_out(mask: Tensor | None, call: Attention) -> Tensor | None:
    """A mask in the four dimensions, with the rows aligned, that the efficient kernel takes."""
    if mask is None:
        return None
    if mask.shape[-1] % 8:
        mask = _padded(mask, 8)[..., : mask.shape[-1]]
    return mask.expand(*call.query.shape[:3], call.key.shape[-2])


def _maths(call: Attention, scale: float | None) -> Tensor:
    """Attention operator by operator, in fp32, its dropout one operator as on a GPU."""
    q, k, v = (
        tensor.float() if tensor.dtype in _HALF else tensor
        for tensor in (call.query, call.key, call.value)
    )
    mask = _added(call.mask, call.query.dtype)
    root = (q.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    q = q * root
    if call.causal:
        shape = (q.shape[-2], k.shape[-2])
        mask = _added(torch.ones(shape, dtype=torch.bool, device=q.device).tril(), q.dtype)
    if call.grouped:
        k, v = (one.repeat_interleave(q.shape[-3] // one.shape[-3], -3) for one in (k, v))
    scores = q @ (k.transpose(-2, -1) * root)
    if mask is not None:
        scores = scores.add_(mask)
    weights = torch.ops.aten._safe_softmax.default(scores, -1)
    if call.dropout > 0:
        weights = torch.native_dropout(weights, call.dropout, True)[0]
    out: Tensor = (weights @ v).to(call.query.dtype)
    weights.to(call.query.dtype)  # PyTorch converts them too, though nobody asks for them
    return out
