"""The self-check: compare results of a GPU with plain code. Compilers have produced wrong code without an
error.

Compiled functions are compared before the first round. Then rounds 1, 2, 4, 8, … and the last are compared,
each for eight workers: gradients and losses with uncompiled ones; in a round that was replayed from a CUDA
graph also the half-steps, and the mixing of all runs.
"""

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from clippedgossip.devices import CAPTURE, aligned_zeros, distrust, uncollected
from clippedgossip.errors import MiscompiledError, RunError, first_line, warn_user
from clippedgossip.own import own_line
from clippedgossip.step import LocalStep
from clippedgossip.tasks.datasets import at, leaves
from clippedgossip.tasks.workers import Workers

if TYPE_CHECKING:
    from clippedgossip.simulate.engine import Mixer, Stack

COMPARED = 8  # workers compared in a round
ROUNDING = {"float32": 0.01, "tf32": 0.03, "bfloat16": 0.05}
"""A gradient may always be off by this share of its size, for each precision."""
FLIPPED = 10
"""A few workers may be off by this many times as much. Where one sample makes most of a gradient, a ReLU that
rounding switches on or off changes a large part of it. On an H200 in bfloat16 one worker was off by 0.075,
its uncompiled gradient by 0.008; of 215 workers the furthest was off by 0.18 in this parameter."""
FEW = 2  # if at most this many workers are off, it does not count as most of the workers
SMALL_LOSS = 0.05
"""A smaller loss is compared as if it had this size. It is the difference of a log-sum and a score, so it is
rounded to a share of the scores and not of itself. On an H200 in float32 a loss near 0, right as it was, was
off by 0.036 of its size."""
MIXING = 1e-5  # repeated mixing may be off by this share of a model's size
STRIDE = 7919
"""Rows move by this much from round to round. It is a prime, so that all rows are compared in time."""
NEARBY = 4
"""How often plain code is asked again before a result counts as wrong, each time at models that are rounded
otherwise. It may have been lucky where others are not: on an H200 in bfloat16 one worker's gradient of 32
biases, right as it was, was off by 0.58 of its size, its uncompiled gradient by 0.02."""
UNIT = {"float32": 2**-23, "tf32": 2**-10, "bfloat16": 2**-8}  # how far apart neighbouring numbers are
SLACK = 2
"""The distance of compiled gradients from uncompiled ones may be this many times the distance of the
uncompiled ones from the truth. Both round alike: of 215 workers with the CNN in bfloat16, half are less than
0.004 to 0.03 apart and 0.005 to 0.07 from the truth."""


class Discrepancy(NamedTuple):
    """A result of a round that is further off than rounding explains."""

    what: str
    off: float
    allowed: float

    def __str__(self) -> str:
        return f"{self.what}, off by {self.off:.2g} of the result, where rounding explains {self.allowed:.2g}"


@torch.no_grad()
def check_compiled(workers: Workers, models: Tensor) -> None:
    """Compile `draw` and `gradients` and compare them with plain code; what is wrong is not compiled.

    Give the models that the runs start from, also if they resume from a checkpoint: then they use the same
    functions as before.
    """
    workers.compiled("gradients")  # says what the user waits for; it is compiled when it is called
    start = torch.zeros((), dtype=torch.int64, device=models.device)
    reference = Reference.made(workers, models, workers.initial_buffers(), start)
    while reference is not None:
        name = "draw"
        try:
            with uncollected():
                found = reference.wrong_batch()
                if found is None:
                    name = "gradients"
                    found = reference.wrong_compiled_gradients(models)
        except Exception as error:
            if not _of_compiler(error):
                raise
            if distrust(workers.kind(name)) is None:
                raise
            place = own_line(getattr(error, "real_stack", None) or ())  # where the compiler stopped
            why = f"so it is slower, but correct: {first_line(error)}" + (f"\nsee {place}" if place else "")
            warn_user(f"PyTorch cannot compile `{name}` of this model, {why}")
            continue
        if found is None:
            return
        said, now = _distrust(workers, name, found)
        warn_user(f"{said}; it is {now}")


