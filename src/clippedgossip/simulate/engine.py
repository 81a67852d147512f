"""Algorithm 1 on one device: local steps of all workers, then the exchange under attack and robust mixing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from scipy import sparse
from torch import Tensor

import clippedgossip.devices as devices
from clippedgossip.attacks import Silence, View
from clippedgossip.devices import CAPTURE, CapturedWork
from clippedgossip.errors import RunError
from clippedgossip.metrics import RunMetrics, pair_distances
from clippedgossip.mixing.inbox import Averages, Context, Inbox, Neighborhood
from clippedgossip.mixing.kernels import full_precision, squared_distances
from clippedgossip.mixing.slots import RoundLayouts
from clippedgossip.network import Network
from clippedgossip.network.schedule import Survey, survey
from clippedgossip.randomness import Word
from clippedgossip.records import Round
from clippedgossip.rules import LinearRule
from clippedgossip.simulate.selfcheck import SelfCheck, check_compiled
from clippedgossip.simulate.setup import Setup, checked_counts, refuse_disconnected, refuse_what_does_not_fit
from clippedgossip.simulate.state import Moment, State
from clippedgossip.step import LocalStep
from clippedgossip.tasks.datasets import at
from clippedgossip.tasks.workers import Workers, WorkerShares

PASS_BYTES = 64 << 20  # models and activations of one pass on a CPU; larger passes gain nothing
DENSE_ROWS = 1 << 24  # weights of Byzantine nodes; more of them are held as a sparse matrix
GPU_SHARE = 32  # on a GPU a pass may take this part of its memory: large passes keep it busy


def train(
    setup: Setup, *, device: str | torch.device = "cpu", state: State | None = None
) -> Iterator[Moment]:
    """Run a setup from its start, or from a state, to its end; yields after every round."""
    for (moment,) in train_together([setup], device=device, states=None if state is None else [state]):
        yield moment


def train_together(
    setups: Sequence[Setup], *, device: str | torch.device = "cpu", states: Sequence[State] | None = None
) -> Iterator[list[Moment]]:
    """Train several runs round by round in one stack.

    They share data, model, batch and training; networks, rules, attacks and seeds may differ. Each run gives
    what it would give alone, up to rounding.
    """
    with devices.usual_modes():
        stack = Stack(setups, device, states)
    products = stack.models.numel() * stack.workers.task.batch
    while stack.round < stack.training.rounds:
        with (
            devices.usual_modes(),
            devices.threads_for(products),
            stack.workers.named_errors(f"in round {stack.round + 1}"),
        ):
            stack.advance()
            records = stack.evaluate() if stack.training.evaluates(stack.round) else [None] * len(setups)
        yield [
            Moment(stack.round, record, partial(stack.state, index), stack.workers.tier)
            for index, record in enumerate(records)
        ]


class Stack:
    """The workers of all runs in one tensor, a row for each worker, and a round of them all."""

    def __init__(
        self,
        setups: Sequence[Setup],
        device: str | torch.device = "cpu",
        states: Sequence[State] | None = None,
    ) -> None:
        self.training = setups[0].training
        if any(setup.training != self.training for setup in setups):
            raise RunError("runs in one stack must have the same [training] section\nrun them one by one")
        for setup in setups:
            refuse_disconnected(setup.network, setup.training.rounds, setup.seed)
        self.device = devices.find_device(device)
        if self.device.type == "cuda":
            if self.device.index is not None:
                torch.cuda.set_device(self.device)  # kernels and graphs go to the current device
            set_product_precision(self.training.precision)
            devices.release(self.device)
        else:
            devices.keep_freed_memory()
        refuse_what_does_not_fit([setup.task for setup in setups], setups, self.device)
        self.setups = [replace(setup, task=setup.task.to(self.device)) for setup in setups]
        tasks, training = [setup.task for setup in self.setups], self.training
        self.workers = Workers(tasks, training.precision, **training.drawing, ahead=True)
        self.parts = self.workers.parts  # each run's rows
        rows, size = len(self.workers), self.workers.task.layout.size
        self.models, self.half = (devices.aligned_zeros(rows, size, self.device) for _ in range(2))
        self.losses = torch.zeros(rows, device=self.device)
        for setup, part in zip(self.setups, self.parts, strict=True):
            self.models[part] = setup.task.initial()
        pairs = zip(self.setups, self.parts, strict=True)
        self.mixers = [Mixer(setup, self.workers, part) for setup, part in pairs]
        if self.workers.compiles:
            if self.models.is_cuda and not devices.is_compiled(self.workers.kind("gradients")):
                self._compile_ahead()
            check_compiled(self.workers, self.models)
        self.local_step = LocalStep(self.workers, self.training.optimizer)
        self.clock = self.local_step.clock
        self.round = 0
        if states is not None:
            self.restore(states)
        self.captured = CapturedWork(self.last_part, self._changed) if self.captures else None
        self.captured_step = CapturedWork(self.step, self._changed) if self.captures else None
        self.check = SelfCheck(self) if self.workers.compiles else None

    def _compile_ahead(self) -> None:
        """Other processes compile the kernels of half-step and mixing, while gradients are compiled here."""
        from clippedgossip.mixing.kernels_cuda import compile_round_ahead

        mixer, workers = self.mixers[0], self.workers
        rows = slice(mixer.part.start, mixer.part.start + mixer.regular)
        shapes = [(shape, workers.lies_channels_last(shape)) for shape in workers.task.layout.shapes]
        compile_round_ahead(self.models[rows], self.half[rows], mixer.layout, shapes, workers.dtype)

    def advance(self) -> None:
        """One round of Algorithm 1."""
        rate, last = self.training.rate(self.round), self.training.local_steps - 1
        if last:
            self.half.copy_(self.models)
            self.losses.zero_()
        for h in range(last):
            self.local_step.set(self.round, h, rate)
            (self.captured_step or self.step)()
        self.local_step.set(self.round, last, rate)
        for mixer in self.mixers:
            mixer.go_to(self.round)
        with self.check.round() if self.check else nullcontext():
            (self.captured or self.last_part)()
            self.mix(capturable=False)
        self.round += 1

    @property
    def stepping(self) -> Tensor:
        """The models that a local step starts from."""
        return self.models if self.training.local_steps == 1 else self.half

    @torch.no_grad()
    def step(self) -> None:
        """One local step of all workers."""
        self.local_step(self.stepping, self.half, self.losses)

    @torch.no_grad()
    def last_part(self) -> None:
        """The part of a round that a CUDA graph can hold: the last local step, and most rules' mixing."""
        self.step()
        self.mix(capturable=True)

    @torch.no_grad()
    def mix(self, *, capturable: bool) -> None:
        """x ← rule(x½) in the runs whose rule and attack a CUDA graph can hold, or in the others."""
        for mixer, part in zip(self.mixers, self.parts, strict=True):
            if mixer.capturable is capturable:
                self.mix_run(mixer, self.half[part], self.models[part])

    def mix_run(self, mixer: "Mixer", half: Tensor, out: Tensor) -> None:
        """x ← rule(x½) of one run."""
        with full_precision(), torch.inference_mode() if mixer.ours_alone else nullcontext():
            mixer.mix(half, out, self.clock.round, self.training.rounds)

    @property
    def captures(self) -> bool:
        """Whether CUDA graphs hold the rounds. A module of the user's own may read values on the CPU."""
        return self.device.type == "cuda" and self.workers.stacks and devices.trusted(CAPTURE)

    def _changed(self) -> list[Tensor]:
        """The tensors that a round changes."""
        return [
            self.models,
            self.half,
            self.losses,
            *self.local_step.state.values(),
            *(mixer.metrics.clips for mixer in self.mixers),
            *(tensor for mixer in self.mixers for tensor in mixer.kept.values()),
        ]

    @torch.no_grad()
    def evaluate(self) -> list[Round]:
        """A record of each run."""
        runs = [mixer.metrics for mixer in self.mixers]
        starts = [part.start for part in self.parts]
        rows = [slice(start, start + run.regular) for run, start in zip(runs, starts, strict=True)]
        averages = [run.averages(self.models[some]) for run, some in zip(runs, rows, strict=True)]
        means = [run.averages(self.local_step.buffers[some]) for run, some in zip(runs, rows, strict=True)]
        models, buffers = torch.cat(averages), torch.cat(means)
        self.workers.refuse_changed_constants()
        # Of all runs at once: whoever reads a score waits for the GPU.
        found = self.workers.scores(models, self.workers.estimated(models, buffers))
        scores = torch.split(found, [len(models) for models in averages])
        return [self._record(*run) for run in zip(runs, rows, scores, strict=True)]

    def _record(self, metrics: RunMetrics, rows: slice, scores: Tensor) -> Round:
        training = self.training
        models, losses, buffers = self.models[rows], self.losses[rows], self.local_step.buffers[rows]
        of_nodes = self.workers.scores(models, buffers) if training.evaluates_nodes(self.round) else None
        return metrics.record(
            self.round,
            self.workers.task.metric,
            scores=scores,
            node_scores=of_nodes,
            losses=losses,
            distances=squared_distances(models),
            pairs=pair_distances(models) if training.evaluate_components else None,
            lr=training.rate(self.round - 1),
            last=self.round == training.rounds,
        )

    def state(self, index: int) -> State:
        """A copy of what one run needs to resume from this round."""
        held = {name: tensor.clone() for name, tensor in self._stored(index).items()}
        return State(self.round, held | {"drawn": self.setups[index].drawn})

    def restore(self, states: Sequence[State]) -> None:
        """Resume from these states, one for each run."""
        rounds = {state.round for state in states}
        if len(rounds) != 1 or len(states) != len(self.setups):
            raise RunError(f"runs in one stack must be at the same round; these are at {sorted(rounds)}")
        self.round = rounds.pop()
        for index, state in enumerate(states):
            state.refuse_others(self.setups[index].drawn)
            for name, tensor in self._stored(index).items():
                tensor.copy_(state.fitting(name, tensor.shape))

    def _stored(self, index: int) -> dict[str, Tensor]:
        """The tensors of one run's checkpoint."""
        part, mixer = self.parts[index], self.mixers[index]
        held = {
            "models": self.models[part],
            **{name: slot[part] for name, slot in self.local_step.state.items()},
            "clips": mixer.metrics.clips,
        }
        return held | mixer.kept


