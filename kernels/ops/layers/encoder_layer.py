"""A layer of a transformer's encoder, in place of `torch.nn.TransformerEncoderLayer` (chapter 14).

    pre-LN    h = x + dropout(attention(LayerNorm(x))),    y = h + dropout(MLP(LayerNorm(h)))
    post-LN   h = LayerNorm(x + dropout(attention(x))),    y = LayerNorm(h + dropout(MLP(h)))
    MLP(x) = dropout(act(x · W1ᵀ + b1)) · W2ᵀ + b2

x and y have the shape (B, S, E). What is fused with what stands in `steps`; launches forward:

    pre-LN, inference   LN + QKV, attention, product + residual, LN + product + GELU,
                        product + residual: 5 on Hopper; where a norm and a product are two
                        kernels, 7: for few rows (`prologues.ways.best`), and inside torch.compile
    post-LN, inference  QKV, attention, product + residual, LN, product + GELU, product + residual,
                        LN: 7
    training, dropout   a draw of seeds, LN, QKV, attention, product, dropout + residual + LN,
                        product, GELU + dropout, product, dropout + residual: 10; post-LN begins
                        without a norm: 9

Where products are PyTorch's own (every card but Hopper, `epilogues.configurations.WAYS`), nothing
is fused into one: GELU and each residual of inference is a launch more. Then inference takes 10,
pre-LN or post-LN, and training as many as above.

Sources: Vaswani et al., "Attention is all you need" (arXiv:1706.03762); Xiong et al., "On layer
normalization in the transformer architecture" (arXiv:2002.04745).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from kernels.ops.layers import steps
from kernels.ops.layers.again import Recipe, may_replace, memory
from kernels.ops.layers.arguments import activation_form, check_sizes
from kernels.ops.layers.checkpointed import activated_product
from kernels.ops.layers.masks import Seen, seen_by
from kernels.ops.layers.states import check_state
from kernels.ops.layers.steps import Dropped, Norm, Product
from kernels.ops.layers.stochastic import sums_for
from kernels.ops.norms.layernorm import layer_norm
from kernels.ops.shared.arguments import check_tensor
from kernels.philox import threshold

Tensor = torch.Tensor
Result = TypeVar("Result")

N_DROPOUTS = 4  # of attention's weights, behind attention, in the MLP, behind it


class FusedEncoderLayer(nn.TransformerEncoderLayer):
    """`torch.nn.TransformerEncoderLayer` by this package's kernels, forward and back.

    Arguments, parameters, their initial values and their names are PyTorch's, so a `state_dict`
    goes either way. `activation` is "relu" or "gelu", or one of torch's: `F.relu`, `nn.ReLU()`,
    `F.gelu`, `nn.GELU()`, and `nn.GELU("tanh")` for the tanh form. Heads are of 256 numbers at
    most. TypeError or ValueError names the argument, what it got and what it takes.

    Three flags spare memory in training and cost time. `gelu_checkpoint`: what the MLP's second
    product reads, B·S·I numbers of I = dim_feedforward, is not kept, but made again from what the
    activation read: one more launch. `norm_checkpoint`: what its first product reads, the B·S·E
    numbers of a norm, is not kept, but made again from what the norm read: one more launch, or none
    where that is a prologue anyway, pre-LN without dropout. `attn_dropout_checkpoint`: attention's
    output, B·S·E numbers, is not kept, but made again from queries, keys and values: one more
    launch of attention. Its weights, B·H·S² numbers, are kept in no case. What dropout does to them
    a Hopper card keeps in bits (16 bits a number, heads of 64, no mask but a causal one), up to
    64 MiB a layer, and with the flag not, which costs a launch too. What is kept falls by so much.
    Inside torch.compile they do nothing: there the compiler decides what is kept.

    `stochastic_mode` is an experiment in training with dropout: each norm goes back in one launch
    instead of two where there are many rows (`stochastic.adds`), two launches fewer a step. The
    gradients of the norms' weights and biases are then added up by atomics, in no fixed order, and
    their last bits differ from run to run; y and all other gradients stay the same bits. A layer
    in this mode goes back on one stream at a time.
    """

    _sums: Tensor | None

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
        *,
        gelu_checkpoint: bool = False,
        attn_dropout_checkpoint: bool = False,
        norm_checkpoint: bool = False,
        stochastic_mode: bool = False,
    ) -> None:
        check_sizes(d_model, nhead, dim_feedforward, dropout)
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
        self.gelu_checkpoint = gelu_checkpoint
        self.attn_dropout_checkpoint = attn_dropout_checkpoint
        self.norm_checkpoint = norm_checkpoint
        self.stochastic_mode = stochastic_mode
        # Moved with the layer, and no part of its state: between calls they are zeros.
        sums = sums_for(d_model, device) if stochastic_mode else None
        self.register_buffer("_sums", sums, persistent=False)
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
        taken to be the causal mask, and not read. A query that sees no key has zeros for attention;
        PyTorch's layer has zeros or NaN there, by the attention that it takes.

        Dropout draws its seeds from PyTorch's generator, another mask in every call. Returns a
        tensor of src's shape and dtype. Gradients are by the kernels' own backwards;
        NotImplementedError if one is differentiated again.
        """
        x, padding = self.batched(src, src_key_padding_mask)
        seen = seen_by(src_mask, padding, is_causal, x, self.self_attn.num_heads)
        return self.unbatched(self.through(x, seen), src)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As `torch.nn.Module`'s; RuntimeError tells in one sentence what doesn't fit."""
        check_state(self, state_dict, strict)
        return super().load_state_dict(state_dict, strict, assign)

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

    def through(self, x: Tensor, seen: Seen, seeds: Tensor | None = None) -> Tensor:
        """The layer of x (B, S, E), contiguous, whatever `batch_first` says; unchecked.

        seeds: int64 (4, 2) of the dropouts, as `draw` makes them; drawn here if None.
        """
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        sums = self._sums if any(map(threshold, self.probabilities())) else None
        norm1, norm2 = (Norm(n.weight, n.bias, n.eps, sums) for n in (self.norm1, self.norm2))
        in_proj, out_proj, up, down = self._products(x)
        of_weights, behind_attention, in_mlp, behind_mlp = self._dropouts(x, seeds)
        attention = functools.partial(self._attention, x, seen, of_weights, in_proj)

        if not self.norm_first:
            h, read = attention(
                None, lambda o, x: self._normed(o, out_proj, x, norm1, behind_attention)
            )
            with read:
                return self._mlp(h, None, up, in_mlp, down, h, norm2, behind_mlp)
        if behind_attention.seed_offset is None and in_mlp.seed_offset is None:
            h = attention(norm1, lambda o, x: steps.added(o, out_proj, x, behind_attention))
            # The norm is a prologue of the next product.
            return self._mlp(h, norm2, up, in_mlp, down, h, None, behind_mlp)
        u, h = attention(
            norm1, lambda o, x: steps.added_and_normed(o, out_proj, x, norm2, behind_attention)
        )
        with self._made_again(u, h, norm2):
            return self._mlp(u, None, up, in_mlp, down, h, None, behind_mlp)

    def _normed(
        self, o: Tensor, product: Product, residual: Tensor, norm: Norm, dropped: Dropped
    ) -> tuple[Tensor, contextlib.AbstractContextManager[None]]:
        """LayerNorm(h) of h = residual + dropout(o · Wᵀ + b), and `_made_again` of it.

        In inference no name holds h behind this, and its memory is free.
        """
        y, h = steps.added_and_normed(o, product, residual, norm, dropped)
        return y, self._made_again(y, h, norm)

    def _made_again(
        self, y: Tensor, h: Tensor, norm: Norm
    ) -> contextlib.AbstractContextManager[None]:
        """A block that keeps how to make y = LayerNorm(h) in its place, if told so."""
        if not (self.norm_checkpoint and may_replace()):
            return contextlib.nullcontext()
        again = Recipe(lambda: layer_norm(h, norm.weight, norm.bias, norm.eps))
        of_y = memory(y)
        return again.instead_of(lambda kept: memory(kept) == of_y)

    def _attention(
        self,
        x: Tensor,
        seen: Seen,
        dropped: Dropped,
        product: Product,
        norm: Norm | None,
        behind: Callable[[Tensor, Tensor], Result],
    ) -> Result:
        """`behind(o, x)` of attention's rows o of LayerNorm(x), or of x; o not kept if told so."""
        n_heads = self.self_attn.num_heads
        if not (self.attn_dropout_checkpoint and may_replace()):
            return behind(*steps.attended_of(x, norm, product, n_heads, seen, dropped))
        qkv, x = steps.begun(x, norm, product)
        again = Recipe(lambda: steps.attended(qkv, n_heads, seen, dropped))
        given = (qkv, seen.bias, seen.key_padding_mask, dropped.seed_offset)
        known = {memory(one) for one in given if one is not None}
        with again.instead_of(lambda kept: kept.dim() == 4 and memory(kept) not in known):
            rows = steps.attended(qkv, n_heads, seen, dropped, False)
        of_rows = memory(rows)
        with again.instead_of(lambda kept: memory(kept) == of_rows):
            return behind(rows, x)

    def _mlp(
        self,
        x: Tensor,
        norm: Norm | None,
        up: Product,
        in_mlp: Dropped,
        down: Product,
        residual: Tensor,
        norm_behind: Norm | None,
        behind: Dropped,
    ) -> Tensor:
        """residual + the MLP of LayerNorm(x), or of x; normalised if there is a norm behind.

        With a norm before it nothing is dropped inside.
        """
        form = self.activation_form
        if self.gelu_checkpoint and may_replace():
            y = activated_product(steps.projected(x, norm, up), *down, form, *in_mlp)
            return steps.ended_by_sums(y, residual, norm_behind, behind)
        if norm is None:
            a = steps.activated(x, up, form, in_mlp)
        else:
            a = steps.normed_and_activated(x, norm, up, form)
        return steps.ended(a, down, residual, norm_behind, behind)

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

    def _dropouts(self, x: Tensor, seeds: Tensor | None) -> tuple[Dropped, ...]:
        """Those of attention's weights, behind attention, in the MLP and behind it."""
        ps = self.probabilities()
        if not any(map(threshold, ps)):
            return (Dropped(),) * N_DROPOUTS
        seeds = draw(x.device) if seeds is None else seeds
        return tuple(
            Dropped(p, seed) if threshold(p) else Dropped()
            for p, seed in zip(ps, seeds.unbind(), strict=True)
        )

    def probabilities(self) -> tuple[float, ...]:
        """To drop a weight of attention, a number behind it, in the MLP, behind it."""
        if not self.training:
            return (0.0,) * N_DROPOUTS
        return self.self_attn.dropout, self.dropout1.p, self.dropout.p, self.dropout2.p


def draw(device: torch.device, n_layers: int | None = None) -> Tensor:
    """The seeds of a layer's dropouts, int64 (4, 2), or of several layers', (n_layers, 4, 2).

    In one launch, into device memory, by an operator that a captured graph replays with another
    state of PyTorch's generator.
    """
    shape = (N_DROPOUTS, 2) if n_layers is None else (n_layers, N_DROPOUTS, 2)
    return torch.randint(-(2**63), 2**63 - 1, shape, dtype=torch.int64, device=device)
