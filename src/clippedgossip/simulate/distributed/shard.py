"""Algorithm 1 over many processes: each rank trains some workers and mixes a slice of all of them."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from clippedgossip.errors import RunError
from clippedgossip.mixing.kernels import full_precision
from clippedgossip.records import Round
from clippedgossip.simulate.distributed.ranks import STOP, Ranks
from clippedgossip.simulate.distributed.same_run import disagreement, fingerprint
from clippedgossip.simulate.distributed.shared_stack import Window
from clippedgossip.simulate.distributed.slice_exchange import SliceMixer
from clippedgossip.simulate.distributed.transpose import Transpose, length
from clippedgossip.simulate.engine import Clock, LocalStep, set_product_precision
from clippedgossip.simulate.footprint import RANK_COPIES, refuse_what_does_not_fit
from clippedgossip.simulate.selfcheck import check_compiled
from clippedgossip.simulate.setup import Setup, refuse_disconnected
from clippedgossip.simulate.state import Moment, State
from clippedgossip.tasks.workers import Workers

BEGIN, ROUND, STATE = 0, 1, 2  # what rank 0 tells the others


def train_distributed(
    setup: Setup, *, ranks: Ranks, device: str | torch.device = "cpu", state: State | None = None
) -> Iterator[Moment]:
    """`train` on rank 0, while the other ranks `follow`: the same records and states, to rounding.

    Only rank 0 sees moments, and a moment's state is gathered when it asks; the others need no files.
    """
    assert ranks.rank == 0
    shard = Shard(setup, ranks, ranks.device(device))
    if state is not None:
        shard.check(state)
    ranks.tell(BEGIN)
    ranks.tell(int(shard.device.type == "cuda"))
    trouble = disagreement(fingerprint(setup, shard.device), ranks)
    if trouble is not None:
        raise RunError(trouble)
    with ranks.busy():
        shard.start(state)
    while shard.round < setup.training.rounds:
        ranks.tell(ROUND)
        with ranks.busy():
            record = shard.advance()
        yield Moment(shard.round, record, shard.state)


def follow(make: Callable[[], Setup], *, ranks: Ranks) -> None:
    """What ranks other than 0 do: as rank 0 says, until it says stop.

    `make` gives the setup, after rank 0 has its own, so that data is fetched once; rank 0 says why it fails.
    """
    assert ranks.rank > 0
    try:
        _obey(make, ranks)
    except BaseException as error:
        ranks.leave(error)
        raise


def _obey(make: Callable[[], Setup], ranks: Ranks) -> None:
    shard: Shard | None = None
    while (word := ranks.hear()) != STOP:
        if word == BEGIN:
            shard = _begin(make, ranks, "cuda" if ranks.hear() else "cpu")
        elif shard is not None:
            with ranks.busy():
                if word == ROUND:
                    shard.advance()
                else:
                    shard.gather()


def over(ranks: Ranks) -> Callable[..., Iterator[list[Moment]]]:
    """`train_together` for the one run that these ranks are for."""

    def engine(
        setups: Sequence[Setup],
        *,
        device: str | torch.device = "cpu",
        states: Sequence[State] | None = None,
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
    except Exception as error:  # whatever it is, it is rank 0 that must tell it
        own = {"problem": str(error) or type(error).__name__}
    if disagreement(own, ranks) is not None:
        return None
    assert shard is not None
    with ranks.busy():
        shard.start(None)
    return shard


class Shard:
    """What one rank holds of a run: the workers `turn.mine` whole, and the slice `turn.here` of all."""

    def __init__(self, setup: Setup, ranks: Ranks, device: torch.device) -> None:
        workers, size = len(setup.task.nodes), setup.task.layout.size
        if ranks.size > workers:
            raise RunError(
                f"{ranks.size} ranks for {workers} workers; each rank needs one at least\n"
                f"start {workers} ranks or fewer: torchrun --nproc-per-node {workers} …"
            )
        refuse_disconnected(setup.network)
        self.ranks, self.device, self.training = ranks, device, setup.training
        self.turn = Transpose(workers, size, ranks)
        self.initial = setup.task.initial()
        task = setup.task.some(self.turn.mine).to(device)
        self.workers = Workers([task], setup.training.precision)
        refuse_what_does_not_fit(self.workers, [setup], device, copies=RANK_COPIES, ranks=ranks.size)
        self.mixer = SliceMixer(setup, self.workers, self.turn)
        self.momentum = torch.zeros(len(task.nodes), size, device=device)
        self.losses = torch.zeros(len(task.nodes), device=device)
        self.round = 0
        self.clock = Clock(device)
        if device.type == "cuda":
            set_product_precision(setup.training.precision)

    @torch.no_grad()
    def advance(self) -> Round | None:
        """One round of Algorithm 1, and its record if it is one to look at."""
        training = self.training
        self.clock.set(self.round, training.lr.at(self.round), training.momentum.gain(self.round == 0))
        self.step()
        self.turn_out()
        self.mix()
        self.turn_home()
        self.round += 1
        self.ranks.settle(self.device)
        if not training.evaluates(self.round):
            return None
        return self.mixer.evaluate_slices(self.mixed, self.models, self.losses, self.round, training)

    def step(self) -> None:
        """x½ of the own workers."""
        self.local_step(self.models, self.momentum, self.half, self.losses, self.clock)

    def turn_out(self) -> None:
        """The first all-to-all."""
        if self.window is not None:
            self.window.slices_of(self.half)
        else:
            self.turn.slices_of(self.half, self.slices, self.models.view(-1))

    def mix(self) -> None:
        """All workers, attackers and all, on the own coordinates."""
        with full_precision():
            self.mixer.mix(self.slices, self.mixed, self.clock.round, self.training.rounds)

    def turn_home(self) -> None:
        """The second all-to-all."""
        if self.window is not None:
            self.window.models_of(self.mixed)
        else:
            self.turn.models_of(self.mixed, self.models, self._other)

    def check(self, state: State) -> None:
        """Raise if a state is not one of this run."""
        whole = (self.turn.workers, self.turn.size)
        for name, shape in (("models", whole), ("momentum", whole), ("clips", self.mixer.clips.shape)):
            state.fitting(name, shape)

    def start(self, state: State | None) -> None:
        """From rank 0's state, or from its starting point x⁰."""
        self._make_room()
        self.models.copy_(self.initial)
        check_compiled(self.workers, self.models)
        self.local_step = LocalStep(self.workers)
        if self.ranks.rank == 0:
            self.round = 0 if state is None else state.round
            self.ranks.tell(self.round)
        else:
            self.round = self.ranks.hear()
        self.mixer.share_constants()
        if self.round == 0:
            self.models.copy_(self.ranks.share(self.initial))
            return
        for name, own in (("models", self.models), ("momentum", self.momentum)):
            self._scatter(None if state is None else state.tensors[name], own)
        self.mixer.clips.copy_(
            self.ranks.share(self.mixer.clips if state is None else state.tensors["clips"])
        )

    def _make_room(self) -> None:
        """Two buffers, back and forth: x½ in one, slices in the other, mixed in the one. After the local step
        the models' own room is free, until the mixed ones come home."""
        turn, device = self.turn, self.device
        shape, sliced = self.momentum.shape, (turn.workers, length(turn.here))
        by_hand = device.type == "cpu" and self.ranks.by_hand
        self.window = Window.opened(turn) if by_hand else None
        one = torch.empty(turn.room, device=device)
        self.half, self.mixed = _shaped(one, *shape), _shaped(one, *sliced)
        if self.window is not None:
            self.models, self.slices = self.window.models, self.window.slices
            return
        self.models = torch.empty_like(self.momentum)
        self._other = torch.empty(turn.room, device=device)
        self.slices = _shaped(self._other, *sliced)

    def state(self) -> State:
        """All of it, on rank 0, in its host's memory: what the stacked engine would give."""
        self.ranks.tell(STATE)
        with self.ranks.busy():
            tensors = self.gather()
        return State(self.round, tensors)

    def gather(self) -> dict[str, Tensor]:
        """Models and momentum of all workers, on rank 0; nothing on the others."""
        found: dict[str, Tensor] = {}
        for name, own in (("models", self.models), ("momentum", self.momentum)):
            if self.ranks.rank:
                self.ranks.send(own, 0)
                continue
            found[name] = torch.empty(self.turn.workers, self.turn.size)
            found[name][self.turn.mine] = own.cpu()
            for source, rows in enumerate(self.turn.rows[1:], 1):
                self.ranks.receive(found[name][rows], source)
        return found | {"clips": self.mixer.clips.clone()} if found else found

    def _scatter(self, whole: Tensor | None, own: Tensor) -> None:
        if whole is None:
            held = torch.empty(own.shape)
            self.ranks.receive(held, 0)
            own.copy_(held)
            return
        for to, rows in enumerate(self.turn.rows[1:], 1):
            self.ranks.send(whole[rows], to)
        own.copy_(whole[self.turn.mine])


def _shaped(room: Tensor, rows: int, columns: int) -> Tensor:
    return room[: rows * columns].view(rows, columns)