class Mixer:
    """Mixes the models of one run: regular nodes by the rule, Byzantine nodes that train by plain gossip."""

    def __init__(
        self, setup: Setup, workers: Workers, part: slice, *, coordinates: int | None = None
    ) -> None:
        """`coordinates` are those of the models that are mixed, where they are not all."""
        device = workers.task.device
        self.network, self.seed, self.workers, self.part = setup.network, setup.seed, workers, part
        self.attack = (setup.attack or Silence()) if len(setup.network.byzantine) else None
        self.regular = len(setup.network.regular)
        self.rule = setup.rule
        if self.rule.needs_losses:
            self.message_losses = self.make_message_losses()
            self.rule = self.rule.with_losses(self.message_losses)
        self.capturable = self.rule.capturable and (self.attack is None or self.attack.capturable)
        # On a CPU the many small steps of mixing take a sixth less time in inference mode. Code of the user's
        # own may keep tensors, or take gradients: it must not meet tensors of that mode.
        self.ours_alone = device.type == "cpu" and self.capturable and not setup.rule.needs_losses
        self.layouts = RoundLayouts(self.network, self.seed, device, self._fixed(setup, device))
        self.layout = self.layouts.at(0)
        counts = checked_counts(setup.network, setup.rule, setup.training.rounds, setup.seed)
        self.rule.warn(min(counts, default=0))
        size = workers.task.layout.size if coordinates is None else coordinates
        self.sent = torch.zeros(self.layouts.kept, self.regular, size, device=device)
        """The half-steps of the last rounds, where messages come late."""
        self.memory = torch.zeros(self.attack.memory if self.attack else 0, size, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self.metrics = RunMetrics(setup.network, self.layout, counts_clips=self.rule.clips)
        self._byzantine_rows: Tensor | None = None
        if part.stop - part.start > self.regular:
            now = self.network.at(0, self.seed)
            self._byzantine_rows = byzantine_rows(now, torch.zeros((), device=device)).to_dense()

    @property
    def kept(self) -> dict[str, Tensor]:
        """What is kept from round to round: tensors of rows of this mixer's coordinates."""
        every = {"sent": self.sent, "memory": self.memory[None]}
        return {name: held for name, held in every.items() if held.shape[:2].numel()}

    def _fixed(self, setup: Setup, device: torch.device) -> Survey | None:
        """What all rounds must fit into so that a CUDA graph can hold them; None where none does."""
        if not self.network.changes or device.type != "cuda":
            return None
        found = survey(self.network, setup.training.rounds, self.seed)
        few = self.network.schedule is None or len(found.counts) <= self.rule.most_counts
        self.capturable = self.capturable and found.whole and few
        return found if self.capturable else None

    def go_to(self, round: int) -> None:
        """Set the links of a round. No part of a CUDA graph: it gives the graph its numbers."""
        if not self.network.changes:
            return
        self.layout = self.layouts.at(round)
        if len(self.sent):
            self._place.fill_(round % len(self.sent))
        if self._byzantine_rows is not None and self.network.schedule is not None:
            now = self.network.at(round, self.seed)
            self._byzantine_rows.copy_(byzantine_rows(now, torch.zeros(())).to_dense())

    def mix(self, half: Tensor, out: Tensor, round: Word, rounds: int) -> None:
        """x ← rule(x½) for the regular rows, and gossip for the Byzantine nodes that train."""
        inbox = self.inbox(half, round, rounds)
        if self.metrics.counts_clips:
            assert isinstance(self.rule, LinearRule)
            inbox = inbox.measurable()
            plan = self.rule.plan(inbox)
            self.metrics.count_clips(plan, inbox.layout)
            inbox.mixed(plan, out[: self.regular])
        else:
            out[: self.regular] = self.rule.mix(inbox)
        if self._byzantine_rows is not None:
            torch.mm(self._byzantine_rows, half, out=out[self.regular :])
        if len(self.sent):
            self.sent.index_copy_(0, self._place, half[None, : self.regular])

    def inbox(self, half: Tensor, round: Word, rounds: int) -> Inbox:
        """The messages that every regular node receives: half-steps, and what the attack sends."""
        models = half[: self.regular]
        context = self.context(round, rounds)
        # A new object: a CUDA graph must compute from the numbers of the round, and not use kept results.
        layout = replace(self.layout) if self.layouts.fixed else self.layout
        if self.attack is None:
            inbox = Inbox(layout=layout, models=models, context=context)
        else:
            view = View(
                network=self.network,
                layout=layout,
                models=models,
                rule=self.rule,
                context=context,
                byzantine_models=half[self.regular :] if len(half) > self.regular else None,
                memory=self.memory if len(self.memory) else None,
            )
            inbox = self.attack.received(view)
        return inbox if layout.late is None else inbox.with_late(self.sent)

    def context(self, round: Word, rounds: int) -> Context:
        return Context(round=round, rounds=rounds, seed=self.seed)

    def make_message_losses(self) -> Callable[[Neighborhood], Tensor]:
        """For Mozi: what gives (b, k+1) losses of own and received models on each node's fresh sample."""
        return MessageLosses(self.workers, slice(self.part.start, self.part.start + self.regular))


class MessageLosses:
    """Losses of one run's messages. Shapes depend on the network only, so a round can be captured."""

    def __init__(self, workers: Workers, rows: slice) -> None:
        self.workers, self.rows = workers, rows
        device, total = workers.task.device, PASS_BYTES
        if device.type == "cuda":
            total = max(total, torch.cuda.get_device_properties(device).total_memory // GPU_SHARE)
        each = 4 * workers.task.layout.size + workers.task.batch * workers.activation_bytes
        self.size = max(1, total // each)  # models in a pass
        self._losses_of = partial(workers.compiled("losses_of"), workers.shares)
        self._shares: dict[int, WorkerShares] = {}

    def __call__(self, near: Neighborhood) -> Tensor:
        """(b, k+1) of own and received models on each node's sample; 0 where there is no neighbour."""
        x, y = self.workers.draw(self._shares_of(near.group), near.context.round, "mozi")
        closed = near.weights.shape[1] + 1
        found = torch.zeros(near.weights.shape[0] * closed, dtype=torch.float64, device=near.weights.device)
        for models, places in self._passes(near, closed):
            node = places // closed
            found[places] = self._losses_of(models, at(x, node), at(y, node)).double()
        return found.view(-1, closed)

    def _passes(self, near: Neighborhood, closed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Models, and the place of each in the flattened (b, k+1)."""
        if isinstance(near, Averages):  # each made for one node
            yield from self._averages(near, closed)
            return
        inbox, group = near.inbox.explicit(), near.group
        held = torch.cat(inbox.blocks) if len(inbox.blocks) > 1 else inbox.models
        held = held.to(self.workers.dtype_of_tests(held))  # before each is copied for every receiver
        real = inbox.layout.remember(
            f"losses of {closed} messages {group.start}",
            lambda: near.closed_present.flatten().nonzero()[:, 0],
        )
        slots = near.slots.flatten()
        passes = -(-len(real) // self.size)
        for places in torch.split(real, -(-len(real) // max(1, passes))):  # of one size: compiled once
            yield held.index_select(0, slots[places]), places

    def _averages(self, near: Neighborhood, closed: int) -> Iterator[tuple[Tensor, Tensor]]:
        nodes = torch.arange(len(near.weights), device=near.weights.device)
        together = max(1, self.size // max(1, len(nodes)))
        for start in range(0, closed, together):
            chosen = range(start, min(start + together, closed))
            models = torch.cat([near.message(place) for place in chosen])
            yield models, torch.cat([nodes * closed + place for place in chosen])

    def _shares_of(self, group: slice) -> WorkerShares:
        """The shares of this group's nodes: their samples do not depend on the other workers."""
        if group.start not in self._shares:
            rows = slice(self.rows.start + group.start, self.rows.start + group.stop)
            self._shares[group.start] = self.workers.shares.some(rows)
        return self._shares[group.start]


def byzantine_rows(network: Network, like: Tensor) -> Tensor:
    """(b, r+b) the Byzantine nodes' rows of W, regular columns first: they mix by plain gossip."""
    order = [*network.regular.tolist(), *network.byzantine.tolist()]
    rows = sparse.coo_array(network.weights[network.byzantine][:, order])
    if rows.shape[0] * rows.shape[1] <= DENSE_ROWS:
        return torch.tensor(rows.toarray(), dtype=like.dtype).to(like.device)
    index = torch.tensor([rows.row.tolist(), rows.col.tolist()], dtype=torch.int64)
    entries = torch.tensor(rows.data, dtype=like.dtype)
    return torch.sparse_coo_tensor(index, entries, rows.shape, check_invariants=True).to(like.device)


def set_product_precision(precision: str) -> None:
    """Whether a GPU may round the inputs of float32 products to TF32."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision != "float32"