def _of_compiler(error: Exception) -> bool:
    """Whether PyTorch's compiler raised it; some of its errors are of Python's own types."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    raised = type(error).__module__, str(frame.f_globals.get("__name__"))
    return any(where.startswith(("torch._dynamo", "torch._inductor")) for where in raised)


class SelfCheck:
    """Compares rounds of a stack with plain code, and raises `MiscompiledError` where they differ."""

    def __init__(self, stack: "Stack") -> None:
        self.stack = stack
        self.first = stack.round

    @contextmanager
    def round(self) -> Iterator[None]:
        """Put this around a round: `with check.round(): …`. Most rounds are not compared."""
        stack = self.stack
        buffers, step = stack.local_step.buffers, stack.clock.step
        reference = Reference.made(stack.workers, stack.stepping, buffers, step) if self._due else None
        if reference is None:
            yield
            return
        slots = [slot[reference.rows] for slot in stack.local_step.slots]
        replayed = stack.captured is not None and stack.captured.replays
        kept = [[held.clone() for held in mixer.kept.values()] for mixer in stack.mixers if replayed]
        yield
        with suppress(torch.OutOfMemoryError), torch.no_grad():  # the run may need all the memory
            gradients, losses = stack.local_step.found[replayed]
            mine = [piece[reference.rows] for piece in gradients]
            self._check_gradients(reference, mine, losses[reference.rows])
            if replayed:
                self._check_replay(reference, mine, slots, kept)

    @property
    def _due(self) -> bool:
        """Whether to compare: the first round done here, the second, the fourth, … and the last. An error may
        be too small to be seen at first."""
        done, last = self.stack.round - self.first, self.stack.round + 1 == self.stack.training.rounds
        return last or not done & (done + 1)

    def _check_gradients(self, reference: "Reference", gradients: Sequence[Tensor], losses: Tensor) -> None:
        stack = self.stack
        found = reference.wrong_gradients(gradients, losses)
        if found is not None:
            batch = reference.wrong_batch()
            said, now = _distrust(stack.workers, "draw" if batch else "gradients", batch or found)
            raise MiscompiledError(f"{said} in round {stack.round + 1}\nif the run starts again, it is {now}")

    def _check_replay(
        self,
        reference: "Reference",
        gradients: Sequence[Tensor],
        slots: Sequence[Tensor],
        kept: Sequence[Sequence[Tensor]],
    ) -> None:
        """The rest of a round that was replayed from a CUDA graph. `slots` and `kept` are what the optimizer
        and the mixers kept before it."""
        stack, rows, local = self.stack, reference.rows, self.stack.local_step
        slots_now = dict(zip(local.optimizer.slots, local.slots, strict=True))
        given = {"the half-step": stack.half[rows]} | {name: slot[rows] for name, slot in slots_now.items()}
        found = reference.wrong_half_step(given, gradients, slots, local)
        if found is not None and local.kind is not None and (now := distrust(local.kind)):
            raise MiscompiledError(
                f"PyTorch {torch.__version__} compiles the optimizer wrongly: {found} in round "
                f"{stack.round + 1}\nif the run starts again, it is {now}"
            )
        for mixer, part, before in zip(stack.mixers, stack.parts, kept, strict=True):
            found = found or self._wrong_mixing(mixer, part, before)
        if found is not None:
            distrust(CAPTURE)
            raise MiscompiledError(
                f"PyTorch {torch.__version__} replays round {stack.round + 1} wrongly: "
                f"{found}\nif the run starts again, its rounds are not captured: correct, but slower"
            )

    def _wrong_mixing(self, mixer: "Mixer", part: slice, before: Sequence[Tensor]) -> Discrepancy | None:
        """Mix once more, outside the CUDA graph, and compare."""
        if not mixer.capturable:
            return None
        models = self.stack.models[part]
        again = aligned_zeros(len(models), models.shape[1], models.device)
        changed = [mixer.metrics.clips, *mixer.kept.values()]
        after = [held.clone() for held in changed]
        for held, value in zip(changed[1:], before, strict=True):
            held.copy_(value)
        try:
            self.stack.mix_run(mixer, self.stack.half[part], again)
        finally:
            for held, value in zip(changed, after, strict=True):
                held.copy_(value)
        return wrong_models("mixing", models, again)


def _distrust(workers: Workers, name: str, found: Discrepancy) -> tuple[str, str]:
    """What is wrong, and how it is computed from now on. If plain code is wrong too, capturing may be why."""
    now = distrust(workers.kind(name)) or distrust(CAPTURE)
    if now is None:
        raise RunError(
            f"PyTorch {torch.__version__} computes wrongly on this GPU, also uncompiled: {found}\n"
            "take --device cpu, or another version of PyTorch"
        )
    wrong = f"PyTorch {torch.__version__} compiles `{name}` wrongly for this GPU and these sizes"
    return f"{wrong}: {found}", now


class Reference:
    """Some workers' batch, gradients and losses of a round, uncompiled, also in float64.

    Each round has other workers. Each worker is compared by itself, so that a worker that diverges does not
    hide another.
    """

    @torch.no_grad()
    def __init__(self, workers: Workers, models: Tensor, buffers: Tensor, round: Tensor) -> None:
        self.workers, self.round = workers, round
        self.rows = rows_compared(len(models), int(round)).to(models.device)
        layout = workers.task.layout
        self.names = [*(f"the gradient of {name}" for name in layout.names), "the loss"]
        self.floor = ROUNDING[workers.precision]
        self.shares, self.models = workers.shares.some(self.rows), models[self.rows]
        self.buffers = buffers
        self.x, self.y = workers.draw(self.shares, round)
        self.plain = self._gradients(workers, self.models)
        try:
            self.exact = self._gradients(workers.in_float64(), self.models)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a model may make float32 numbers itself, which float64 weights refuse
            self.exact = [piece.double() for piece in self.plain]

    def _gradients(self, workers: Workers, models: Tensor) -> list[Tensor]:
        """Gradients, in pieces, and losses at these models."""
        buffers = self.buffers[self.rows]
        gradients, losses, _ = workers.gradients(self.shares, models, buffers, self.x, self.y, self.round)
        return [*gradients, losses]

    @classmethod
    def made(cls, workers: Workers, models: Tensor, buffers: Tensor, round: Tensor) -> "Reference | None":
        """None if there is no memory for it."""
        try:
            return cls(workers, models, buffers, round)
        except torch.OutOfMemoryError:
            return None

    def wrong_batch(self) -> Discrepancy | None:
        """Compare the batch that the compiled `draw` gives."""
        x, y = self.workers.compiled("draw")(self.workers.shares, self.round)
        return self.batch_differs(at(x, self.rows), at(y, self.rows))

    def batch_differs(self, x: Any, y: Any) -> Discrepancy | None:
        """Compare a batch of these workers."""
        pairs = zip(leaves((x, y)), leaves((self.x, self.y)), strict=True)
        wrong = max(_share_apart(found, right) for found, right in pairs)
        return Discrepancy("the batch", wrong, 0.0) if wrong else None

    def wrong_compiled_gradients(self, models: Tensor) -> Discrepancy | None:
        """Compare what the compiled `gradients` gives at the models of all workers."""
        shares = self.workers.shares
        x, y = self.workers.compiled("draw")(shares, self.round)
        pieces, losses, _ = self.workers.compiled("gradients")(shares, models, self.buffers, x, y, self.round)
        return self.wrong_gradients([piece[self.rows] for piece in pieces], losses[self.rows])

    def wrong_gradients(self, gradients: Sequence[Tensor], losses: Tensor) -> Discrepancy | None:
        """Compare gradients, in pieces, and losses of these workers; returns the largest discrepancy."""
        given = [*gradients, losses]
        found = self._furthest(given, [self.plain])
        return found and self._furthest(given, [self.plain, *self._nearby()])

    def _nearby(self) -> Iterator[list[Tensor]]:
        """What plain code gives at models that differ from these by rounding."""
        random = torch.Generator(self.models.device).manual_seed(int(self.round))
        unit = UNIT[self.workers.precision]
        for _ in range(NEARBY):
            noise = torch.empty_like(self.models).uniform_(-unit, unit, generator=random)
            yield self._gradients(self.workers, self.models * (1 + noise))

    def _furthest(self, given: Sequence[Tensor], rounded: Iterable[Sequence[Tensor]]) -> Discrepancy | None:
        """The largest discrepancy from plain code, where rounding explains the distance of any of `rounded`
        from the truth."""
        sizes = [_norms(piece) for piece in self.exact]
        whole = torch.stack(sizes[:-1]).square().sum(0).sqrt()
        pairs = (zip(pieces, self.exact, strict=True) for pieces in rounded)
        apart = [[_norms(piece.double() - exact) for piece, exact in of] for of in pairs]
        found = []
        for place, (name, piece) in enumerate(zip(self.names, given, strict=True)):
            losses = place == len(given) - 1
            size = torch.maximum(sizes[place], 1e-3 * whole).clamp_min(SMALL_LOSS if losses else 1e-9)
            off = _norms(piece.double() - self.plain[place].double()) / size
            allowed = SLACK * torch.stack([one[place] for one in apart]).amax(0) / size
            flipped = self.floor if losses else FLIPPED * self.floor  # hardly changes the loss
            found.append(_worst(name, off, self.floor + allowed, flipped + allowed))
        return max(filter(None, found), key=lambda one: one.off / one.allowed, default=None)

    def wrong_half_step(
        self,
        given: Mapping[str, Tensor],
        gradients: Sequence[Tensor],
        slots: Sequence[Tensor],
        local: LocalStep,
    ) -> Discrepancy | None:
        """Compare these workers' x½ and the optimizer's slots with its step from the same gradients and the
        former `slots`, in float64."""
        plain, exact = (
            self._updated([piece.to(dtype) for piece in (self.models, *slots)], gradients, local)
            for dtype in (self.models.dtype, torch.float64)
        )
        for (name, found), rounded, right in zip(given.items(), plain, exact, strict=True):
            size = (_norms(right) + _norms(self.models)).clamp_min(1e-9)
            off, fair = _norms(found.double() - right) / size, _norms(rounded.double() - right) / size
            rounding = 4 * torch.finfo(found.dtype).eps + SLACK * fair
            allowed = torch.where(torch.isfinite(size), rounding, torch.nan)
            if (wrong := _worst(name, off, allowed, allowed)) is not None:
                return wrong
        return None

    def _updated(
        self, held: Sequence[Tensor], gradients: Sequence[Tensor], local: LocalStep
    ) -> Sequence[Tensor]:
        models, *state = held
        state, half = [slot.clone() for slot in state], torch.empty_like(models)
        pieces = [piece.to(models.dtype) for piece in gradients]
        local.optimizer.update(models, half, pieces, state, local.clock.lr, local.clock.numbers)
        return [half, *state]


def wrong_models(what: str, found: Tensor, expected: Tensor) -> Discrepancy | None:
    """Compare models (n, d) with the expected ones. Models that are not finite are not compared."""
    parts = (torch.split(models, COMPARED) for models in (found, expected))  # few: float64 takes memory
    pairs = list(zip(*parts, strict=True))
    size = torch.cat([_norms(right) for _, right in pairs]).clamp_min(1e-9)
    off = torch.cat([_norms(one.double() - right.double()) for one, right in pairs]) / size
    allowed = torch.where(torch.isfinite(size), MIXING, torch.nan)
    return _worst(what, off, allowed, allowed)


def _worst(what: str, off: Tensor, allowed: Tensor, at_most: Tensor) -> Discrepancy | None:
    """The worker that is furthest off, if it is too far.

    If most workers, and more than a few, are off by more than `allowed`, that is too far; otherwise only more
    than `at_most` is. Workers whose `allowed` is not finite cannot be compared.
    """
    known = torch.isfinite(allowed)
    wrong = ~(off <= allowed) & known
    bound = allowed if wrong.sum() > max(FEW, int(known.sum()) // 2) else at_most
    excess = torch.where(known, (off / bound).nan_to_num(torch.inf), 0)
    worst = int(excess.argmax())
    return Discrepancy(what, float(off[worst]), float(bound[worst])) if excess[worst] > 1 else None


def rows_compared(n: int, round: int) -> Tensor:
    """Rows from all over the stack, other ones in every round; in round 0 the last row is among them."""
    count = min(n, COMPARED)
    return (n - 1 - torch.arange(count) * n // count - round * STRIDE) % n


def _share_apart(found: Tensor, exact: Tensor) -> float:
    """The share of entries that differ."""
    return float((~torch.isclose(found, exact, rtol=1e-5, atol=1e-6, equal_nan=True)).double().mean())


def _norms(tensor: Tensor) -> Tensor:
    """(n,) norms of each worker's entries."""
    rows = tensor.double().reshape(len(tensor), -1)
    return rows.square().sum(1).sqrt()
