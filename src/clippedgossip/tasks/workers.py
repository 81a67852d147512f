"""A task (the data, the share of each node, the model, its loss and its metric) and the workers that train on
it, stacked: their batches, gradients, losses and metrics.

A model trains in one of two tiers. `vmap`: PyTorch's `torch.func` computes all workers in one call. `each`:
worker by worker. Both give the same models, up to rounding, and the same draws of dropout. On a CPU the tier
depends on the model alone.
"""

import copy
import threading
import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import clippedgossip.devices as devices
from clippedgossip.errors import DataError, RunError, UserError, warn_user
from clippedgossip.own import blamed
from clippedgossip.randomness import (
    Word,
    batch_indices,
    epoch_indices,
    hash_bits,
    key,
    own_randomness,
    purpose_word,
    seed_all,
)
from clippedgossip.tasks.augment import crop_flip
from clippedgossip.tasks.datasets import Data, DataSet, at, cast, leaves, mapped
from clippedgossip.tasks.models import (
    CHECKED,
    ParameterLayout,
    build,
    content,
    flatten,
    identity,
    numbers,
    refuse_copies,
)
from clippedgossip.tasks.module_checks import check_module, check_poison
from clippedgossip.tasks.module_function import (
    DTYPES,
    FEW_CHANNELS,
    ModuleFunction,
    activation_cost,
    batched_on_cpu,
    evaluated_at_once,
    evaluation_cost,
    in_format,
)
from clippedgossip.tasks.objective import (
    Loss,
    LossLike,
    Metric,
    MetricLike,
    called,
    chunks,
    find_metric,
    usual_loss,
)
from clippedgossip.tasks.partitions import checked_shares
from clippedgossip.tasks.poison import Poison

if TYPE_CHECKING:
    from clippedgossip.tasks.large_data import Feed

