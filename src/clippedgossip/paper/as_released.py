"""Rules, attacks and models of the authors' released code that are not as in the text, for `deviations`.

Kept results name this file by its digest. So what only a page needs is elsewhere. After an edit that changes
no number, write the new digest into the files of docs/results/h200; after another, run them again.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from clippedgossip.attacks.base import FreeAttack, View
from clippedgossip.attacks.no_attack import own_models
from clippedgossip.mixing.inbox import Neighborhood
from clippedgossip.randomness import generator, hash_bits
from clippedgossip.rules.clipped_gossip import Radius
from clippedgossip.rules.premix import Premix
from clippedgossip.tasks.partitions import Groups, partition

BATCH = 32
IMAGES = 30 * BATCH
"""Of each worker: 30 batches."""


@dataclass(frozen=True)
class DoubledBucketing(Premix):
    """Every model, the own one included, goes in twice; k + 1 buckets of two; bucket 0 stands for the own
    model and the others for the neighbours. The shuffle is the same in every round. With the model of another
    clique in two of the buckets, TM, which drops one value per side, keeps part of it."""

    def premix(self, near: Neighborhood) -> tuple[Tensor, Tensor]:
        own = torch.ones_like(near.present[:, :1])
        there = torch.cat([own, near.present] * 2, 1)
        items = torch.arange(there.shape[1], device=there.device)
        draw = hash_bits(near.context.seed, "released bucketing", near.nodes[:, None], items)
        last = torch.iinfo(torch.int64).max
        bucket = torch.where(there, draw, last).argsort(1).argsort(1) // 2
        count = there.shape[1] // 2
        member = (bucket[:, None] == items[:count, None]) & there[:, None]
        shares = member.view(len(member), count, 2, count).sum(2).to(torch.float64) / 2
        shares[:, :, 0] += (shares.sum(2) == 0).to(torch.float64)  # of weight 0, but a row must sum to 1
        return shares, near.weights


@dataclass(frozen=True)
class AlternatingBitFlipping(FreeAttack):
    """−x in one round, x in the next, where x is the sender's own model."""

    trains: ClassVar[bool] = True

    def messages(self, view: View) -> Tensor:
        return own_models(view, self) * (1 - 2 * (view.context.round % 2))


@dataclass(frozen=True)
class SecondLargest(Radius):
    """τ_i is the second-largest distance to a neighbour, the only one where there is one."""

    def __call__(self, near: Neighborhood) -> Tensor:
        distances = torch.where(near.present, near.distances, 0.0).sort(1, descending=True).values
        alone = near.present.sum(1, keepdim=True) < 2
        return torch.where(alone, distances[:, :1], distances[:, min(1, distances.shape[1] - 1)][:, None])


def few_images(
    labels: Tensor, nodes: int, *, seed: int, classes: int, groups: Groups | None, of: str = "iid"
) -> list[Tensor]:
    """30 batches of each worker's share, at random. As all workers have just as many, a batch has the same
    images at the same places of the mask in every epoch."""
    shares = partition(labels, nodes, of, seed=seed, classes=classes, groups=groups)
    draw = generator(seed, "few images")
    return [share[torch.randperm(len(share), generator=draw)[:IMAGES]] for share in shares]


class OneMask(nn.Module):
    """Dropout with one mask for all rounds and workers: a buffer, which the compiler takes as it is."""

    mask: Tensor

    def __init__(self, rate: float, shape: tuple[int, ...]) -> None:
        super().__init__()
        draws = torch.rand(BATCH, *shape, generator=torch.Generator().manual_seed(0), device="cpu")
        kept = (draws >= rate).to(torch.float32) / (1 - rate)
        self.register_buffer("mask", kept.to(torch.get_default_device()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask[: len(x)].to(x.dtype) if self.training else x


def released_cnn(
    shape: tuple[int, ...], classes: int, plain: bool = True, one_mask: bool = True
) -> nn.Module:
    """The released CNN. `plain`: no ReLU after the second convolution, and dropout of whole channels before
    the first linear layer. `one_mask`: the same dropout in every round."""
    channels, height, width = shape
    images = (64, (height - 4) // 2, (width - 4) // 2)
    first: nn.Module = nn.Dropout2d(0.25) if plain else nn.Dropout(0.25)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.Identity() if plain else nn.ReLU(),
        nn.MaxPool2d(2),
        OneMask(0.25, (64, 1, 1) if plain else images) if one_mask else first,
        nn.Flatten(),
        nn.Linear(math.prod(images), 128),
        nn.ReLU(),
        OneMask(0.5, (128,)) if one_mask else nn.Dropout(0.5),
        nn.Linear(128, classes),
    )
