"""A small transformer that predicts the next token of a sequence, with AdamW and a warm-up.

python examples/tasks/transformer.py
"""

import networkx as nx
import torch
from torch import Tensor, nn

import clippedgossip as cg

WORDS, LENGTH, WIDTH = 11, 12, 32


class Transformer(nn.Module):
    """Tokens (batch, length) -> one number for each word at each place."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        q, k, v = self.query_key_value(self.first(h)).chunk(3, -1)
        h = h + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        scores: Tensor = self.head(h + self.feed(self.second(h)))
        return scores


# Sequences in which each token follows from the two before it. The targets are per token.
draw = torch.Generator().manual_seed(0)
tokens = [torch.randint(WORDS, (1200,), generator=draw) for _ in range(2)]
for _ in range(LENGTH - 1):
    tokens.append((tokens[-1] + 2 * tokens[-2]) % WORDS)
text = torch.stack(tokens, 1)
inputs, targets = text[:, :-1], text[:, 1:].clone()
targets[:, 0] = -100  # the second token is random: it does not count
data = cg.tasks.DataSet.of(inputs[:1000], targets[:1000], inputs[1000:], targets[1000:], name="sequences")

network = cg.Network(nx.complete_graph(5), byzantine=[4])
torch.manual_seed(0)
run = cg.train(
    network,
    data,
    Transformer(),
    rule=cg.rules.ClippedGossip(1.0),
    attack=cg.attacks.Dissensus(),
    metric="perplexity",
    optimizer="adamw",
    lr=cg.step.LearningRate(initial=0.01, schedule="cosine", warmup=10),
    clip_gradient=1.0,
    rounds=120,
    evaluate_every=40,
    device="cpu",
)
for record in run:
    print(f"round {record.round}: perplexity {record.metrics['perplexity']['all']:.2f} (chance: {WORDS})")