Take = Callable[[int, Sequence[Tensor]], None]
"""(row of the worker, its gradient in pieces that lie side by side in the vector)"""
Tier = Literal["vmap", "each"]
CALLS = (called.__code__, Loss.of_outputs.__code__, Loss.__call__.__code__, Metric.of_batch.__code__)
"""What calls a user's model, loss and metric."""
COMPILER = {"keep_output_stride": False, "triton.autotune_pointwise": False}
"""Gradients of kernels may lie as they were computed. One form of a kernel is compiled where PyTorch would
compile several and time them: a ResNet's first round came 7 s sooner, and its rounds took as long."""
STATISTICS = 8  # batches from which the statistics of an averaged model's batch normalisation are estimated


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What an engine trains on. Tensors share one device; `to` moves them.

    `table[i, :sizes[i]]` are the rows of `data.train_*` that node `nodes[i]` holds; the rest is padding.
    """

    data: DataSet
    nodes: Tensor
    table: Tensor
    sizes: Tensor
    module: nn.Module
    layout: ParameterLayout
    loss: Loss
    metric: Metric
    batch: int
    seed: int
    augment: bool = False
    poison: Poison | None = None
    poisoned: Tensor | None = None  # the places in `nodes` of the nodes whose batches are poisoned
    keeps: bool = False  # whether its module keeps something when it is called, beside its buffers

    def __repr__(self) -> str:
        return (
            f"Task({len(self.nodes)} nodes learn {self.data.name!r}, {type(self.module).__name__} of "
            f"{self.layout.size:,} parameters, batch {self.batch}, seed {self.seed})"
        )

    @property
    def device(self) -> torch.device:
        """Where its data are."""
        return self.table.device

    def to(self, device: torch.device | str) -> "Task":
        """The same task on another device; the module is copied, this one stays where it is."""
        if torch.device(device) == self.device:
            return self
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        module = copy.deepcopy(self.module).to(device)
        return replace(self, data=self.data.to(device), module=module, loss=self.loss.to(device), **moved)

    def initial(self) -> Tensor:
        """The starting point x⁰ (d,), one for all nodes."""
        return flatten(self.module)

    def some(self, rows: slice) -> "Task":
        """The task of some of its nodes."""
        poisoned = self.poisoned
        if poisoned is not None:
            poisoned = poisoned[(poisoned >= rows.start) & (poisoned < rows.stop)] - rows.start
        any_poisoned = poisoned is not None and len(poisoned) > 0
        return replace(
            self,
            nodes=self.nodes[rows],
            table=self.table[rows],
            sizes=self.sizes[rows],
            poison=self.poison if any_poisoned else None,
            poisoned=poisoned if any_poisoned else None,
        )


@devices.usual_modes()
def make_task(
    data: DataSet,
    shares: Sequence[Data | Sequence[int]],
    model: str | nn.Module,
    *,
    seed: int,
    batch: int = 32,
    loss: LossLike = None,
    metric: MetricLike = None,
    nodes: Sequence[int] | None = None,
    augment: bool = False,
    poison: Poison | None = None,
    poisoned: Sequence[int] = (),
) -> Task:
    """Make a task. `shares[i]` are the training rows of node `nodes[i]`; without `nodes`, of node i.

    The present parameters of a module of the user's own become x⁰. Without `loss` it is the cross-entropy
    where the targets are classes, and the mean squared error where they are real numbers. `poisoned` names
    the nodes whose batches go through `poison`.
    """
    if not isinstance(batch, int) or batch < 1:
        raise DataError(f"batch is {batch}; it must be a whole number, at least 1")
    if augment and not (isinstance(data.train_x, Tensor) and len(data.shape) == 3):
        raise DataError(
            f"augment crops and flips images (channels, height, width); these inputs have shape {data.shape}"
        )
    objective = usual_loss(loss, data.classes, model)
    measured = find_metric(metric, objective, data.classes)
    module = model
    if isinstance(module, str):
        if data.classes is None or not isinstance(data.train_x, Tensor):
            raise DataError(
                f"model {model!r} is for classes of plain inputs, but {data.name} has others\n"
                "give a module of your own"
            )
        module = build(module, data.shape, data.classes, seed=seed)
    built_in = isinstance(model, str) and loss is None and metric is None and data.mean is not None
    keeps = False
    if not built_in:
        refuse_copies(type(module).__name__, module, CHECKED - 1)
        keeps = check_module(module, data, objective, measured, batch)
    ids = list(range(len(shares))) if nodes is None else list(nodes)
    rows = checked_shares(shares, ids, data.count)
    unknown = sorted(set(poisoned) - set(ids))
    if unknown:
        raise DataError(f"worker {unknown[0]} is to be poisoned but does not train; name one of nodes")
    if len(poisoned) and poison is None:
        raise DataError(
            "some workers are to be poisoned, but no poison is given; give tasks.FlipLabels(…) or your own"
        )
    if len(poisoned) and poison is not None:
        check_poison(poison, data)
    return Task(
        data=data,
        nodes=torch.tensor(ids),
        table=nn.utils.rnn.pad_sequence(rows, batch_first=True),
        sizes=torch.tensor([len(row) for row in rows]),
        module=module,
        layout=ParameterLayout.of(module),
        loss=objective,
        metric=measured,
        batch=batch,
        seed=seed,
        augment=augment,
        poison=poison if poisoned else None,
        poisoned=torch.tensor([ids.index(node) for node in poisoned]) if poisoned else None,
        keeps=keeps,
    )


class WorkerShares(NamedTuple):
    """What each worker draws its batches from, one row for each worker. These are tensors only: a compiled
    function takes them as arguments and so serves all runs of a shape."""

    seeds: Tensor  # (n,)
    nodes: Tensor  # (n,)
    table: Tensor  # (n, largest share) rows of the training set
    sizes: Tensor  # (n,) how many of them are real; the rest is padding
    train_x: Any
    train_y: Any
    constants: Mapping[str, Tensor]  # of the model: frozen parameters, buffers that never change
    poisoned: tuple[Tensor, ...] = ()  # for each poison, the rows of the workers that it poisons

    def drawn_from(self, purpose: str | None) -> Tensor:
        """(n,) what a purpose's draws come from; no purpose means training."""
        return self.seeds if purpose is None else hash_bits(self.seeds, purpose)

    def rows(self, round: Word, purpose: str | None, batch: int, batches: str = "random") -> Tensor:
        """(n, batch) rows of the training set that a round draws. Epochs are those of training alone."""
        drawn = self.drawn_from(purpose), self.nodes, round, self.sizes, batch
        if purpose is not None or batches == "random":
            places = batch_indices(*drawn)
        else:
            places = epoch_indices(*drawn, same=batches == "same-epochs")
        return self.table.gather(1, places)

    def some(self, rows: slice | Tensor) -> "WorkerShares":
        """The shares of some of the workers."""
        places = torch.arange(len(self.nodes), device=self.nodes.device)[rows]
        return self._replace(
            seeds=self.seeds[rows],
            nodes=self.nodes[rows],
            table=self.table[rows],
            sizes=self.sizes[rows],
            poisoned=tuple(torch.isin(places, which).nonzero()[:, 0] for which in self.poisoned),
        )


