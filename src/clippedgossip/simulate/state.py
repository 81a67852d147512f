"""A checkpoint: a run that resumes from it has the same result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clippedgossip.errors import RunError
from clippedgossip.files import refuse_newer, write_tensors
from clippedgossip.records import Round

FORMAT = "2"  # format of a checkpoint. Version 0.1 wrote no format; its checkpoints are read


@dataclass(frozen=True, eq=False)
class State:
    """The tensors after a number of rounds."""

    round: int
    tensors: dict[str, Tensor]

    def __repr__(self) -> str:
        shapes = (f"{name} {tuple(tensor.shape)}" for name, tensor in self.tensors.items())
        return f"State(round {self.round}: {', '.join(shapes)})"

    def fitting(self, name: str, shape: Sequence[int]) -> Tensor:
        """The tensor of this name; refused if it has another shape."""
        held = self.tensors.get(name)
        if held is None or tuple(held.shape) != tuple(shape):
            raise RunError(f"the checkpoint's {name} do not fit this run; delete it to start again")
        return held

    def refuse_others(self, drawn: Tensor) -> None:
        """Refuse another network, shares or labels: functions that draw without a seed give others."""
        held = self.tensors.get("drawn")
        if held is not None and not torch.equal(held, drawn):
            raise RunError(
                "this checkpoint is of a run with another network, other shares or other labels\n"
                "let functions that draw do so from a parameter `seed`, or delete it to start again"
            )

    def save(self, path: Path | str) -> None:
        """Write as safetensors. Use `RunDirectory.writing_checkpoint` for an atomic write."""
        held = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        write_tensors(Path(path), held, {"round": str(self.round), "format": FORMAT})

    @staticmethod
    def load(path: Path | str) -> "State":
        """Read what `save` wrote."""
        try:
            with safe_open(str(path), framework="pt") as stored:
                metadata = stored.metadata() or {}
                refuse_newer(metadata.get("format", 1), FORMAT, Path(path))
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - not a mapping
            return State(round=int(metadata["round"]), tensors=tensors)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise RunError(f"{path} is no checkpoint ({error}); delete it to start the run again") from error


@dataclass(frozen=True, eq=False)
class Moment:
    """A run after a round."""

    round: int
    record: Round | None  # None if the round was not evaluated
    take: Callable[[], State] = field(repr=False)
    tier: str = ""  # how the models are computed; see `tasks.workers`

    def state(self) -> State:
        """A copy of what the run needs to resume from this round. Ask before the next round is trained."""
        state = self.take()
        if state.round != self.round:
            raise RunError(
                f"the state of round {self.round} is gone: the run is at round {state.round}\n"
                "call moment.state() before the next moment is taken"
            )
        return state
