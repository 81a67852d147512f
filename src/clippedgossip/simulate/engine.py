"""Algorithm 1 on one device: local momentum steps of all workers, then robust mixing under attack."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from clippedgossip.devices import CAPTURE, CapturedWork, aligned_zeros, find_device, trusted
from clippedgossip.errors import RunError
from clippedgossip.metrics import RunMetrics, squared_distances
from clippedgossip.mixing.kernels import full_precision
from clippedgossip.records import Round
from clippedgossip.simulate.exchange import Mixer
from clippedgossip.simulate.selfcheck import SelfCheck, check_compiled
from clippedgossip.simulate.setup import Setup, refuse_disconnected, refuse_what_does_not_fit
from clippedgossip.simulate.state import Moment, State
from clippedgossip.step import half_step
from clippedgossip.tasks.workers import Workers


def train(
    setup: Setup, *, device: str | torch.device = "cpu", state: State | None = None
) -> Iterator[Moment]:
    """Run a setup from its start, or from a state, to its end; yields after every round."""
    for (moment,) in train_together([setup], device=device, states=None if state is None else [state]):
        yield moment


def train_together(
    setups: Sequence[Setup],
    *,
    device: str | torch.device = "cpu",
    states: Sequence[State] | None = None,
) -> Iterator[list[Moment]]:
    """Train several runs round by round in one stack.

    They share data, model, batch and training; networks, rules, attacks and seeds may differ. Each run gives
    what it would give alone, up to rounding.
    """
    stack = Stack(setups, device, states)
    while stack.round < stack.training.rounds:
        stack.advance()
        records = stack.evaluate() if stack.training.evaluates(stack.round) else [None] * len(setups)
        yield [
            Moment(stack.round, record, partial(stack.state, index)) for index, record in enumerate(records)
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
            raise RunError("runs that go together must share their [training] section")
        for setup in setups:
            refuse_disconnected(setup.network)
        self.device = find_device(device)
        if self.device.type == "cuda":
            if self.device.index is not None:
                torch.cuda.set_device(self.device)  # kernels and graphs go to the current device
            set_product_precision(self.training.precision)
        self.setups = [replace(setup, task=setup.task.to(self.device)) for setup in setups]
        self.workers = Workers([setup.task for setup in self.setups], self.training.precision)
        self.parts = self.workers.parts  # each run's rows
        refuse_what_does_not_fit(self.workers, self.setups, self.device)
        rows, size = len(self.workers), self.workers.task.layout.size
        self.models, self.momentum, self.half = (aligned_zeros(rows, size, self.device) for _ in range(3))
        self.losses = torch.zeros(rows, device=self.device)
        for setup, part in zip(self.setups, self.parts, strict=True):
            self.models[part] = setup.task.initial()
        self.mixers = [
            Mixer(setup, self.workers, part) for setup, part in zip(self.setups, self.parts, strict=True)
        ]
        if self.workers.compiles:
            check_compiled(self.workers, self.models)
        self.local_step = LocalStep(self.workers)
        self.clock = Clock(self.device)
        self.round = 0
        if states is not None:
            self.restore(states)
        self.captured = CapturedWork(self.first_part, self._changed) if self.captures else None
        self.check = SelfCheck(self) if self.workers.compiles else None

    def advance(self) -> None:
        """One round of Algorithm 1."""
        self.clock.set(
            self.round, self.training.lr.at(self.round), self.training.momentum.gain(self.round == 0)
        )
        with self.check.round() if self.check else nullcontext():
            (self.captured or self.first_part)()
            self.mix(capturable=False)
        self.round += 1

    @torch.no_grad()
    def first_part(self) -> None:
        """The part of a round that a CUDA graph can hold: the local steps, and the mixing of most rules."""
        self.local_step(self.models, self.momentum, self.half, self.losses, self.clock)
        self.mix(capturable=True)

    @torch.no_grad()
    def mix(self, *, capturable: bool) -> None:
        """x ← rule(x½) in the runs whose rule and attack a CUDA graph can hold, or in the others."""
        for mixer, part in zip(self.mixers, self.parts, strict=True):
            if mixer.capturable is capturable:
                self.mix_run(mixer, self.half[part], self.models[part])

    def mix_run(self, mixer: Mixer, half: Tensor, out: Tensor) -> None:
        """x ← rule(x½) of one run."""
        with full_precision():
            mixer.mix(half, out, self.clock.round, self.training.rounds)

    @property
    def captures(self) -> bool:
        """Whether CUDA graphs hold the rounds. A module of the user's own may read values on the CPU."""
        return self.device.type == "cuda" and self.workers.stacks and trusted(CAPTURE)

    def _changed(self) -> list[Tensor]:
        """The tensors that a round changes."""
        return [
            self.models,
            self.momentum,
            self.half,
            self.losses,
            *(mixer.metrics.clips for mixer in self.mixers),
        ]

    @torch.no_grad()
    def evaluate(self) -> list[Round]:
        """A record of each run."""
        return [
            self._record(mixer.metrics, self.models[part], self.losses[part])
            for mixer, part in zip(self.mixers, self.parts, strict=True)
        ]

    def _record(self, metrics: RunMetrics, models: Tensor, losses: Tensor) -> Round:
        models, losses, training = models[: metrics.regular], losses[: metrics.regular], self.training
        return metrics.record(
            self.round,
            accuracies=self.workers.accuracies(metrics.averages(models)),
            node_accuracies=self.workers.accuracies(models) if training.evaluates_nodes(self.round) else None,
            losses=losses,
            distances=squared_distances(models),
            lr=training.lr.at(self.round - 1),
            last=self.round == training.rounds,
        )

    def state(self, index: int) -> State:
        """A copy of what one run needs to go on from this round."""
        return State(self.round, {name: tensor.clone() for name, tensor in self._stored(index).items()})

    def restore(self, states: Sequence[State]) -> None:
        """Go on from these states, one for each run."""
        rounds = {state.round for state in states}
        if len(rounds) != 1 or len(states) != len(self.setups):
            raise RunError(f"runs that go together must stand at one round, these stand at {sorted(rounds)}")
        self.round = rounds.pop()
        for index, state in enumerate(states):
            for name, tensor in self._stored(index).items():
                tensor.copy_(state.fitting(name, tensor.shape))

    def _stored(self, index: int) -> dict[str, Tensor]:
        """The tensors of one run's checkpoint."""
        part = self.parts[index]
        return {
            "models": self.models[part],
            "momentum": self.momentum[part],
            "clips": self.mixers[index].metrics.clips,
        }


