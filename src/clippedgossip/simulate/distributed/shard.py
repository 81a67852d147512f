"""Algorithm 1 over many processes: each rank trains some workers, and mixes a slice of all workers."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from clippedgossip.errors import RunError
from clippedgossip.mixing.kernels import full_precision
from clippedgossip.records import Round
from clippedgossip.simulate.distributed.ranks import STOP, Ranks
from clippedgossip.simulate.distributed.same_run import disagreement, fingerprint
from clippedgossip.simulate.distributed.shared_memory import SharedStack
from clippedgossip.simulate.distributed.slice_exchange import SliceEvaluation, SliceMixer
from clippedgossip.simulate.distributed.transpose import Transpose, length
from clippedgossip.simulate.engine import set_product_precision
from clippedgossip.simulate.selfcheck import check_compiled
from clippedgossip.simulate.setup import Setup, refuse_disconnected, refuse_what_does_not_fit
from clippedgossip.simulate.state import Moment, State
from clippedgossip.step import LocalStep
from clippedgossip.tasks.workers import Workers

BEGIN, ROUND, STATE = 0, 1, 2  # rank 0's commands


def train_distributed(
    setup: Setup, *, ranks: Ranks, device: str | torch.device = "cpu", state: State | None = None
) -> Iterator[Moment]:
    """`train` on rank 0, while the other ranks `follow`; the same records and states, up to rounding. Only
    rank 0 gets moments. A moment's state is gathered from all ranks when rank 0 asks for it."""
    assert ranks.rank == 0
    shard = Shard(setup, ranks, ranks.device(device))
    if state is not None:
        shard.check(state)
    ranks.send_command(BEGIN)
    ranks.send_command(int(shard.device.type == "cuda"))
    problem = disagreement(fingerprint(setup, shard.device), ranks)
    if problem is not None:
        raise RunError(problem)
    with ranks.working():
        shard.start(state)
    while shard.round < setup.training.rounds:
        ranks.send_command(ROUND)
        with ranks.working():
            record = shard.advance()
        yield Moment(shard.round, record, shard.state, shard.workers.tier)


def follow(make: Callable[[], Setup], *, ranks: Ranks) -> None:
    """What the ranks other than 0 do: follow rank 0's commands until it sends STOP.

    `make` returns the setup. It is called after rank 0 has made its own, so that only rank 0 fetches data. If
    it raises, rank 0 reports the error.
    """
    assert ranks.rank > 0
    shard: Shard | None = None
    try:
        while (command := ranks.receive_command()) != STOP:
            if command == BEGIN:
                shard = _begin(make, ranks, "cuda" if ranks.receive_command() else "cpu")
            elif shard is not None:
                with ranks.working():
                    (shard.advance if command == ROUND else shard.gather)()
    except BaseException as error:
        ranks.report_failure(error)
        raise


def engine_over(ranks: Ranks) -> Callable[..., Iterator[list[Moment]]]:
    """An engine like `train_together`, for one run over these ranks."""

    def engine(
        setups: Sequence[Setup], *, device: str | torch.device = "cpu", states: Sequence[State] | None = None
    ) -> Iterator[list[Moment]]:
        (setup,) = setups
        state = None if states is None else states[0]
        for moment in train_distributed(setup, ranks=ranks, device=device, state=state):
            yield [moment]

    return engine


def _begin(make: Callable[[], Setup], ranks: Ranks, device: str) -> "Shard | None":
    shard = None
    try:
        setup = make()
        shard = Shard(setup, ranks, ranks.device(device))
        own = fingerprint(setup, shard.device)
    except Exception as error:  # rank 0 reports it, whatever it is
        own = {"problem": str(error) or type(error).__name__}
    if disagreement(own, ranks) is not None:
        return None
    assert shard is not None
    with ranks.working():
        shard.start(None)
    return shard


