"""Train a network from Python: one call, and a run to iterate over, plot and load models from."""

import atexit
import warnings
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn

from clippedgossip import simulate
from clippedgossip.devices import usual_modes
from clippedgossip.errors import ConfigError, MiscompiledError, RunError, kind_of, unknown_name, warn_user
from clippedgossip.export.frame import data_frame
from clippedgossip.facade.choices import (
    AttackLike,
    Choices,
    DataLike,
    ModelLike,
    OptimizerLike,
    Partition,
    RuleLike,
)
from clippedgossip.facade.recorded_run import RecordedRun, draw_scores, write_report
from clippedgossip.facade.run_folder import run_folder
from clippedgossip.mixing.kernels import mean_model
from clippedgossip.network import Network
from clippedgossip.records import Round
from clippedgossip.report.statistics import over_seeds
from clippedgossip.report.terminal import progress as progress_line
from clippedgossip.report.terminal import score_text
from clippedgossip.runs.execute import Attempt, rounds_in_folder
from clippedgossip.settings import Precision
from clippedgossip.simulate.setup import refuse_what_does_not_fit
from clippedgossip.simulate.state import Moment, State
from clippedgossip.step import LearningRate, Momentum
from clippedgossip.tasks import ParameterLayout, unflatten
from clippedgossip.tasks.objective import LossLike, MetricLike
from clippedgossip.tasks.workers import Workers

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

OnRound = Callable[[int], None]
_STOPPED: "WeakSet[Generator[Moment]]" = WeakSet()
"""Runs with folders that were not trained to the end; what they write last needs a whole interpreter."""


@atexit.register
def _write_stopped() -> None:
    for moments in list(_STOPPED):
        moments.close()


def train(
    network: Network,
    data: DataLike = "digits",
    model: ModelLike = "mlp",
    *,
    rule: RuleLike = "clipped-gossip",
    attack: AttackLike = None,
    partition: Partition = "iid",
    rounds: int = 900,
    batch: int = 32,
    lr: float | LearningRate = 0.01,
    momentum: float | Momentum | None = None,
    optimizer: OptimizerLike = None,
    weight_decay: float = 0.0,
    clip_gradient: float | None = None,
    local_steps: int = 1,
    loss: LossLike = None,
    metric: MetricLike = None,
    augment: bool = False,
    evaluate_every: int | None = None,
    precision: Precision = "float32",
    seed: int = 0,
    device: str | torch.device = "auto",
    progress: bool = True,
    out: str | Path | None = None,
    **training: Any,
) -> "TrainingRun":
    """Train a model on every node of a network, some of them Byzantine (Algorithm 1).

        network = cg.Network(nx.petersen_graph(), byzantine=[7])
        run = cg.train(network, (x, y, x_test, y_test), model, attack=cg.attacks.Dissensus(), rounds=90)
        for record in run:
            print(record.round, record.metrics["accuracy"]["all"])

    "Words" below are what a config has: a name, or a table such as {"name": "clipped-gossip", "radius": 0.5};
    `package.module:Name` names one of your own. `data` is a `tasks.DataSet`, four tensors or arrays (x, y,
    x_test, y_test), or words. `model` is a module (a copy is trained, its present weights are the start), a
    function that makes one (each seed then starts from other weights), or words. `rule` and `attack` are
    objects or words. `partition` is words, such as {"name": "dirichlet", "alpha": 0.1}, or the rows of each
    node: a list in the order of the regular nodes, or {label: rows}. `device="auto"` is the GPU where there
    is one.

    `optimizer` is Algorithm 1's momentum (0.9 unless `momentum` says otherwise), an object of `cg.step`, or
    words: "sgd", "adamw". Each worker takes `local_steps` steps between two exchanges. Every other key of
    [training] is an argument too: lr_schedule="cosine", lr_warmup=20. The paper's theory is for momentum, one
    local step and a constant learning rate.

    The models are tested as in a config's run: every 30 rounds, and every 10 in the last 150. With
    `evaluate_every=5` they are tested after every 5 rounds and after the last one, and at no other time.

    Nothing is trained yet: iterate over the run, call `finish()`, or read a result. With `out="runs"` the run
    has a folder there, as a config's run has: records, checkpoints, a summary. The same call finds a finished
    run, and a stopped run resumes. Other data, weights or code are another run.
    """
    if not isinstance(out, str | Path | None):
        raise ConfigError(f'out is {kind_of(out)}; give the folder for runs: out="runs"')
    choices = Choices.of(**locals())
    recorded = choices.recorded(choices.setup(rule, attack, seed))
    refuse_what_does_not_fit([recorded.setup.task], [recorded.setup], torch.device(choices.device))
    folder = None if out is None else run_folder(recorded, out, choices.device)
    return TrainingRun(recorded, device=choices.device, progress=progress, folder=folder)


