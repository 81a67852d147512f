"""Losses of models that came from others, on samples of one's own: what Mozi compares."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from clippedgossip.peer import wire_tensors as tensors
from clippedgossip.peer.peer_mixing import Losses

ModuleLoss = Callable[[nn.Module, int], Tensor | float]
"""(model, round) -> its loss on this peer's own sample of the round, the same one throughout the round."""


def module_losses(model: nn.Module, loss: ModuleLoss) -> Losses:
    """Each of the vectors in the module's place, in evaluation mode; its own parameters are put back."""

    @torch.no_grad()
    def losses(models: Tensor, round: int) -> Tensor:
        parameters, was_training = tensors.trainable(model), model.training
        own = [parameter.detach().clone() for parameter in parameters]
        model.eval()
        try:
            found = []
            for vector in models:
                tensors.unflatten(vector, parameters)
                found.append(float(loss(model, round)))
        finally:
            model.train(was_training)
            for parameter, before in zip(parameters, own, strict=True):
                parameter.copy_(before)
        return torch.tensor(found, dtype=torch.float64, device=models.device)

    return losses
