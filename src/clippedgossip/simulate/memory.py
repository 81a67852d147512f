"""How much memory a stack of workers takes, said before anything is allocated."""

import torch
from torch import nn

from clippedgossip.errors import RunError
from clippedgossip.simulate.crew import Crew
from clippedgossip.tasks import layers

MODEL_COPIES = 6  # models, momentum, half-step, gradients, and two on the way through them
RANK_COPIES = 7  # and one on the way between ranks


def bytes_needed(crew: Crew, copies: int = MODEL_COPIES) -> int:
    """Linear in workers × parameters, and in workers × batch × activations."""
    n, d = len(crew), crew.task.layout.size
    data = sum(t.numel() * t.element_size() for t in (crew.task.data.train_x, crew.task.data.test_x))
    return copies * n * d * 4 + data + n * crew.task.batch * activation_bytes(crew)


def activation_bytes(crew: Crew) -> int:
    """What one sample's forward pass leaves for the backward pass."""
    if not (isinstance(crew.task.module, nn.Sequential) and layers.supported(crew.task.module)):
        return 0
    return layers.activation_elements(crew.task.module, crew.task.data.shape) * crew.work.dtype.itemsize


def refuse_what_does_not_fit(crew: Crew, device: torch.device, copies: int = MODEL_COPIES) -> None:
    if device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(device)
    needed = bytes_needed(crew, copies)
    if needed > free:
        raise RunError(
            f"{len(crew)} workers with {crew.task.layout.size:,} parameters need about {needed:,} "
            f"bytes, the GPU has {free:,} free\n"
            "use fewer workers, a smaller batch, or more ranks with torchrun"
        )