class Clock:
    """The numbers that change from round to round, as tensors, so that a captured round can read them."""

    def __init__(self, device: torch.device) -> None:
        self.round = torch.zeros((), dtype=torch.int64, device=device)
        self.lr, self.keep, self.gain = (torch.zeros((), device=device) for _ in range(3))

    def set(self, round: int, lr: float, gain: tuple[float, float]) -> None:
        """Go to a round, with its learning rate and its (a, b) of m ← a·m + b·g."""
        self.round.fill_(round)
        self.lr.fill_(lr)
        self.keep.fill_(gain[0])
        self.gain.fill_(gain[1])


class LocalStep:
    """The local step of all workers, Algorithm 1 up to the exchange. Make it after `check_compiled`."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        # Compiled separately: a compiler that sees both draws each image anew for every pixel that uses it.
        self.draw, self.gradients = workers.compiled("draw"), workers.compiled("gradients")

    def __call__(self, models: Tensor, momentum: Tensor, half: Tensor, losses: Tensor, clock: Clock) -> None:
        """m ← a·m + b·g(x) and x½ ← x − η m, written into `momentum` and `half`; the losses into `losses`."""
        workers, shares, gain = self.workers, self.workers.shares, (clock.keep, clock.gain)
        x, y = self.draw(shares, clock.round)
        if workers.stacks:
            gradients, found = self.gradients(shares, models, x, y, clock.round)
            half_step(models, momentum, half, gradients, gain, clock.lr)
        else:

            def step(i: int, gradient: Sequence[Tensor]) -> None:
                row, pieces = slice(i, i + 1), [piece[None] for piece in gradient]
                half_step(models[row], momentum[row], half[row], pieces, gain, clock.lr)

            found = workers.one_by_one(shares, models, x, y, clock.round, step)
        losses.copy_(found)


def set_product_precision(precision: str) -> None:
    """Whether a GPU may round the inputs of float32 products to TF32."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