class TrainingRun:
    """A run that trains as it is iterated over; iterating again gives the same records.

    If a result is read before the run has begun, it trains to its end first. If it was stopped (by `break` or
    Ctrl-C), its results are those recorded so far; another loop, or `finish()`, continues from there.
    """

    def __init__(
        self,
        recorded: RecordedRun,
        *,
        device: str = "cpu",
        progress: bool = True,
        folder: Attempt | None = None,
    ) -> None:
        self.setup = recorded.setup
        self.device = device
        self._progress = progress
        self._recorded = recorded
        self._state: State | None = None  # as of the last record
        self._moments: Iterator[Moment] | None = None
        self._folder = folder
        self._find()

    @property
    def path(self) -> Path | None:
        """Its folder, with `out=`."""
        return None if self._folder is None else self._folder.run.path

    @property
    def network(self) -> Network:
        """The network that it trains on."""
        return self.setup.network

    @property
    def finished(self) -> bool:
        """Whether its last round is done, or it diverged."""
        return self._recorded.finished

    @property
    def diverged(self) -> str | None:
        """Why the run ended before its last round, if it did."""
        return self._recorded.diverged

    @property
    def records(self) -> list[Round]:
        """One record for each evaluated round."""
        self._begin()
        return list(self._recorded.records)

    @property
    def accuracy(self) -> float | None:
        """The last record's: test accuracy of the average of the regular nodes' models."""
        self._begin()
        return self._recorded.accuracy

    @property
    def score(self) -> float | None:
        """The last record's metric (`setup.task.metric`) of the average of the regular nodes' models."""
        self._begin()
        return self._recorded.score

    @property
    def models(self) -> Tensor:
        """The models as of the last record, on the CPU: a row for each node of `network.regular`."""
        self._begin()
        if self._state is None:
            raise RunError("the run has no record yet\ncall finish(), or iterate over it")
        return self._state.tensors["models"][: len(self.network.regular)].cpu()

    def __iter__(self) -> Iterator[Round]:
        place, held = 0, self._recorded
        while place < len(held.records) or self._advance():
            if place < len(held.records):
                yield held.records[place]
                place += 1
            else:  # the engine started again
                place = 0

    def finish(self) -> Self:
        """Train to the end; shows its progress on a terminal and in a notebook."""
        with shown_progress(self._progress) as tell:

            def show(done: int) -> None:
                score = self._recorded.score
                metric = self._recorded.metric
                label = "training" if score is None else f"{metric} {score_text(metric, score)}"
                tell(label, done, self.setup.training.rounds)

            while self._advance(show):
                pass
        return self

    def load(self, model: nn.Module, node: Hashable | None = None) -> nn.Module:
        """Copy the model of a regular node into `model` and return it; without `node`, the average of the
        regular nodes' models. Frozen parameters and buffers are copied too: it gives what was tested.

            run.load(model, node=0)
        """
        task, expected = self.setup.task, self.setup.task.layout
        whole = task.module.state_dict()
        shapes = {key: held.shape for key, held in whole.items()}
        if (
            not isinstance(model, nn.Module)
            or ParameterLayout.of(model).shapes != expected.shapes
            or {key: held.shape for key, held in model.state_dict().items()} != shapes
        ):
            raise RunError(
                f"the model does not have the {expected.size:,} parameters that were trained\n"
                "give a module built in the same way as the one given to train"
            )
        models, row = self.models, None if node is None else self._row(node)
        vector = mean_model(models) if row is None else models[row]
        model.load_state_dict(whole)
        layout, own = ParameterLayout.of(model), expected.views(vector)
        # By name: this module may have registered its parameters in another order.
        unflatten(layout.flatten(own) if own.keys() == set(layout.names) else vector, model)
        if any(True for _ in model.buffers()):
            assert self._state is not None  # its models are there
            held = self._state.tensors.get("buffers", models[:, :0])[: len(models)]
            with warnings.catch_warnings(), usual_modes(), torch.no_grad():
                warnings.simplefilter("ignore")  # of what training has warned of
                workers = Workers([task])
                mean = mean_model(held)[None]
                last = workers.estimated(vector[None], mean)[0] if row is None else held[row]
                values = {**dict(task.module.named_buffers()), **workers.function.named_buffers(last)}
            for name, buffer in model.named_buffers():  # a state dict may leave some out
                if name in values and values[name].shape == buffer.shape:
                    buffer.detach().copy_(values[name])
        return model

    def frame(self) -> "pandas.DataFrame":
        """A pandas DataFrame with a row for each record."""
        return data_frame([record.to_row() for record in self.records])

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """The metric against the round, on `ax` or on a new figure."""
        if ax is not None and not hasattr(ax, "plot"):
            raise RunError(f"ax is {kind_of(ax)}; give matplotlib Axes, or nothing for a new figure")
        self._begin()
        held = self._recorded
        title = f"against {held.attack}" if held.attack != "none" else ""
        return draw_scores(ax or new_axes(), [over_seeds(held.rule, [held.curve])], held.metric, title=title)

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page about this run; returns its path."""
        self._begin()
        return write_report([self._recorded], path, device=self.device)

    def __repr__(self) -> str:
        held = self._recorded
        against = "" if held.attack == "none" else f" against {held.attack}"
        score = "" if held.score is None else f", {held.metric} {score_text(held.metric, held.score)}"
        where = f"{self.network.n} nodes, round {held.round} of {self.setup.training.rounds}"
        return f"TrainingRun({held.rule}{against} on {where}{score})"

    def _begin(self) -> None:
        if self._moments is None and not self._recorded.records:
            self.finish()

    def _advance(self, on_round: OnRound = lambda done: None) -> bool:
        """Train until the next record; False at the end."""
        if self.finished:
            return False
        if self._moments is None:
            if self._find():
                return True
            self._moments = (
                simulate.train(self.setup, device=self.device, state=self._state)
                if self._folder is None
                else _in_folder(self._folder, self._recorded)
            )
            if isinstance(self._moments, Generator) and self._folder is not None:
                _STOPPED.add(self._moments)
        try:
            for moment in self._moments:
                if moment.record is not None:
                    self._take(moment)
                on_round(moment.round)
                if moment.record is not None:
                    return True
            self._moments = None  # another process has ended the run just now
        except MiscompiledError as error:
            warn_user(str(error))
            self._recorded.forget()
            self._state, self._moments = None, None
            if self._folder is not None:
                self._folder.start_again()
        except BaseException:  # Ctrl-C as well: the round under way is lost, the records are not
            self._moments = None
            if self._folder is not None and self._state is not None:
                with self._folder.run.writing_checkpoint() as path:
                    self._state.save(path)
            raise
        return True

    def _find(self) -> bool:
        """Whether the run in the folder is finished, perhaps by another process: then it is this one."""
        if self._folder is None or not self._folder.run.finished:
            return False
        run = self._folder.run
        self._recorded.records, self._recorded.diverged = list(run.rounds()), run.diverged
        self._state = self._folder.kept()
        return True

    def _take(self, moment: Moment) -> None:
        self._recorded.add(moment)
        self._state = moment.state()
        if self.finished:
            self._moments = None  # and with it the engine's memory
        self._recorded.warn()

    def _row(self, node: Hashable) -> int:
        labels = [self.network.labels[i] for i in self.network.regular]
        texts = list(map(str, labels))
        if node in labels:
            return labels.index(node)
        if str(node) in texts:
            return texts.index(str(node))
        if str(node) in map(str, self.network.labels):
            raise RunError(f"node {node!r} is Byzantine and has no model to load\ngive a regular node")
        raise RunError(unknown_name("node", str(node), texts))


def _in_folder(folder: Attempt, recorded: RecordedRun) -> Iterator[Moment]:
    """Train in the folder, from its checkpoint. No method: that would keep the run, and so the lock."""
    for place, moment in enumerate(rounds_in_folder(folder)):
        if place == 0:
            recorded.records = [record for record in folder.run.rounds() if record.round < moment.round]
        yield moment


def new_axes() -> "Axes":
    """The axes of a new figure, which a notebook shows."""
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(5.6, 3.6), layout="constrained")[1]


def shown_progress(wanted: bool) -> AbstractContextManager[Callable[[str, int, int], None]]:
    """A line on a terminal or in a notebook; nothing in a pipe, or with progress=False."""
    return progress_line() if wanted else nullcontext(lambda label, done, total: None)
