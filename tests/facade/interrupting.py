"""Ctrl-C in the midst of a round."""

import torch
from torch.nn import functional


class Interrupting:
    """Cross-entropy that is interrupted at one call."""

    def __init__(self, last: int | None = None) -> None:
        self.calls, self.last = 0, last

    def __reduce__(self) -> str:
        return "Interrupting"  # whatever it has counted, it computes the same

    def __call__(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.last:
            raise KeyboardInterrupt
        return functional.cross_entropy(outputs, labels)
