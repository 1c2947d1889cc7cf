"""A layer of a transformer's encoder, in place of `torch.nn.TransformerEncoderLayer` (chapter 14).

    pre-LN    h = x + dropout(attention(LayerNorm(x))),    y = h + dropout(MLP(LayerNorm(h)))
    post-LN   h = LayerNorm(x + dropout(attention(x))),    y = LayerNorm(h + dropout(MLP(h)))
    MLP(x) = dropout(act(x · W1ᵀ + b1)) · W2ᵀ + b2

x and y have the shape (B, S, E). What is fused with what stands in `steps`; launches forward:

    pre-LN, inference   LN + QKV (one on Hopper, else two), attention, product + residual, LN,
                        product + GELU, product + residual: 6 on Hopper, else 7
    post-LN, inference  QKV, attention, product + residual, LN, product + GELU, product + residual,
                        LN: 7
    training, dropout   a draw of seeds, LN, QKV, attention, product, dropout + residual + LN,
                        product, GELU + dropout, product, dropout + residual: 10; post-LN begins
                        without a norm: 9

Sources: Vaswani et al., "Attention is all you need" (arXiv:1706.03762); Xiong et al., "On layer
normalization in the transformer architecture" (arXiv:2002.04745).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from kernels.ops.chains.dropped import RELU
from kernels.ops.chains.gated import GELU_ERF, GELU_TANH
from kernels.ops.layers import steps
from kernels.ops.layers.masks import Seen, seen_by
from kernels.ops.layers.steps import Dropped, Norm, Product
from kernels.ops.shared.arguments import check_tensor
from kernels.philox import threshold

Tensor = torch.Tensor

WIDEST_HEAD = 256
N_DROPOUTS = 4  # of attention's weights, behind attention, in the MLP, behind it


class FusedEncoderLayer(nn.TransformerEncoderLayer):
    """`torch.nn.TransformerEncoderLayer` by this package's kernels, forward and back.

    Arguments, parameters, their initial values and their names are PyTorch's, so a `state_dict`
    goes either way. `activation` is "relu" or "gelu", or one of torch's: `F.relu`, `nn.ReLU()`,
    `F.gelu`, `nn.GELU()`, and `nn.GELU("tanh")` for the tanh form. Heads are of 256 numbers at
    most. TypeError or ValueError names the argument, what it got and what it takes.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_sizes(d_model, nhead, dim_feedforward, dropout)
        form = activation_form(activation)
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
            device,
            dtype,
        )
        self.activation_form = form
        # `nn.TransformerEncoder` packs padded batches into nested tensors for layers whose
        # activation it knows by this number. The kernels here take dense tensors.
        self.activation_relu_or_gelu = 0

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """The layer of src: (B, S, E) with batch_first, else (S, B, E); or (S, E), unbatched.

        src: fp16, bf16 or fp32, of the parameters' dtype; inside autocast all is cast to its dtype,
        and the result is of src's. src_mask: (S, S) or (B·H, S, S), bool, True where a key is not
        seen, or a number that is added to the scores. src_key_padding_mask: (B, S), or (S,)
        unbatched, of either kind. is_causal: a query sees the keys up to its own; src_mask is then
        taken to be the causal mask, and not read. A query that sees no key has zeros for attention,
        where PyTorch has NaN.

        Dropout draws its seeds from PyTorch's generator, another mask in every call. Returns a
        tensor of src's shape and dtype. Gradients are by the kernels' own backwards;
        NotImplementedError if one is differentiated again.
        """
        x, padding = self.batched(src, src_key_padding_mask)
        seen = seen_by(src_mask, padding, is_causal, x, self.self_attn.num_heads)
        return self.unbatched(self.through(x, seen), src)

    def batched(self, src: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Src and its padding mask, batch first: (B, S, E) and (B, S); a copy if src is not so."""
        check_tensor("src", src)
        width, batch_first = self.self_attn.embed_dim, self.self_attn.batch_first
        if src.dim() not in (2, 3) or src.shape[-1] != width:
            order = "batch, length" if batch_first else "length, batch"
            raise ValueError(
                f"src has the shape {tuple(src.shape)}; it takes ({order}, {width}) or "
                f"(length, {width})"
            )
        if src.dim() == 2:
            return src[None], padding[None] if isinstance(padding, torch.Tensor) else padding
        return src if batch_first else src.transpose(0, 1).contiguous(), padding

    def unbatched(self, y: Tensor, src: Tensor) -> Tensor:
        """The output (B, S, E) in the layout of src, and its dtype."""
        if src.dim() == 2:
            y = y[0]
        elif not self.self_attn.batch_first:
            y = y.transpose(0, 1)
        return y.to(src.dtype)

    def through(self, x: Tensor, seen: Seen) -> Tensor:
        """The layer of x (B, S, E), contiguous, whatever `batch_first` says; unchecked."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        in_proj, out_proj, up, down = self._products(x)
        norm1, norm2 = (Norm(n.weight, n.bias, n.eps) for n in (self.norm1, self.norm2))
        of_weights, behind_attention, in_mlp, behind_mlp = self._dropouts(x)
        n_heads, activation = self.self_attn.num_heads, self.activation_form

        qkv = steps.projected(x, norm1 if self.norm_first else None, in_proj)
        o = steps.attended(qkv, n_heads, seen, of_weights)
        if not self.norm_first:
            h, _ = steps.added_and_normed(o, out_proj, x, norm1, behind_attention)
            a = steps.activated(h, up, activation, in_mlp)
            return steps.added_and_normed(a, down, h, norm2, behind_mlp)[0]
        if behind_attention.seed_offset is None and in_mlp.seed_offset is None:
            h = steps.added(o, out_proj, x, behind_attention)
            a = steps.normed_and_activated(h, norm2, up, activation)
        else:
            u, h = steps.added_and_normed(o, out_proj, x, norm2, behind_attention)
            a = steps.activated(u, up, activation, in_mlp)
        return steps.added(a, down, h, behind_mlp)

    def _products(self, x: Tensor) -> tuple[Product, ...]:
        """QKV, the product behind attention, those of the MLP; in x's dtype inside autocast."""
        mha = self.self_attn
        of = (
            Product(mha.in_proj_weight, mha.in_proj_bias),
            *(Product(m.weight, m.bias) for m in (mha.out_proj, self.linear1, self.linear2)),
        )
        if not torch.is_autocast_enabled(x.device.type):
            return of
        return tuple(Product(w.to(x.dtype), None if b is None else b.to(x.dtype)) for w, b in of)

    def _dropouts(self, x: Tensor) -> tuple[Dropped, ...]:
        """Those of attention's weights, behind attention, in the MLP and behind it.

        Their seeds are drawn in one launch, into device memory, by an operator that a captured
        graph replays with another state of the generator.
        """
        if not self.training:
            return (Dropped(),) * N_DROPOUTS
        ps = (self.self_attn.dropout, self.dropout1.p, self.dropout.p, self.dropout2.p)
        if not any(map(threshold, ps)):
            return (Dropped(),) * N_DROPOUTS
        low, high = -(2**63), 2**63 - 1
        seeds = torch.randint(low, high, (N_DROPOUTS, 2), dtype=torch.int64, device=x.device)
        return tuple(
            Dropped(p, seed) if threshold(p) else Dropped()
            for p, seed in zip(ps, seeds.unbind(), strict=True)
        )


def activation_form(activation: object) -> str:
    """The name of an activation in this package; TypeError or ValueError with one sentence."""
    names = {"relu": RELU, "gelu": GELU_ERF}
    if isinstance(activation, str):
        if activation not in names:
            raise ValueError(f"activation is {activation!r}; it takes 'relu' or 'gelu'")
        return names[activation]
    if activation in (F.relu, torch.relu) or isinstance(activation, nn.ReLU):
        return RELU
    if isinstance(activation, nn.GELU):
        return GELU_TANH if activation.approximate == "tanh" else GELU_ERF
    if activation is F.gelu:
        return GELU_ERF
    told = getattr(activation, "__name__", type(activation).__name__)
    raise TypeError(
        f"activation is {told}; it takes 'relu', 'gelu', torch's functions of these names, "
        "nn.ReLU() or nn.GELU(), in either form"
    )


def _check_sizes(d_model: int, nhead: int, dim_feedforward: int, dropout: float) -> None:
    for name, size in (
        ("d_model", d_model),
        ("nhead", nhead),
        ("dim_feedforward", dim_feedforward),
    ):
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} is {size!r}; it takes a whole number, 1 or more")
    if d_model % nhead or d_model // nhead > WIDEST_HEAD:
        raise ValueError(
            f"d_model is {d_model} and nhead {nhead}; nhead must divide d_model into heads of "
            f"{WIDEST_HEAD} numbers at most"
        )
    try:
        threshold(dropout)
    except (TypeError, ValueError):
        raise ValueError(f"dropout is {dropout!r}; it takes a number from 0 to 1") from None