class Workers:
    """The workers of one task, or of several tasks that share data, model, loss and batch.

    `draw` and `gradients` take the shares to work on: those of all workers (`workers.shares`) or of some.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        precision: str = "float32",
        *,
        local_steps: int = 1,
        batches: str = "random",
        ahead: bool = False,
    ) -> None:
        """With `ahead`, a step's samples are drawn before it, where the data are larger than the device."""
        first = tasks[0]
        self._shape = _shape(first)  # once: to read numbers from a GPU is to wait for it
        if not all(stackable(first, task) for task in tasks[1:]):
            raise RunError(
                "runs in one stack must have the same data, model, frozen parameters, buffers, loss, batch "
                "and augmentation\nrun them one by one"
            )
        self.task, self.module, self.data = first, first.module, first.data
        self.precision, self.dtype = precision, DTYPES[precision]
        self.local_steps, self.batches = local_steps, batches
        ends = [0, *accumulate(len(task.nodes) for task in tasks)]
        self.parts = [slice(*part) for part in pairwise(ends)]
        """The rows of each task."""
        poisoned = [(task, part.start) for task, part in zip(tasks, self.parts, strict=True) if task.poison]
        self.poisons = tuple(task.poison for task, _ in poisoned if task.poison)
        longest = max(task.table.shape[1] for task in tasks)
        self.tier = self._find_tier(first)
        self.shares = WorkerShares(
            seeds=torch.cat([torch.full_like(task.nodes, task.seed) for task in tasks]),
            nodes=torch.cat([task.nodes for task in tasks]),
            table=torch.cat([functional.pad(t.table, (0, longest - t.table.shape[1])) for t in tasks]),
            sizes=torch.cat([task.sizes for task in tasks]),
            train_x=first.data.train_x,
            train_y=first.data.train_y,
            constants=self.function.constants(),
            poisoned=tuple(task.poisoned + start for task, start in poisoned if task.poisoned is not None),
        )
        self._versions = {name: held._version for name, held in self.shares.constants.items()}
        self.feed: Feed | None = None
        if ahead and first.data.on_host(first.device):
            from clippedgossip.tasks import large_data

            self.feed = large_data.Feed(self.shares, first.batch, batches)
            self.shares = self.feed.shares
        self._threads = threading.local()

    @cached_property
    def function(self) -> ModuleFunction:
        """The model as a pure function; on a GPU convolutions are products."""
        on_gpu = self.task.device.type == "cuda"
        return ModuleFunction(self.module, self.task.loss, on_gpu=on_gpu, precision=self.precision)

    def _find_tier(self, task: Task) -> Tier:
        on_gpu = task.device.type == "cuda"
        batched = on_gpu or batched_on_cpu(task.module)
        rows = torch.arange(2 * task.batch, device=task.device).view(2, -1) % task.data.count
        x, y = task.data.samples(rows, task.device)
        start = task.initial().to(self.dtype).expand(2, -1)
        with self.named_errors("before round 1"):
            self.function.try_once(task.layout.views(start), x, y, batched=batched)
        alone = self.parts[-1].stop == 1  # a peer
        if batched and self.function.obstacle is not None and not alone:
            warn_user(
                f"the model trains worker by worker, since vmap cannot batch {self.function.obstacle}: "
                f"{'on a GPU 10 to 100 times' if on_gpu else 'about twice'} the time of models that it can"
            )
        return "vmap" if batched and self.function.obstacle is None else "each"

    @contextmanager
    def named_errors(self, when: str) -> Iterator[None]:
        """Two lines that name the model, where it or its loss raises what it did not raise when tried."""
        try:
            yield
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            codes = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
            if not codes.intersection(CALLS) or blamed(error) is not None:
                raise  # it is of ours, or of a file that is known to be the cause
            said = (str(error).splitlines() or [""])[0]
            by = self.task.metric if Metric.of_batch.__code__ in codes else self.task.loss
            raise RunError(
                f"{type(self.module).__name__} with {type(by).__name__.lower()} {by.name!r} raised {when}: "
                f"{type(error).__name__}: {said}\n{self._fix(said)}"
            ) from error

    def _fix(self, said: str) -> str:
        if "same device" in said:
            return "it holds a tensor elsewhere; make it a buffer, or take t.to(x.device) in each call"
        if self.dtype != torch.float32 and "dtype" in said:
            make = "give tensors that it makes the dtype of its inputs"
            return f"it computes in {self.precision}: {make}, or take precision tf32"
        outputs = "its outputs must keep their shape and their kind"
        return f"it took the first samples; it must take every batch, and {outputs}"

    @property
    def stacks(self) -> bool:
        """Whether one call computes all workers."""
        return self.tier != "each"

    def initial_buffers(self) -> Tensor:
        """(n, B) of the workers: what training changes beside the parameters; each keeps its own."""
        return self.function.initial_buffers().to(self.task.device).expand(len(self), -1).clone()

    def __len__(self) -> int:
        return len(self.shares.nodes)

    @cached_property
    def activation_bytes(self) -> int:
        """What one sample's forward pass leaves for the backward pass; 0 where it is not known."""
        return activation_bytes(self.task, self.task.device, self.precision)

    @cached_property
    def evaluation_bytes(self) -> int:
        """What a test of one sample takes; 0 where it is not known."""
        return evaluation_bytes(self.task)

    @property
    def compiles(self) -> bool:
        """Whether `compiled` compiles: on a GPU, where one call computes all workers."""
        return self.task.device.type == "cuda" and self.stacks

    def compiled(self, name: str) -> Callable[..., Any]:
        """The method of this name; on a GPU compiled, once for all runs of this shape in the process."""
        function: Callable[..., Any] = getattr(self, name)
        if not self.compiles:
            return function
        # Not with symbolic sizes: `vmap` of a convolution fails to compile with them.
        told = type(self.module).__name__ if name == "gradients" else ""
        from clippedgossip.tasks.convolution import GroupedConvolutions  # imports the compiler: a second

        options = {"post_grad_custom_pre_pass": GroupedConvolutions(self.precision), **COMPILER}
        checked = name in ("draw", "gradients")  # before the first round, where an error is a warning
        kind = self.kind(name)
        return devices.compiled(kind, function, dynamic=False, whole=checked, told=told, options=options)

    def lies_channels_last(self, shape: Sequence[int]) -> bool:
        """Whether the compiled gradient of a parameter of this shape lies so: of most convolutions."""
        return self.precision != "float32" and len(shape) == 4 and shape[1] > FEW_CHANNELS

    def kind(self, name: str) -> tuple[object, ...]:
        """What two compiled methods must have in common to be one."""
        draws = (content(self.poisons), self.local_steps, self.batches) if name == "draw" else None
        return (name, self.precision, draws, self.feed is None, *self._shape)

    def in_float64(self) -> "Workers":
        """The same workers, with products in float64."""
        exact = copy.copy(self)
        exact.dtype = torch.float64
        return exact

    def draw(self, shares: WorkerShares, number: Word, purpose: str | None = None) -> tuple[Any, Any]:
        """One batch's inputs (n, batch, *shape), augmented, normalised, poisoned, and targets (n, batch, …).

        Every (seed, node, number, purpose) draws a batch of its own, the same in every engine and peer. No
        purpose means training, whose number is the step's. Other purposes have the round's.
        """
        held = shares.train_x, shares.train_y
        if self.feed is None:
            rows = shares.rows(number, purpose, self.task.batch, self.batches)
        else:
            rows, held = shares.table, held if purpose is None else self.feed.window(purpose)
        x, y = at(held, rows)
        if self.task.augment:
            x = crop_flip(x, shares.drawn_from(purpose)[:, None], shares.nodes, number)
        x = self.data.normalise(x)
        for poison, which in zip(self.poisons, shares.poisoned, strict=True):
            if not len(which):
                continue
            round = number // self.local_steps if purpose is None else number
            bad = poison(at(x, which), at(y, which), round)
            x, y = mapped(lambda leaf, part, which=which: leaf.index_copy(0, which, part), (x, y), bad)
        return x, y

    def gradients(
        self, shares: WorkerShares, models: Tensor, buffers: Tensor, x: Any, y: Any, step: Word
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """g_i(x_i) of every worker on its batch of the step, in pieces (n, …) that lie side by side in the
        vector, its losses (n,), and its buffers (n, B) afterwards."""
        if self.tier == "each":
            found: dict[int, Sequence[Tensor]] = {}
            after = buffers.clone()
            losses = self.one_by_one(shares, models, after, x, y, step, found.__setitem__)
            columns = zip(*map(found.get, range(len(models))), strict=True)
            return [torch.stack(column) for column in columns], losses, after
        # Gradients end at the cast: they are written out once, in the precision of the products.
        views = {name: view.detach().to(self.dtype) for name, view in self.task.layout.views(models).items()}
        return self.function.gradients(views, buffers, self._keys(shares, step), shares.constants, x, y)

    def _keys(self, shares: WorkerShares, step: Word) -> Tensor:
        """(n, 4) what a worker's dropout is drawn from."""
        step = (
            step.expand_as(shares.seeds) if isinstance(step, Tensor) else torch.full_like(shares.seeds, step)
        )
        return torch.stack([shares.seeds, shares.nodes, step, torch.zeros_like(step)], 1)

    @torch.no_grad()
    def losses_of(self, shares: WorkerShares, models: Tensor, x: Any, y: Any) -> Tensor:
        """(m,) loss of each of the models (m, d) on inputs (m, batch, *shape), without dropout. Batch
        normalisation takes the statistics of the batch."""
        views = self.task.layout.views(models.to(self.dtype_of_tests(models)))
        buffers = self.function.initial_buffers().to(models.device).expand(len(models), -1)
        keys = torch.zeros(len(models), 4, dtype=torch.int64, device=models.device)
        with self.function.evaluating(batch_statistics=True):
            if self.tier == "vmap":
                return self.function.losses(views, buffers, keys, shares.constants, x, y)[0]

            def one(i: int) -> Tensor:
                held = {name: view[i] for name, view in views.items()}
                with torch.no_grad():
                    found, _ = self._called(held, buffers[i], keys[i], shares.constants, at(x, i), at(y, i))
                    return torch.as_tensor(found)

            return torch.stack(list(self._each(one, range(len(models)))))

    @torch.no_grad()
    def measures(self, models: Tensor, buffers: Tensor | None = None) -> Tensor:
        """(m, k) the metric's sums over the test set, of models (m, d) with their buffers (m, B), without
        dropout. Without `buffers` they are as those of averages at the start of training."""
        if buffers is None:
            buffers = self.estimated(models, self.initial_buffers()[:1].expand(len(models), -1))
        on_gpu = self.stacks and models.is_cuda
        sums, dtype = self.compiled("sums") if on_gpu else self.sums, self.dtype_of_tests(models)
        found: list[Tensor | float] = [0.0] * len(models)
        rows = evaluated_at_once(self.evaluation_bytes, on_gpu=on_gpu)
        with self._drawing() as draw_from:
            for number, part in enumerate(chunks((self.data.test_x, self.data.test_y), rows)):
                inputs, targets = mapped(lambda leaf: leaf.to(models.device), part)
                x = mapped(lambda leaf: cast(leaf, dtype), self.data.normalise(inputs))
                for place, model in enumerate(models):
                    draw_from(key(0, "test", number))
                    found[place] += sums(self.shares, model.to(dtype), buffers[place], x, targets).double()
        return torch.stack([torch.as_tensor(one) for one in found])

    def dtype_of_tests(self, models: Tensor) -> torch.dtype:
        """Of forward passes alone: on a GPU that of the gradients' products, whose kernels are fast."""
        return self.dtype if self.stacks and models.is_cuda else models.dtype

    def scores(self, models: Tensor, buffers: Tensor | None = None) -> Tensor:
        """(m,) the task's metric on the test set."""
        return self.task.metric.value(self.measures(models, buffers))

    @torch.no_grad()
    def sums(self, shares: WorkerShares, model: Tensor, buffers: Tensor, x: Any, y: Any) -> Tensor:
        """(k,) the metric's sums over a batch, without dropout."""
        metric, views = self.task.metric, self.task.layout.views(model)
        none = torch.zeros(4, dtype=torch.int64, device=model.device)
        # In here, not around the call: compiled, this is a method of the first workers of this kind.
        with self.function.evaluating():
            found, _ = self.function(views, buffers, none, shares.constants, x, y if metric.of_loss else None)
        return metric.of_batch(found, y)

    def estimated(self, models: Tensor, means: Tensor) -> Tensor:
        """(m, B) the buffers that averaged models (m, d) are tested with. Batch normalisation takes
        statistics of a few batches of the training data: an average needs its own. All others are the
        `means` over the nodes."""
        if not self.function.buffers.size:
            return means
        batches, found = self.statistics_batches(), []
        with self._drawing() as draw_from:
            for model, start in zip(models, means, strict=True):
                draw_from(key(0, "statistics"))
                views = self.task.layout.views(model)
                found.append(self.function.estimated(views, start, self.shares.constants, batches))
        return torch.stack(found)

    def refuse_changed_constants(self) -> None:
        """Raise if training has changed a buffer that it left alone when it was tried."""
        for name, held in self.shares.constants.items():
            if held._version != self._versions[name]:
                own = name.removeprefix("module.")
                raise RunError(
                    f"training changes the model's buffer {own}, but only in some calls: workers share it\n"
                    f"change it in every call: self.{own.rpartition('.')[2]}.copy_(torch.where(…))"
                )

    def statistics_batches(self) -> list[Any]:
        """A few batches of inputs, drawn from all of the training data, the same in every round and run."""
        device = self.task.device
        nodes = torch.arange(STATISTICS, device=device)
        sizes = torch.full_like(nodes, self.data.count)
        rows = batch_indices(purpose_word("statistics"), nodes, 0, sizes, self.task.batch)
        return [self.data.samples(some, device)[0] for some in rows]

    @torch.no_grad()
    def one_by_one(
        self, shares: WorkerShares, models: Tensor, buffers: Tensor, x: Any, y: Any, step: Word, take: Take
    ) -> Tensor:
        """(n,) losses. Calls `take` with each worker's gradient, so that one is held at a time; writes the
        new buffers into `buffers`."""
        keys = self._keys(shares, step)

        def one(i: int) -> Tensor:
            # A copy: threads write half-steps into `models` when there are several local steps.
            own = self.task.layout.views(models[i].clone())
            parameters = {name: view.to(self.dtype).requires_grad_() for name, view in own.items()}
            batch = at(x, i), at(y, i)
            with torch.enable_grad():
                loss, after = self._called(parameters, buffers[i], keys[i], shares.constants, *batch)
                buffers[i] = after.detach()
            with torch.no_grad():
                take(i, torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True))
            return loss.detach()

        return torch.stack(list(self._each(one, range(len(models)))))

    def _called(
        self, parameters: Mapping[str, Tensor], buffers: Tensor, own: Tensor, constants: Any, x: Any, y: Any
    ) -> tuple[Tensor, Tensor]:
        """The loss of one worker, and its buffers; each thread has a module of its own."""
        if not buffers.is_cuda:
            held = self.function.memory_format
            parameters = {name: in_format(value, held) for name, value in parameters.items()}
            x = mapped(lambda leaf: in_format(leaf, held), x)
        if not self.function.random:
            if not hasattr(self._threads, "objective"):
                shared = {id(t): t for t in self.function.objective.state_dict(keep_vars=True).values()}
                self._threads.objective = copy.deepcopy(self.function.objective, shared)
            objective = self._threads.objective.train(self.function.objective.training)
            return self.function(parameters, buffers, own, constants, x, y, objective=objective)
        seed, node, step, _ = own.tolist()
        with self._drawing() as draw_from:
            draw_from(key(seed, "forward", node, step))
            return self.function(parameters, buffers, own, constants, x, y)

    @contextmanager
    def _drawing(self) -> Iterator[Callable[[int], None]]:
        """Random numbers that the model draws itself come from the seeds that the function gets; the caller's
        stay as they are."""
        on_gpu = self.task.device.type == "cuda"
        if on_gpu and not self.function.random:
            yield lambda seed: None
            return
        with own_randomness(devices=[self.task.device] if on_gpu else []):
            yield partial(seed_all, on_gpu=on_gpu)

    @property
    def _each(self) -> Callable[[Callable[[int], Tensor], range], Iterable[Tensor]]:
        # The state of the random numbers is one for all threads.
        return devices.each if self.task.device.type == "cpu" and not self.function.random else map


