"""The local step: optimizers (Algorithm 1's momentum first), learning rates, the half-step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from clippedgossip.decode import Kind
from clippedgossip.errors import ConfigError, RunError, kind_of, unknown_name

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from clippedgossip.tasks.workers import Workers

HELD = frozenset({"models", "buffers", "clips", "sent", "memory", "drawn"})
"""What a run keeps beside the slots of an optimizer, also in a checkpoint."""
RateSchedule = Literal["constant", "drops", "cosine"]
Batches = Literal["random", "epochs", "same-epochs"]
"""Drawn with replacement; each sample once in an epoch; so, and every epoch has the same batches."""
SMALLEST, LARGEST = 1e-37, 1e38  # learning rates; they are float32 when they are used


@dataclass(frozen=True)
class Optimizer(ABC):
    """What a worker does with its gradient g at x: x½ ← x − η · direction(g).

    The paper's theory covers Algorithm 1's momentum with one step between exchanges, without weight decay
    and clipping. The exchange and its robustness are the same under every optimizer.
    """

    slots: ClassVar[tuple[str, ...]] = ()
    """Names of the vectors that it keeps for each worker, also in a checkpoint."""
    weight_decay: float = field(default=0.0, kw_only=True)
    """λ: g ← g + λ x; AdamW's is x ← (1 − η λ) x instead."""
    clip_gradient: float | None = field(default=None, kw_only=True)
    """g ← g · min(1, clip / ‖g‖), for each worker; before weight decay."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay is {self.weight_decay}; it must be at least 0 and finite")
        if self.clip_gradient is not None and not 0 < self.clip_gradient < math.inf:
            raise ConfigError(f"clip_gradient is {self.clip_gradient}; it must be above 0 and finite")
        if used := sorted(HELD.intersection(self.slots)):
            raise ConfigError(f"{type(self).__name__} has a slot {used[0]!r}; the name is taken, rename it")

    def numbers(self, done: int) -> tuple[float, ...]:
        """What changes from step to step, after `done` steps; a captured round reads it from the clock."""
        return ()

    def update(
        self,
        models: "Tensor",
        half: "Tensor",
        gradients: "Sequence[Tensor]",
        state: "Sequence[Tensor]",
        lr: "Tensor",
        numbers: "Sequence[Tensor]",
    ) -> None:
        """Write x½ into `half` (which may be `models`) and the new slots into `state`.

        The gradients come in pieces (n, …) that lie side by side in the vectors (n, d).
        """
        start, keeps = 0, type(self).__module__ == __name__
        for piece in self.clipped(gradients):
            flat = rows_of(piece)
            part = slice(start, start + flat.shape[1])
            start += flat.shape[1]
            held = [slot[:, part] for slot in state]
            own = flat.to(models.dtype, copy=not keeps)  # one of the user's own may change it
            moved = self.step(models[:, part], own, held, lr, numbers)
            if getattr(moved, "shape", None) != flat.shape:
                kind = tuple(moved.shape) if hasattr(moved, "shape") else kind_of(moved)
                raise RunError(
                    f"step of {type(self).__name__} returns {kind} for x of shape {tuple(flat.shape)}\n"
                    "return x½, of the shape of x"
                )
            half[:, part] = moved

    @abstractmethod
    def step(
        self, x: "Tensor", g: "Tensor", held: "Sequence[Tensor]", lr: "Tensor", numbers: "Sequence[Tensor]"
    ) -> "Tensor":
        """x½ of a piece; the slots in `held` are changed in place."""

    def clipped(self, gradients: "Sequence[Tensor]") -> "Sequence[Tensor]":
        """The gradients, clipped if that was asked for."""
        if self.clip_gradient is None:
            return gradients
        squares = [rows_of(piece).float().square().sum(1) for piece in gradients]
        # 1e-6 as in torch.nn.utils.clip_grad_norm_: a gradient of zero stays zero.
        scale = (self.clip_gradient / (sum(squares[1:], squares[0]).sqrt() + 1e-6)).clamp_max(1.0)
        return [piece * scale.view(-1, *[1] * (piece.dim() - 1)).to(piece.dtype) for piece in gradients]

    def decayed(self, x: "Tensor", g: "Tensor") -> "Tensor":
        """g + λ x."""
        return g + self.weight_decay * x if self.weight_decay else g


@dataclass(frozen=True)
class Momentum(Optimizer):
    """Algorithm 1's: m ← a·m + b·g and x½ ← x − η m; in the first step m is the gradient itself."""

    slots: ClassVar[tuple[str, ...]] = ("momentum",)

    @abstractmethod
    def gain(self, first: bool) -> tuple[float, float]:
        """(a, b) of m ← a·m + b·g."""

    def numbers(self, done: int) -> tuple[float, ...]:
        return self.gain(done == 0)

    def update(
        self,
        models: "Tensor",
        half: "Tensor",
        gradients: "Sequence[Tensor]",
        state: "Sequence[Tensor]",
        lr: "Tensor",
        numbers: "Sequence[Tensor]",
    ) -> None:
        if self.weight_decay:
            super().update(models, half, gradients, state, lr, numbers)
        else:
            half_step(models, state[0], half, self.clipped(gradients), (numbers[0], numbers[1]), lr)

    def step(
        self, x: "Tensor", g: "Tensor", held: "Sequence[Tensor]", lr: "Tensor", numbers: "Sequence[Tensor]"
    ) -> "Tensor":
        (m,), (keep, take) = held, numbers
        m.copy_(keep * m + take * self.decayed(x, g))
        return x - lr * m