class Shard:
    """One rank's part of a run: whole models of `transpose.own_rows`, and `transpose.own_columns` of all."""

    def __init__(self, setup: Setup, ranks: Ranks, device: torch.device) -> None:
        workers, size = len(setup.task.nodes), setup.task.layout.size
        if ranks.size > workers:
            raise RunError(
                f"{ranks.size} ranks for {workers} workers; each rank needs at least one\n"
                f"start {workers} ranks or fewer: torchrun --nproc-per-node {workers} …"
            )
        refuse_disconnected(setup.network, setup.training.rounds, setup.seed)
        self.ranks, self.device, self.setup, self.training = ranks, device, setup, setup.training
        self.transpose = Transpose(workers, size, ranks)
        self.initial = setup.task.initial()
        task = setup.task.some(self.transpose.own_rows)
        refuse_what_does_not_fit([task], [setup], device, ranks=ranks.size)
        task = task.to(device)
        drawing = setup.training.drawing
        self.workers = Workers([task], setup.training.precision, **drawing, ahead=True)
        self.mixer = SliceMixer(setup, self.workers, self.transpose)
        self.evaluation = SliceEvaluation(self.mixer.metrics, self.workers, self.transpose)
        self.local_step: LocalStep
        self.losses = torch.zeros(len(task.nodes), device=device)
        self.round = 0
        if device.type == "cuda":
            set_product_precision(setup.training.precision)

    @torch.no_grad()
    def advance(self) -> Round | None:
        """One round of Algorithm 1; returns its record if the round is evaluated."""
        training = self.training
        self.mixer.go_to(self.round)
        self.step()
        self.to_slices()
        self.mix()
        self.to_models()
        self.round += 1
        self.ranks.wait_for_nccl(self.device)
        if not training.evaluates(self.round):
            return None
        held = self.models, self.local_step.buffers, self.losses
        return self.evaluation.record(self.mixed, *held, self.round, training)

    def step(self) -> None:
        """The local steps of this rank's workers."""
        rate, steps, start = self.training.rate(self.round), self.training.local_steps, self.models
        self.losses.zero_()
        for h in range(steps):
            self.local_step.set(self.round, h, rate)
            self.local_step(start, self.half, self.losses)
            start = self.half

    def to_slices(self) -> None:
        """The first all-to-all: x½ of own workers -> slices of all workers."""
        if self.shared is not None:
            self.shared.to_slices(self.half)
        else:
            self.transpose.to_slices(self.half, self.slices, self.models.view(-1))

    def mix(self) -> None:
        """x ← rule(x½) of all workers, on this rank's coordinates."""
        with full_precision():
            self.mixer.mix(self.slices, self.mixed, self.local_step.clock.round, self.training.rounds)

    def to_models(self) -> None:
        """The second all-to-all: mixed slices of all workers -> models of own workers."""
        if self.shared is not None:
            self.shared.to_models(self.mixed)
        else:
            self.transpose.to_models(self.mixed, self.models, self._buffer)

    def check(self, state: State) -> None:
        """Raise if a state does not fit this run."""
        state.refuse_others(self.setup.drawn)
        whole = (self.transpose.workers, self.transpose.size)
        buffers = self.workers.initial_buffers().shape[1]
        for name, shape in (
            *((name, whole) for name in ("models", *self.training.optimizer.slots)),
            *([("buffers", (whole[0], buffers))] if buffers else []),
            ("clips", self.mixer.metrics.clips.shape),
            *((name, self._whole(held)) for name, held in self.mixer.kept.items()),
        ):
            state.fitting(name, shape)

    def _whole(self, held: Tensor) -> tuple[int, ...]:
        """The shape, with all coordinates, of what the mixer keeps from round to round."""
        return (*held.shape[:2], self.transpose.size)

    def start(self, state: State | None) -> None:
        """Start from rank 0's state, or from its x⁰."""
        self._allocate()
        self.models.copy_(self.initial)
        if self.workers.compiles:
            check_compiled(self.workers, self.models)
        self.local_step = LocalStep(self.workers, self.training.optimizer)
        if self.ranks.rank == 0:
            self.round = 0 if state is None else state.round
            self.ranks.send_command(self.round)
        else:
            self.round = self.ranks.receive_command()
        self.mixer.share_constants()
        if self.round == 0:
            self.models.copy_(self.ranks.broadcast(self.initial))
            return
        for name, own in self._stored().items():
            self._scatter(None if state is None else state.tensors[name], own)
        clips = self.mixer.metrics.clips
        clips.copy_(self.ranks.broadcast(clips if state is None else state.tensors["clips"]))
        for name, held in self.mixer.kept.items():  # each rank keeps its coordinates of all of them
            whole = torch.empty(self._whole(held)) if state is None else state.tensors[name]
            for rows, of_all in zip(held, whole, strict=True):
                rows.copy_(self.ranks.broadcast(of_all)[:, self.transpose.own_columns])

    def _allocate(self) -> None:
        """Two buffers serve a whole round: the first holds x½, the second slices, the first mixed slices. The
        memory of the models is free between the local step and the second all-to-all."""
        transpose, device = self.transpose, self.device
        shape = (length(transpose.own_rows), transpose.size)
        sliced = (transpose.workers, length(transpose.own_columns))
        may_share = device.type == "cpu" and self.ranks.share_memory
        self.shared = SharedStack.on_one_host(transpose) if may_share else None
        first = torch.empty(transpose.buffer_size, device=device)
        self.half, self.mixed = _shaped(first, *shape), _shaped(first, *sliced)
        if self.shared is not None:
            self.models, self.slices = self.shared.models, self.shared.slices
            return
        self.models = torch.empty(*shape, device=device)
        self._buffer = torch.empty(transpose.buffer_size, device=device)
        self.slices = _shaped(self._buffer, *sliced)

    def state(self) -> State:
        """The state of the whole run, as the engine on one device gives it, in CPU memory of rank 0."""
        self.ranks.send_command(STATE)
        with self.ranks.working():
            tensors = self.gather()
        return State(self.round, tensors | {"drawn": self.setup.drawn})

    def gather(self) -> dict[str, Tensor]:
        """Models and the optimizer's slots of all workers, on rank 0; nothing on the others."""
        found: dict[str, Tensor] = {}
        for name, own in self._stored().items():
            if self.ranks.rank:
                self.ranks.send(own.contiguous(), 0)
                continue
            found[name] = torch.empty(self.transpose.workers, own.shape[1], dtype=own.dtype)
            found[name][self.transpose.own_rows] = own.cpu()
            for source, rows in enumerate(self.transpose.rows[1:], 1):
                self.ranks.receive(found[name][rows], source)
        for name, held in self.mixer.kept.items():
            whole = [self.transpose.gather_everywhere(rows).cpu() for rows in held]
            if not self.ranks.rank:
                found[name] = torch.stack(whole)
        return found | {"clips": self.mixer.metrics.clips.clone()} if found else found

    def _stored(self) -> dict[str, Tensor]:
        """This rank's rows of what a checkpoint holds."""
        return {"models": self.models, **self.local_step.state}

    def _scatter(self, whole: Tensor | None, own: Tensor) -> None:
        """Rank 0's rows of all workers -> each rank's own rows."""
        if whole is None:
            held = torch.empty(own.shape, dtype=own.dtype)
            self.ranks.receive(held, 0)
            own.copy_(held)
            return
        for to, rows in enumerate(self.transpose.rows[1:], 1):
            self.ranks.send(whole[rows].to(own.dtype), to)
        own.copy_(whole[self.transpose.own_rows])


def _shaped(buffer: Tensor, rows: int, columns: int) -> Tensor:
    return buffer[: rows * columns].view(rows, columns)
