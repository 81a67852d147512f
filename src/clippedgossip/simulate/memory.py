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
    activations = 0
    if isinstance(crew.task.module, nn.Sequential) and layers.supported(crew.task.module):
        each = layers.activation_elements(crew.task.module, crew.task.data.shape)
        activations = n * crew.task.batch * each * crew.work.dtype.itemsize
    return copies * n * d * 4 + data + activations


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
