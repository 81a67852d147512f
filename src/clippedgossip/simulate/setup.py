"""The parts of a training run: network, rule, attack, and a task that divides the data among the nodes that
train. Also the checks before it starts: nodes, connectivity, memory."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor, nn

from clippedgossip.attacks import Attack, LinearAttack
from clippedgossip.devices import free_memory
from clippedgossip.errors import ConfigError, DataError, NetworkError, RunError, counted, some, warn_user
from clippedgossip.metrics import COMPONENTS
from clippedgossip.mixing.inbox import worth_a_product
from clippedgossip.network import Network
from clippedgossip.network.schedule import survey
from clippedgossip.rules import LinearRule, Rule
from clippedgossip.settings import Training as Training
from clippedgossip.settings import must_be
from clippedgossip.tasks import DataSet, FlipLabels, Task, make_task
from clippedgossip.tasks import partition as share_out
from clippedgossip.tasks.datasets import Data, leaves
from clippedgossip.tasks.module_function import batched_on_cpu, evaluated_at_once
from clippedgossip.tasks.objective import LossLike, MetricLike
from clippedgossip.tasks.partitions import Scheme
from clippedgossip.tasks.poison import Poison
from clippedgossip.tasks.workers import activation_bytes, evaluation_bytes

Shares = Data | Sequence[Data | Sequence[int]] | Mapping[Hashable, Data | Sequence[int]]
"""The rows of each node that trains: in the order of the nodes, or by their labels."""

MODEL_COPIES = 5  # models, half-steps, gradients, and two for their computation; and the optimizer's slots
RANK_COPIES = 6  # one more, for the exchange between ranks


@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """A run: the network, the task, the rule and the attack.

    The task's nodes are the regular ones, followed by the Byzantine ones if the attack trains.
    """

    network: Network
    task: Task
    rule: Rule
    attack: Attack | None = None
    training: Training = field(default_factory=Training)
    seed: int = 0

    def __repr__(self) -> str:
        return (
            f"Setup({self.network!r},\n      {self.task!r},\n      {self.rule!r}, {self.attack!r}, "
            f"{self.training.rounds} rounds, seed {self.seed})"
        )

    def __post_init__(self) -> None:
        must_be("network", self.network, Network, "Network(graph)")
        must_be("task", self.task, Task, "tasks.make_task(data, shares, model, seed=0)")
        must_be("rule", self.rule, Rule, "rules.ClippedGossip()")
        if self.attack is not None:
            must_be("attack", self.attack, Attack, "attacks.Dissensus()")
        regular, byzantine = self.network.regular.tolist(), self.network.byzantine.tolist()
        if self.training.evaluate_components and len(regular) > COMPONENTS:
            raise ConfigError(
                f"training.evaluate_components compares all pairs of {len(regular)} regular nodes; "
                f"it can do so for at most {COMPONENTS}\nset it to false"
            )
        nodes = self.task.nodes.tolist()
        if nodes not in (regular, [*regular, *byzantine]):
            raise ConfigError(
                f"the task is for nodes {some(nodes)}; the network's regular nodes are {some(regular)}\n"
                "give make_task nodes=network.regular.tolist() and a share for each (and network.byzantine "
                "behind them, where the attack trains)"
            )

    @cached_property
    def drawn(self) -> Tensor:
        """A digest of what functions of the user's own may draw: the network, and the shares with labels."""
        network, task = self.network, self.task
        links = (network.indptr, network.indices, network.byzantine)
        found = digest(*links, task.table, task.sizes, *leaves(task.data.train_y))
        return torch.tensor([int(found[:15], 16)])


def network_task(
    network: Network,
    data: DataSet,
    model: str | nn.Module,
    *,
    attack: Attack | None = None,
    partition: str | Scheme | Shares = "iid",
    alpha: float | None = None,
    byzantine_share: bool = False,
    byzantine_copies: bool = False,
    seed: int,
    batch: int = 32,
    loss: LossLike = None,
    metric: MetricLike = None,
    augment: bool = False,
    poison: Poison | None = None,
) -> Task:
    """The data are divided among the regular nodes, and the Byzantine nodes if the attack trains.

    With `byzantine_share` Byzantine nodes hold a share even if they do not train on it. With
    `byzantine_copies` those that train hold a copy of a regular neighbour's share. `poison` changes the
    batches of those that train.
    """
    regular, byzantine = network.regular.tolist(), network.byzantine.tolist()
    trains = attack is not None and attack.trains
    training = [*regular, *byzantine] if trains else regular
    if isinstance(partition, str) or callable(partition):
        holders = [*regular, *byzantine] if byzantine_share else training
        holders = regular if byzantine_copies else holders
        shares = share_out(
            data.labels,
            len(holders),
            partition,
            seed=seed,
            groups=groups_of(network, partition, holders),
            alpha=0.5 if alpha is None else alpha,
            classes=data.classes,
        )
        copies = [shares[regular.index(_victim(network, node))] for node in training[len(holders) :]]
        held: Sequence[Data | Sequence[int]] = [*shares, *copies][: len(training)]
    else:
        held = _given(network, training, partition)
    if poison is not None and not trains:
        named = "there is no attack" if attack is None else f"under {type(attack).__name__} they do not"
        raise ConfigError(
            f"data.poison is for Byzantine nodes that train, and {named}\n"
            'take an attack that trains, such as "none": they follow the protocol on poisoned data'
        )
    if attack is not None and attack.flips_labels:
        if poison is not None:
            raise ConfigError(
                f"{type(attack).__name__} poisons the data itself; remove data.poison\n"
                'or take the attack "none", which trains on data changed by data.poison'
            )
        if data.classes is None:
            raise ConfigError(
                f"{type(attack).__name__} needs classes, but {data.name} has real-valued targets\n"
                "take another attack, such as 'dissensus'"
            )
        poison = FlipLabels(classes=data.classes)
    task = make_task(
        data,
        held,
        model,
        seed=seed,
        batch=batch,
        loss=loss,
        metric=metric,
        nodes=training,
        augment=augment,
        poison=poison,
        poisoned=byzantine if poison is not None else (),
    )
    fewest = int(task.sizes.min())
    if fewest < batch:
        node = network.labels[training[int(task.sizes.argmin())]]
        warn_user(
            f"a batch of {batch} is larger than the smallest share, {counted(fewest, 'sample')} of node "
            f"{node}: batches repeat samples\ngive a smaller batch, or other shares"
        )
    return task


