"""torch.distributed: robust gossip between the ranks of one owner, some of which may be faulty."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.algorithms.model_averaging.averagers import ModelAverager

from clippedgossip.adapters import steps_between
from clippedgossip.errors import ConfigError
from clippedgossip.mixing.inbox import Context
from clippedgossip.network import Network
from clippedgossip.rules import Rule
from clippedgossip.settings import must_be


class RobustAverager(ModelAverager):
    """A `ModelAverager` that mixes with the neighbours in a network by a robust rule.

        network = cg.Network(cg.graphs.complete(nodes=dist.get_world_size()))
        averager = RobustAverager(cg.rules.ClippedGossip(1.0), network)
        optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), averager)

    Rank i is the i-th node. It exchanges models with its neighbours every `period` steps, after
    `warmup_steps`. A rank that sends wrong numbers does bounded harm; a rank that sends nothing stops all of
    them, as in every collective of torch.distributed (`cg.Peer` has deadlines). Every rank needs the same
    arguments.
    """

    def __init__(
        self,
        rule: Rule,
        network: Network,
        *,
        period: int = 1,
        warmup_steps: int = 0,
        process_group: distributed.ProcessGroup | None = None,
    ) -> None:
        must_be("rule", rule, Rule, "rules.ClippedGossip(1.0)")
        must_be("network", network, Network, "Network(graph)")
        self.period = steps_between("period", period)
        super().__init__(process_group)
        ranks = distributed.get_world_size(self.process_group)
        if network.n != ranks:
            raise ConfigError(
                f"the network has {network.n} nodes and there are {ranks} ranks; make them equal"
            )
        if warmup_steps < 0:
            raise ConfigError(f"warmup_steps is {warmup_steps}; it must be at least 0")
        self.rule, self.warmup_steps = rule, warmup_steps
        me = distributed.get_rank(self.process_group)
        around = slice(network.indptr[me], network.indptr[me + 1])
        self.neighbors = network.indices[around].tolist()
        rule.check(len(self.neighbors))
        self.weights = torch.tensor(network.edge_weights()[around])

    def average_parameters(self, params: Iterable[Any]) -> None:
        """Mix the parameters of a model, or of an optimizer's groups, where they are."""
        step, self.step = self.step - self.warmup_steps, self.step + 1
        if step < 0 or step % self.period:
            return
        tensors = list(_tensors(params))
        with torch.no_grad():
            own = torch.cat([tensor.reshape(-1).float() for tensor in tensors])
            received = self.exchanged(own)
            context = Context(round=step // self.period)
            mixed = self.rule(own, received, self.weights.to(own), context)
            for tensor, part in zip(tensors, mixed.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def exchanged(self, own: Tensor) -> Tensor:
        """(k, d) the models of the neighbours, who get ours."""
        received = own.new_empty(len(self.neighbors), len(own))
        operations = []
        for place, neighbor in enumerate(self.neighbors):
            there = distributed.get_global_rank(self.process_group, neighbor)
            operations.append(distributed.P2POp(distributed.isend, own, there, self.process_group))
            operations.append(
                distributed.P2POp(distributed.irecv, received[place], there, self.process_group)
            )
        for work in distributed.batch_isend_irecv(operations) if operations else ():
            work.wait()
        return received


def _tensors(params: Iterable[Any]) -> Iterator[Tensor]:
    for entry in params:
        if isinstance(entry, dict):
            yield from (tensor for tensor in entry["params"] if tensor.requires_grad)
        elif entry.requires_grad:
            yield entry