@dataclass(frozen=True)
class HeavyBall(Momentum):
    """PyTorch's form: m ← β m + g. The experiments' tables use it."""

    beta: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta < 1:
            raise ConfigError(f"momentum beta is {self.beta}; it must be at least 0 and below 1")

    def gain(self, first: bool) -> tuple[float, float]:
        return (0.0, 1.0) if first else (self.beta, 1.0)


@dataclass(frozen=True)
class Averaged(Momentum):
    """Algorithm 1's form: m ← (1−α) m + α g, with m⁰ = g(x⁰). α = 1 is no momentum."""

    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha <= 1:
            raise ConfigError(f"momentum alpha is {self.alpha}; it must be above 0 and at most 1")

    def gain(self, first: bool) -> tuple[float, float]:
        return (0.0, 1.0) if first else (1 - self.alpha, self.alpha)


@dataclass(frozen=True)
class SGD(Optimizer):
    """x½ ← x − η g: no momentum, no memory for it. The theory's Algorithm 1 with α = 1."""

    def step(
        self, x: "Tensor", g: "Tensor", held: "Sequence[Tensor]", lr: "Tensor", numbers: "Sequence[Tensor]"
    ) -> "Tensor":
        return x - lr * self.decayed(x, g)


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """PyTorch's AdamW: m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², x½ ← (1−ηλ)x − η m̂/(√v̂ + ε).

    No theorem of the paper covers it. Each worker keeps m and v of its own; they are never sent.
    """

    slots: ClassVar[tuple[str, ...]] = ("first_moment", "second_moment")
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"adamw's {name} is {getattr(self, name)}; it must be at least 0 and below 1"
                )
        if not 0 < self.epsilon < math.inf:
            raise ConfigError(f"adamw's epsilon is {self.epsilon}; it must be above 0, such as 1e-8")

    def numbers(self, done: int) -> tuple[float, ...]:
        """1 / (1 − β₁ᵗ) and √(1 − β₂ᵗ), of m̂ and √v̂."""
        return 1 / (1 - self.beta1 ** (done + 1)), math.sqrt(1 - self.beta2 ** (done + 1))

    def step(
        self, x: "Tensor", g: "Tensor", held: "Sequence[Tensor]", lr: "Tensor", numbers: "Sequence[Tensor]"
    ) -> "Tensor":
        m, v = held
        m.copy_(self.beta1 * m + (1 - self.beta1) * g)
        v.copy_(self.beta2 * v + (1 - self.beta2) * g * g)
        moved = m * numbers[0] / (v.sqrt() / numbers[1] + self.epsilon)
        return x - lr * (moved + self.weight_decay * x)


