"""Algorithm 1 on one device: local momentum steps of all workers, then robust mixing, attackers and all."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from clippedgossip.devices import CAPTURE, distrust, trusted
from clippedgossip.errors import MiscompiledError, RunError
from clippedgossip.mixing.kernels import full_precision
from clippedgossip.records import Round
from clippedgossip.simulate.consensus import refuse_disconnected
from clippedgossip.simulate.exchange import Mixer
from clippedgossip.simulate.footprint import refuse_what_does_not_fit
from clippedgossip.simulate.selfcheck import SLACK, Fault, Proof, same_models
from clippedgossip.simulate.setup import Setup
from clippedgossip.simulate.stack import Crew
from clippedgossip.simulate.state import Moment, State


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
    """Several runs of one shape in step: same data, model, batch and training, any networks, rules, attacks
    and seeds. Each gives what it would give alone, up to rounding."""
    stack = Stack(setups, torch.device(device), states)
    while stack.round < stack.training.rounds:
        stack.advance()
        records = stack.evaluate() if stack.training.evaluates(stack.round) else [None] * len(setups)
        yield [
            Moment(stack.round, record, partial(stack.state, index)) for index, record in enumerate(records)
        ]


class Stack:
    """The workers of all runs in one tensor, and a round of them all."""

    def __init__(self, setups: Sequence[Setup], device: torch.device, states: Sequence[State] | None) -> None:
        first = setups[0].training
        if any(setup.training != first for setup in setups):
            raise RunError("runs that go together must share their [training] section")
        self.training, self.device = first, find_device(device)
        for setup in setups:
            refuse_disconnected(setup.network)
        self.setups = [replace(setup, task=setup.task.to(self.device)) for setup in setups]
        self.crew = Crew([setup.task for setup in self.setups], first.precision)
        refuse_what_does_not_fit(self.crew, self.setups, self.device)
        self.models, self.momentum, self.half = (
            aligned(len(self.crew), setups[0].task.layout.size, self.device) for _ in range(3)
        )
        self.losses = torch.zeros(len(self.models), device=self.device)
        self.round = self._began = 0
        self.parts = self.crew.parts
        for setup, part in zip(self.setups, self.parts, strict=True):
            self.models[part] = setup.task.initial()
        self.mixers = [
            Mixer(setup, self.crew, part) for setup, part in zip(self.setups, self.parts, strict=True)
        ]
        self.clock = Clock(self.device)
        self._round = self._captured if self._captures else self._plain
        self._graph: torch.cuda.CUDAGraph | None = None
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high" if first.precision == "tf32" else "highest")
        self.crew.rehearse(self.models)
        self._local_step = self.crew.local_step()
        if states is not None:
            self.restore(states)

    def advance(self) -> None:
        """One round of Algorithm 1."""
        lr, gain = self.training.lr.at(self.round), self.training.momentum.gain(self.round == 0)
        self.clock.set(self.round, lr, gain)
        proof = self._proof()
        before = None if proof is None else self.momentum[proof.rows]
        replayed = self._graph is not None
        self._round()
        if proof is not None and before is not None:
            with suppress(torch.OutOfMemoryError):  # there is room for the run alone
                self._inspect_gradients(proof, before, gain)
                if replayed:
                    self._inspect_replay(proof, lr)
        self.round += 1

    @torch.no_grad()
    def _proof(self) -> Proof | None:
        """What to hold a round to: the first that is done here, the second, the fourth, … and the last, since
        what is wrong may at first be too little to be seen."""
        done = self.round - self._began
        last = self.round + 1 == self.training.rounds
        return None if done & (done + 1) and not last else self.crew.prove(self.models, self.clock.round)

    @torch.no_grad()
    def _inspect_gradients(self, proof: Proof, before: Tensor, gain: tuple[float, float]) -> None:
        """They are what moved the momentum, captured or not."""
        rows, (keep, take) = proof.rows, gain
        old = keep * before
        gradients = (self.momentum[rows] - old) / take
        rounding = SLACK * torch.finfo(old.dtype).eps * old.abs() / take
        self.crew.inspect(proof, gradients, rounding, self.losses[rows], self.clock.round)

    @torch.no_grad()
    def _inspect_replay(self, proof: Proof, lr: float) -> None:
        """The rest of a round that was repeated as it was captured."""
        fault = proof.of_half_step(self.half[proof.rows], self.momentum[proof.rows], lr)
        for mixer, part in zip(self.mixers, self.parts, strict=True):
            fault = fault or self._mixed_again(mixer, part)
        if fault is not None:
            distrust(CAPTURE)
            raise MiscompiledError(
                f"PyTorch {torch.__version__} repeats what was captured of round {self.round + 1} wrongly: "
                f"{fault}\nstarted again, the run has its rounds left uncaptured, right and slower"
            )

    def _mixed_again(self, mixer: Mixer, part: slice) -> Fault | None:
        """What mixing that is not captured finds wrong."""
        if not mixer.capturable:
            return None
        rows, columns = self.models[part].shape
        clips, again = mixer.clips.clone(), aligned(rows, columns, self.device)
        try:
            with full_precision():
                mixer.mix(self.half[part], again, self.clock.round, self.training.rounds)
        finally:
            mixer.clips.copy_(clips)
        return same_models("mixing", self.models[part], again)

    @property
    def _captures(self) -> bool:
        """A module of the user's own asks the host as it likes."""
        return self.device.type == "cuda" and self.crew.work.stacks and trusted(CAPTURE)

    def _plain(self) -> None:
        self._first_part()
        self._second_part()

    @torch.no_grad()
    def _first_part(self) -> None:
        """The local steps, and the mixing that never asks the host."""
        self._local_step(self.models, self.momentum, self.half, self.losses, *self.clock.hands)
        self._mix(capturable=True)

    @torch.no_grad()
    def _second_part(self) -> None:
        self._mix(capturable=False)

    def _mix(self, *, capturable: bool) -> None:
        with full_precision():
            for mixer, part in zip(self.mixers, self.parts, strict=True):
                if mixer.capturable is capturable:
                    mixer.mix(self.half[part], self.models[part], self.clock.round, self.training.rounds)

    def _captured(self) -> None:
        """The first part of the round as one CUDA graph."""
        if self._graph is None:
            self._first_part()  # this round's work, and all that is compiled or allocated once
            self._graph = self._capture()
        else:
            self._graph.replay()
        self._second_part()

    def _capture(self) -> torch.cuda.CUDAGraph:
        saved = [tensor.clone() for tensor in self._mutable()]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._first_part()
        for tensor, value in zip(self._mutable(), saved, strict=True):
            tensor.copy_(value)
        return graph

    def _mutable(self) -> list[Tensor]:
        return [self.models, self.momentum, self.half, self.losses, *(mixer.clips for mixer in self.mixers)]

    @torch.no_grad()
    def evaluate(self) -> list[Round]:
        return [
            mixer.evaluate(self.models[part], self.losses[part], self.round, self.training)
            for mixer, part in zip(self.mixers, self.parts, strict=True)
        ]

    def state(self, index: int) -> State:
        return State(self.round, {name: tensor.clone() for name, tensor in self._held(index).items()})

    def restore(self, states: Sequence[State]) -> None:
        rounds = {state.round for state in states}
        if len(rounds) != 1 or len(states) != len(self.setups):
            raise RunError(f"runs that go together must stand at one round, these stand at {sorted(rounds)}")
        self.round = self._began = rounds.pop()
        for index, state in enumerate(states):
            for name, tensor in self._held(index).items():
                tensor.copy_(state.fitting(name, tensor.shape))

    def _held(self, index: int) -> dict[str, Tensor]:
        """What one run must remember."""
        part = self.parts[index]
        return {
            "models": self.models[part],
            "momentum": self.momentum[part],
            "clips": self.mixers[index].clips,
        }


def aligned(rows: int, columns: int, device: torch.device) -> Tensor:
    """Zeros whose rows all start on a boundary a GPU can read in wide words."""
    return torch.zeros(rows, -(-columns // 64) * 64, device=device)[:, :columns]


class Clock:
    """What changes from round to round, as tensors, so that a captured round can read it."""

    def __init__(self, device: torch.device) -> None:
        self.round = torch.zeros((), dtype=torch.int64, device=device)
        self.lr, self.keep, self.gain = (torch.zeros((), device=device) for _ in range(3))

    @property
    def hands(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.round, self.lr, self.keep, self.gain

    def set(self, round: int, lr: float, gain: tuple[float, float]) -> None:
        self.round.fill_(round)
        self.lr.fill_(lr)
        self.keep.fill_(gain[0])
        self.gain.fill_(gain[1])


def find_device(device: torch.device) -> torch.device:
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RunError(
            "device is 'cuda', but this machine has no GPU that PyTorch can use; take device 'cpu'"
        )
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # kernels are launched, and graphs captured, on the current device
    return device
