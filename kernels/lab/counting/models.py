"""Three small models in training, whose operators are counted here and recorded on a GPU.

They are in the manner of what people train: an encoder of PyTorch's own layers, a decoder with tied
weights under autocast, a residual block of convolutions. `kernels.lab.profiling.launched` records
what a GPU launches for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from kernels.lab.counting import aten
from kernels.lab.counting.ledger import Ledger

Tensor = torch.Tensor
PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Model:
    """A model, made on a device, and the arguments of a training step on it.

    `told` says in a line what it is, with its sizes.
    """

    name: str
    told: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]

    def on(self, device: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """The model in training and its arguments, on a device."""
        torch.manual_seed(0)
        return self.make().to(device).train(), tuple(x.to(device) for x in self.inputs())


class Block(nn.Module):
    """A pre-LN layer of a decoder: (batch, length, width) to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Causal attention, then the two products, each with its residual."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        y: Tensor = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return y


class Gpt(nn.Module):
    """Tokens and their successors, (batch, length) of int64, to the loss under bf16 autocast."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy, a scalar."""
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device="cuda"))
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Residual(nn.Module):
    """A block of a ResNet that halves the picture: (batch, channels, height, width)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.conv1 = nn.Conv2d(channels, wide, 3, 2, 1, bias=False)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.across = nn.Conv2d(channels, wide, 1, 2, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(wide), nn.BatchNorm2d(wide)
        self.norm3 = nn.BatchNorm2d(wide)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, twice the channels and half the height and width."""
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y)) + self.norm3(self.across(x))
        return F.relu(y, inplace=True)


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        512, 8, 2048, dropout=0.1, activation="gelu", batch_first=True, dtype=torch.bfloat16
    )
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


def _tokens() -> tuple[Tensor, ...]:
    return torch.randint(8192, (4, 256)), torch.randint(8192, (4, 256))


MODELS = {
    model.name: model
    for model in (
        Model(
            "encoder",
            "nn.TransformerEncoder, 6 layers of width 512, 8 heads, dropout 0.1, bf16, "
            "8x256 tokens",
            _encoder,
            lambda: (torch.randn(8, 256, 512, dtype=torch.bfloat16),),
        ),
        Model(
            "gpt",
            "4 layers of width 256, 8 heads, 8,192 words, tied weights, autocast to bf16, "
            "4x256 tokens, with its loss",
            lambda: Gpt(8192, 256, 256, 8, 4),
            _tokens,
        ),
        Model(
            "resnet",
            "a residual block from 64 to 128 channels, fp32, 16 pictures of 56x56",
            lambda: Residual(64),
            lambda: (torch.randn(16, 64, 56, 56),),
        ),
    )
}


def counted(model: Model) -> dict[str, Ledger]:
    """The ledgers of a training step on fake CUDA tensors, forward and backward."""
    module, inputs = model.on("cpu")
    return dict(zip(PASSES, aten.count_training(module, *inputs), strict=True))


def step(
    module: nn.Module, inputs: tuple[Tensor, ...]
) -> tuple[Callable[[], Tensor], Callable[[Tensor], None]]:
    """A training step as two calls: the forward, and the way back from what it returned.

    A loss goes back from 1, anything else from a gradient made beforehand.
    """
    gradients: dict[tuple[int, ...], Tensor] = {}

    def forward() -> Tensor:
        module.zero_grad(set_to_none=True)
        y: Tensor = module(*inputs)
        if y.dim() and tuple(y.shape) not in gradients:
            gradients[tuple(y.shape)] = torch.randn_like(y)
        return y

    def backward(y: Tensor) -> None:
        y.backward(gradients[tuple(y.shape)] if y.dim() else None)

    return forward, backward