SHARED = ("weight_decay", "clip_gradient")
"""What every optimizer has; keys of [training] beside its name."""
OPTIMIZER = Kind(
    word="optimizer",
    names={"momentum": HeavyBall, "sgd": SGD, "adamw": AdamW},
    base=Optimizer,
    group="clippedgossip.optimizers",
    fix="make it a subclass of clippedgossip.step.Optimizer",
    offered=SHARED,
)
"""`training.momentum` says β of the default, Algorithm 1's momentum."""


def momentum_of(form: str, weight: float, **more: Any) -> Momentum:
    """The momentum of a form; `weight` is that of the old momentum, so the paper's α is 1 − weight."""
    return HeavyBall(weight, **more) if form == "pytorch" else Averaged(round(1 - weight, 12), **more)


def momentum_words(momentum: HeavyBall | Averaged) -> dict[str, Any]:
    """What [training] says to get this momentum."""
    if isinstance(momentum, HeavyBall):
        return {"momentum": momentum.beta, "momentum_form": "pytorch"}
    return {"momentum": round(1 - momentum.alpha, 12), "momentum_form": "paper"}


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """η of a round: `initial`, multiplied by `factor` at each of the rounds in `drops`; or, with the schedule
    "cosine", initial · ½(1 + cos π·t/T) down to 0 after the last round T. In the first `warmup` rounds η
    rises linearly to it. The theory's η is constant. All local steps of a round have the same η."""

    initial: float = 0.01
    drops: tuple[int, ...] = ()
    factor: float = 0.1
    schedule: RateSchedule = "drops"
    warmup: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ConfigError(f"the learning rate's factor is {self.factor}; it must be above 0, such as 0.1")
        dropped = math.prod([self.initial, *[self.factor] * len(self.drops)])
        for rate, when in ((self.initial, ""), (dropped, " after its drops")):
            if not SMALLEST <= rate <= LARGEST:
                bounds = f"above 0, from {SMALLEST:g} to {LARGEST:g}"
                raise ConfigError(f"the learning rate is {rate}{when}; it must be {bounds} (float32)")
        if min(self.drops, default=0) < 0:
            raise ConfigError(f"the learning rate drops at round {min(self.drops)}; rounds count from 0")
        if self.schedule not in get_args(RateSchedule):
            raise ConfigError(unknown_name("schedule", str(self.schedule), get_args(RateSchedule)))
        if self.drops and self.schedule != "drops":
            raise ConfigError(
                f"the schedule is {self.schedule!r}, but the learning rate also drops at {self.drops[0]}\n"
                "leave the drops out, or take the schedule 'drops'"
            )
        if self.warmup < 0:
            raise ConfigError(f"the learning rate's warm-up is {self.warmup} rounds; it must be at least 0")

    def at(self, round: int, rounds: int) -> float:
        """η of a round, counted from 0, of so many."""
        if round < self.warmup:
            return self.initial * (round + 1) / self.warmup
        if self.schedule == "cosine":
            progress = (round - self.warmup) / max(1, rounds - self.warmup)
            return self.initial * (1 + math.cos(math.pi * min(1.0, progress))) / 2
        return float(self.initial * self.factor ** sum(round >= drop for drop in self.drops))


def rows_of(piece: "Tensor") -> "Tensor":
    """A gradient's piece (n, …) as rows (n, size); of a parameter that is one number it is (n,)."""
    return piece.unsqueeze(-1).flatten(1)


def half_step(
    models: "Tensor",
    momentum: "Tensor",
    half: "Tensor",
    gradients: "Sequence[Tensor]",
    gain: "tuple[Tensor, Tensor]",
    lr: "Tensor",
) -> None:
    """m ← a·m + b·g and x½ ← x − η m, eqs. (m) and (x_half), written into `momentum` and `half`.

    The gradients come in pieces (n, …) that lie side by side in the vectors (n, d).
    """
    import torch  # reading a config needs the numbers above alone

    if models.is_cuda and models.dtype == torch.float32:
        from clippedgossip.mixing.kernels_cuda import half_step_cuda

        half_step_cuda(models, momentum, half, gradients, gain, lr)
        return
    start, (keep, take), rate = 0, (float(gain[0]), float(gain[1])), float(lr)
    for piece in gradients:
        flat = rows_of(piece)
        part = slice(start, start + flat.shape[1])
        start += flat.shape[1]
        moved = momentum[:, part]
        if take == 1:
            torch.add(flat, moved, alpha=keep, out=moved)  # one pass over memory instead of two
        else:
            moved.mul_(keep).add_(flat, alpha=take)
        torch.sub(models[:, part], moved, alpha=rate, out=half[:, part])


