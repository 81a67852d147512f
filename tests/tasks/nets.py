"""Modules as users write them: a CNN, a ResNet, a transformer, one with a frozen base and LoRA."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Norm = Callable[[int], nn.Module]


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


class Convolutional(nn.Module):
    """The paper's CNN in small, as a class with a `forward`, and dropout."""

    def __init__(self, channels: int = 1, width: int = 4, side: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, width, 3), nn.Conv2d(width, 2 * width, 3)
        self.hidden = nn.Linear(2 * width * ((side - 4) // 2) ** 2, 16)
        self.last, self.some, self.more = nn.Linear(16, classes), nn.Dropout(0.25), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.second(functional.relu(self.first(x))))
        h = self.some(functional.max_pool2d(h, 2)).flatten(1)
        return functional.log_softmax(self.last(self.more(functional.relu(self.hidden(h)))), dim=-1)


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([norm(after), norm(after)])
        self.short = nn.Identity() if before == after and stride == 1 else nn.Conv2d(before, after, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(h)) + self.short(x))


class ResNet(nn.Module):
    def __init__(
        self, norm: Norm = group_norm, widths: tuple[int, ...] = (4, 8), channels: int = 1, classes: int = 3
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, 1, 1)
        pairs = zip((widths[0], *widths), widths, strict=False)
        self.blocks = nn.Sequential(*(Block(a, b, 1 if a == b else 2, norm) for a, b in pairs))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(functional.relu(self.stem(x))).mean((2, 3)))  # type: ignore[no-any-return]  # a module's call returns Any


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads, self.mixed, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)  # used twice: each call draws anew

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.mixed(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).reshape(batch, length, width)))
        h: Tensor = x + self.dropout(self.down(functional.gelu(self.up(self.after(x)))))
        return h


class Transformer(nn.Module):
    """Tokens (batch, length) -> logits (batch, length, words)."""

    def __init__(
        self,
        words: int = 7,
        length: int = 6,
        width: int = 8,
        heads: int = 2,
        depth: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList([Attention(width, heads, dropout) for _ in range(depth)])
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens) + self.places[: tokens.shape[1]]
        for layer in self.layers:
            h = layer(h)
        return self.head(h)  # type: ignore[no-any-return]  # a module's call returns Any


class LoRA(nn.Module):
    """A frozen linear layer W, and B·A of a low rank that is trained."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T  # type: ignore[no-any-return]  # a module's call returns Any


def with_lora(module: Transformer, rank: int = 2) -> Transformer:
    """All of it frozen but low-rank additions to the attention's linear layers."""
    module.requires_grad_(False)
    for layer in module.layers:
        assert isinstance(layer, Attention)
        layer.mixed = LoRA(layer.mixed, rank)  # type: ignore[assignment]  # another module in its place
    return module