def activation_bytes(task: Task, device: torch.device, precision: str) -> int:
    """What one sample's forward pass on a device leaves for the backward pass, in this precision; 0 for
    modules that cannot be tried."""
    on_gpu = device.type == "cuda"

    def count(x: Any, y: Any) -> int:
        return activation_cost(task.module, task.loss, x, y, on_gpu=on_gpu, precision=precision)

    return _counted(task, (on_gpu, precision), count)


def evaluation_bytes(task: Task) -> int:
    """What a test of one sample takes; 0 for modules that cannot be tried."""
    return _counted(task, (), lambda x, y: evaluation_cost(task.module, task.loss, task.metric, x, y))


def _counted(task: Task, kind: tuple[object, ...], count: Callable[[Any, Any], int]) -> int:
    kind = (*_shape(task), *kind)
    if kind not in _COUNTED:
        x, y = task.data.samples(torch.arange(2) % task.data.count, task.device)
        _COUNTED[kind] = 0
        with suppress(Exception):  # a module of the user's own may do anything with its inputs
            _COUNTED[kind] = count(x, y)
    return _COUNTED[kind]


_COUNTED: dict[tuple[object, ...], int] = {}
"""By what runs must share to be stacked: for each of a hundred runs it would take seconds."""


def stackable(one: Task, other: Task) -> bool:
    """Whether one stack may hold both."""
    same = one is other or _shape(one) == _shape(other)
    return same and _same_data(one, other) and _same_constants(one.module, other.module)