class Clock:
    """The numbers that change from step to step, as tensors, so that a captured round can read them."""

    def __init__(self, device: "torch.device", numbers: int) -> None:
        import torch

        self.round, self.step = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(2))
        self.lr = torch.zeros((), device=device)
        self.numbers = [torch.zeros((), device=device) for _ in range(numbers)]

    def set(self, round: int, step: int, lr: float, numbers: Sequence[float]) -> None:
        """Go to a step of a round, with its learning rate and the optimizer's numbers."""
        self.round.fill_(round)
        self.step.fill_(step)
        self.lr.fill_(lr)
        for held, number in zip(self.numbers, numbers, strict=True):
            held.fill_(number)


class LocalStep:
    """The local steps of all workers between two exchanges. Make it after `check_compiled`.

    Step h of round t draws the batch of number t·H + h; with H = 1 that is the round.
    """

    def __init__(self, workers: "Workers", optimizer: Optimizer) -> None:
        from clippedgossip.devices import aligned_zeros, compiled
        from clippedgossip.tasks.models import content

        self.workers, self.optimizer, self.steps = workers, optimizer, workers.local_steps
        device, size = workers.task.device, workers.task.layout.size
        self.clock = Clock(device, len(optimizer.numbers(0)))
        self.state = {name: aligned_zeros(len(workers), size, device) for name in optimizer.slots}
        """What a worker keeps beside its model, also in a checkpoint."""
        self.slots = list(self.state.values())
        self.buffers = workers.initial_buffers()
        if self.buffers.shape[1]:
            self.state["buffers"] = self.buffers
        # Compiled separately: compiled together, each image is computed again for every pixel that uses it.
        self.draw, self.gradients = workers.compiled("draw"), workers.compiled("gradients")
        self.update = optimizer.update
        self.kind: tuple[object, ...] | None = None  # that of its compiled form
        if workers.compiles and not (isinstance(optimizer, Momentum) and optimizer.weight_decay == 0):
            held = type(optimizer), content(vars(optimizer))
            self.kind = (*held, workers.task.layout, workers.precision)
            self.update = compiled(self.kind, optimizer.update)
        self.found: dict[bool, tuple[Sequence[Tensor], Tensor]] = {}
        """For the self-check, of workers that are compiled: gradients and losses of the last step that was
        replayed from a CUDA graph (True), and of the last one outside a graph (False)."""

    def set(self, round: int, h: int, lr: float, done: int | None = None) -> None:
        """Go to step h of a round; `done` steps were taken, if it is not all that came before."""
        step = round * self.steps + h
        self.clock.set(round, step, lr, self.optimizer.numbers(step if done is None else done))
        if self.workers.feed is not None:
            self.workers.feed.go_to(step, round)

    def __call__(self, models: "Tensor", half: "Tensor", losses: "Tensor") -> None:
        """One step: x½ ← x − η · direction(g(x)), written into `half`. The mean of the round's losses grows
        in `losses`: set it to zero before the first of several steps."""
        from clippedgossip.devices import capturing

        workers, shares, clock = self.workers, self.workers.shares, self.clock
        x, y = self.draw(shares, clock.step)
        if workers.stacks:
            gradients, found, after = self.gradients(shares, models, self.buffers, x, y, clock.step)
            self.update(models, half, gradients, self.slots, clock.lr, clock.numbers)
            self.buffers.copy_(after)
            if workers.compiles:  # while a graph is captured, its tensors hold no values yet
                self.found[capturing()] = gradients, found
        else:

            def step(i: int, gradient: "Sequence[Tensor]") -> None:
                row, pieces = slice(i, i + 1), [piece[None] for piece in gradient]
                held = [slot[row] for slot in self.slots]
                self.update(models[row], half[row], pieces, held, clock.lr, clock.numbers)

            found = workers.one_by_one(shares, models, self.buffers, x, y, clock.step, step)
        if self.steps == 1:
            losses.copy_(found)
        else:
            losses.add_(found, alpha=1 / self.steps)