def _given(network: Network, training: Sequence[int], shares: Shares) -> Sequence[Data | Sequence[int]]:
    """The user's own shares, one for each node that trains."""
    if not isinstance(shares, Mapping | Sequence | np.ndarray | Tensor):
        raise DataError(
            f"partition is {shares!r}\ngive a name such as 'iid', or a list with the rows of each node"
        )
    labels = [network.labels[node] for node in training]
    listed = some(labels)
    if isinstance(shares, Mapping):
        for label in [*shares, *labels]:
            if label not in shares or label not in labels:
                what = "does not train" if label in shares else "has no share"
                raise DataError(f"node {label!r} {what}\ngive one share to each of {listed}")
        held = [shares[label] for label in labels]
    else:
        held = list(shares)
        if len(held) != len(labels):
            raise DataError(
                f"partition has {len(held)} shares, but {len(labels)} nodes train\n"
                f"give one share to each of {listed}"
            )
    return held


def _victim(network: Network, node: int) -> int:
    """The first regular neighbour; for a node that has none, the first regular node."""
    around = network.indices[network.indptr[node] : network.indptr[node + 1]].tolist()
    byzantine = set(network.byzantine.tolist())
    return next((other for other in around if other not in byzantine), int(network.regular[0]))


def groups_of(network: Network, partition: str | Scheme, holders: list[int]) -> list[list[int]] | None:
    """What a partition may divide by: the network's groups, for `clique` and for one of the user's own."""
    wanted = partition == "clique" or (callable(partition) and network.groups)
    return _clique_places(network, holders) if wanted else None


def _clique_places(network: Network, holders: list[int]) -> list[list[int]]:
    """Places in `holders`, clique by clique. A node in none is put into that of most of its neighbours."""
    if not network.groups:
        raise ConfigError(
            "partition 'clique' needs a network with groups, such as 'dumbbell'; a file names them in the "
            "'group' attribute of its nodes"
        )
    names = list(network.groups)
    member = {int(node): place for place, name in enumerate(names) for node in network.groups[name]}
    while lost := [node for node in holders if node not in member]:
        near = {node: _nearest(network, node, member, len(names)) for node in lost}
        found = {node: group for node, group in near.items() if group is not None}
        member |= found or dict.fromkeys(lost, 0)
    places = range(len(holders))
    return [[k for k in places if member[holders[k]] == group] for group in range(len(names))]


def _nearest(network: Network, node: int, member: dict[int, int], groups: int) -> int | None:
    around = network.indices[network.indptr[node] : network.indptr[node + 1]].tolist()
    votes = [sum(member.get(other) == group for other in around) for group in range(groups)]
    return votes.index(max(votes)) if any(votes) else None


def refuse_disconnected(network: Network, rounds: int = 0, seed: int = 0) -> None:
    """The paper's Assumption (connectivity): without it no rule can reach consensus. Where the network has a
    schedule, the links of its rounds together must connect the regular nodes."""
    if not network.connected:
        parts = network.components
        sizes = some(map(len, parts), 5)
        raise NetworkError(
            f"the regular nodes fall into {len(parts)} parts of {sizes} nodes, so they cannot agree\n"
            "add edges between the parts or remove Byzantine nodes (`clippedgossip audit` shows where)"
        )
    if network.schedule is not None:
        found = survey(network, rounds, seed)
        if found.whole and not found.connected:
            raise NetworkError(
                f"in {counted(found.rounds, 'round')} the schedule's links do not connect the regular nodes\n"
                "let the schedule use links between all parts of the network"
            )