def _same_data(one: Task, other: Task) -> bool:
    a, b = one.data, other.data
    pairs = zip(leaves((a.train_x, a.train_y)), leaves((b.train_x, b.train_y)), strict=True)
    return all(one is other or torch.equal(one, other) for one, other in pairs)


def _same_constants(one: nn.Module, other: nn.Module) -> bool:
    """Whether what no worker trains is the same."""
    if one is other:
        return True
    held = [
        [*(p for p in module.parameters() if not p.requires_grad), *module.buffers()]
        for module in (one, other)
    ]
    return all(torch.equal(a, b) for a, b in zip(*held, strict=True))


def _shape(task: Task) -> tuple[object, ...]:
    """What runs must share to be stacked, and compiled once; of the data, its name, size and scale."""
    data = task.data
    return (
        data.name,
        tuple(tuple(leaf.shape) for leaf in leaves((data.train_x, data.train_y))),
        tuple(None if scale is None else tuple(scale.flatten().tolist()) for scale in (data.mean, data.std)),
        task.layout,
        _of_loss(task.loss),
        content(task.metric),
        task.batch,
        task.augment,
        identity(task.module),
        numbers(task.module) if task.keeps else None,
    )


def _of_loss(loss: Loss) -> Hashable:
    held = loss.function
    return (identity(held), numbers(held)) if isinstance(held, nn.Module) else content(loss)
