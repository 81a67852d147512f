"""LoRA: fine-tune a frozen transformer. Only the low-rank matrices are trained, sent and mixed.

python examples/tasks/lora.py
"""

import networkx as nx
import torch
from torch import Tensor, nn

import clippedgossip as cg

WORDS, LENGTH, WIDTH, RANK = 8, 10, 32, 4


class LoRA(nn.Module):
    """x ↦ W x + B A x: W is frozen, A and B are trained."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.frozen(x) + self.up(self.down(x))
        return output


class Classifier(nn.Module):
    """Tokens, and how many of them are real -> one number for each of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.query_key_value: nn.Module = nn.Linear(WIDTH, 3 * WIDTH)
        self.feed = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.head: nn.Module = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor, length: Tensor) -> Tensor:
        real = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
        h = self.words(tokens)
        q, k, v = self.query_key_value(h).chunk(3, -1)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None])
        h = (self.feed(h + seen) * real[:, :, None]).sum(1) / length[:, None]
        scores: Tensor = self.head(h)
        return scores


# A model that somebody trained before: here a random one. Its weights stay as they are.
torch.manual_seed(0)
model = Classifier().requires_grad_(False)
model.query_key_value = LoRA(nn.Linear(WIDTH, 3 * WIDTH))
model.head = LoRA(nn.Linear(WIDTH, 2))

# The inputs are a dict of tensors: the model is called as model(tokens=…, length=…).
tokens, length = torch.randint(WORDS, (900, LENGTH)), torch.randint(4, LENGTH + 1, (900,))
real = torch.arange(LENGTH) < length[:, None]
labels = (((tokens < 4) & real).sum(1) * 2 > length).long()
inputs = {"tokens": tokens, "length": length}
train, test = ({name: rows[part] for name, rows in inputs.items()} for part in (slice(700), slice(700, 900)))
data = cg.tasks.DataSet.of(train, labels[:700], test, labels[700:], name="majority")

network = cg.Network(nx.cycle_graph(6), byzantine=[])
run = cg.train(network, data, model, optimizer="adamw", lr=0.01, rounds=60, evaluate_every=20, device="cpu")
for record in run:
    print(f"round {record.round}: accuracy {record.metrics['accuracy']['all']:.1%}")
whole = sum(parameter.numel() for parameter in model.parameters())
print(f"{run.models.shape[1]} of {whole} parameters were trained and mixed")