def checked_counts(network: Network, rule: Rule, rounds: int, seed: int) -> set[int]:
    """The numbers of neighbours that regular nodes have; refused where they are too few for the rule. Whoever
    has none in a round keeps its model."""
    counts = set(network.degrees[network.regular].tolist())
    if network.schedule is not None:
        counts = set(survey(network, rounds, seed).counts)
    for count in counts - {0}:
        rule.check(count)
    return counts - {0}


def models_bytes(
    workers: int, parameters: int, messages: int = 0, *, over_ranks: bool = False, slots: int = 1
) -> int:
    """Of all copies of the workers' models, the optimizer's slots, and the messages that are computed."""
    copies = (RANK_COPIES if over_ranks else MODEL_COPIES) + slots
    return (copies * workers + 2 * messages) * parameters * 4


def kept_bytes(network: Network, parameters: int) -> int:
    """Of the half-steps of earlier rounds, where messages come late."""
    late = 0 if network.delay is None else network.delay.most
    return 4 * (late + 2 if late else 0) * len(network.regular) * parameters


def refuse_late(network: Network, parameters: int, free: int, number: int = 4) -> None:
    """Raise if late messages take more than half of the free bytes: checkpoints copy them. `number` is the
    size of one."""
    needed = kept_bytes(network, parameters) // 4 * number
    if network.delay is not None and 2 * needed > free:
        raise RunError(
            f"a delay of {network.delay.most:,} rounds keeps that many models of "
            f"{len(network.regular)} nodes: {needed:,} bytes; {free:,} are free\n"
            "lower network.delay: they may take half of that"
        )


def messages(network: Network, rule: Rule, attack: Attack | None) -> int:
    """How many messages of Byzantine nodes are computed in a round; none if coefficients are enough."""
    network = network.at(0)
    count, nodes = int(network.byzantine_neighbours.sum()), len(network.regular)
    slots = nodes * int(network.degrees[network.regular].max(initial=0))
    linear = isinstance(attack, LinearAttack) and isinstance(rule, LinearRule)
    return 0 if attack is None or (linear and worth_a_product(nodes, slots)) else count


def needed_bytes(
    tasks: Sequence[Task], setups: Sequence[Setup], device: torch.device, *, ranks: int | None = None
) -> int:
    """The memory of these tasks' workers in one stack, roughly. `ranks` is None on one device."""
    task, size, workers = tasks[0], tasks[0].layout.size, sum(len(task.nodes) for task in tasks)
    written = sum(messages(setup.network, setup.rule, setup.attack) for setup in setups)
    training = setups[0].training
    held = leaves((task.data.train_x, task.data.train_y, task.data.test_x, task.data.test_y))
    taken = 0  # of the data; on a CPU they are there already
    if task.data.on_host(device):
        taken = workers * task.batch * sum(x[0].numel() * x.element_size() for x in held)
    elif device.type == "cuda":
        taken = sum(x.numel() * x.element_size() for x in held)
    kept = activation_bytes(task, device, training.precision)
    return (
        models_bytes(workers, size, over_ranks=ranks is not None, slots=len(training.optimizer.slots))
        + models_bytes(0, size, written) // (ranks or 1)
        + sum(kept_bytes(setup.network, size) for setup in setups) // (ranks or 1)
        + taken
        + at_once(workers, task.module, device) * task.batch * kept
    )


def at_once(workers: int, module: nn.Module, device: torch.device) -> int:
    """How many workers compute their gradients at the same time."""
    whole = device.type == "cuda" or batched_on_cpu(module)
    return workers if whole else min(workers, torch.get_num_threads())


def evaluation_memory(cost: int, tests: int, device: torch.device) -> int:
    """Of what is computed in a test at the same time; `cost` is that of one sample."""
    return cost * min(tests, evaluated_at_once(cost, on_gpu=device.type == "cuda"))


def refuse_what_does_not_fit(
    tasks: Sequence[Task], setups: Sequence[Setup], device: torch.device, *, ranks: int | None = None
) -> None:
    """Raise if the workers of these tasks need more memory than is free, before any is taken."""
    size, free = tasks[0].layout.size, free_memory(device)
    for setup in setups:
        refuse_late(setup.network, size, free * (ranks or 1))
    needed = needed_bytes(tasks, setups, device, ranks=ranks)
    needed += evaluation_memory(evaluation_bytes(tasks[0]), tasks[0].data.tests, device)
    if needed > free:
        workers = sum(len(task.nodes) for task in tasks)
        where = "the GPU" if device.type == "cuda" else "this machine"
        raise RunError(
            f"{workers} workers with {size:,} parameters need about {needed:,} bytes, "
            f"{where} has {free:,} free\n"
            "use fewer workers, a smaller batch, or more ranks with torchrun"
        )


def digest(*arrays: np.ndarray | Tensor) -> str:
    """Of the numbers of a run: equal for equal arrays."""
    total = blake2b(digest_size=8)
    for array in arrays:
        numbers = array.detach().cpu().numpy() if isinstance(array, Tensor) else array
        total.update(f"{numbers.shape} {numbers.dtype}".encode())
        total.update(np.ascontiguousarray(numbers).data)  # not copied: files may be larger than memory
    return total.hexdigest()
