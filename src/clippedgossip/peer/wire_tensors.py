"""Models as flat vectors, and vectors as bytes on the wire."""

import re
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from clippedgossip.errors import PeerError
from clippedgossip.peer.wire import Body

_WRAPPERS = re.compile(r"\b(module|_orig_mod)\.")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def flatten(parameters: Iterable[Tensor]) -> Tensor:
    """A fresh float32 vector on the CPU: parameters in their order, one after the other."""
    pieces = [parameter.detach().reshape(-1) for parameter in parameters]
    devices = {piece.device for piece in pieces if piece.is_cuda}
    size = sum(piece.numel() for piece in pieces)
    out = torch.empty(size, dtype=torch.float32, device="cpu", pin_memory=bool(devices))
    start = 0
    for piece in pieces:
        out[start : start + piece.numel()].copy_(piece, non_blocking=piece.is_cuda)
        start += piece.numel()
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    return out


def streams(parameters: Iterable[Tensor]) -> list[torch.cuda.Stream]:
    """Where the caller's work on the parameters is queued; every thread has streams of its own."""
    return [torch.cuda.current_stream(device) for device in {p.device for p in parameters if p.is_cuda}]


def blocks(parameters: Iterable[Tensor], most: int) -> Iterator[list[Tensor]]:
    """The parameters in groups of at most `most` coordinates, each a view, cut where they are larger."""
    group: list[Tensor] = []
    held = 0
    for parameter in parameters:
        rows = parameter.view(-1) if parameter.is_contiguous() else parameter
        for piece in torch.split(rows, max(1, most * len(rows) // max(1, rows.numel()))):
            if group and held + piece.numel() > most:
                yield group
                group, held = [], 0
            group.append(piece)
            held += piece.numel()
    yield group


def unflatten(vector: Tensor, parameters: Iterable[Tensor]) -> None:
    """Writes a vector back into the parameters it came from, whatever their device and dtype."""
    start = 0
    with torch.no_grad():
        for parameter in parameters:
            piece = vector[start : start + parameter.numel()]
            parameter.copy_(piece.view(parameter.shape))
            start += parameter.numel()


def trainable(model: nn.Module) -> list[Tensor]:
    """What travels: the parameters that are trained (`requires_grad`), complex ones as pairs of numbers,
    shared ones once. Frozen parameters and buffers (batch-norm statistics, counters) stay each peer's own."""
    found = [
        torch.view_as_real(parameter.detach()) if parameter.is_complex() else parameter.detach()
        for _, parameter in _trained(model)
    ]
    if not found:
        raise PeerError(
            f"{type(model).__name__} has no parameters to mix: none has requires_grad; "
            "give the module that is trained"
        )
    return found


def tensor_names(model: nn.Module) -> tuple[str, ...]:
    """Name and shape of each tensor that travels, for hello. What wraps a module leaves no trace in them."""
    return tuple(
        f"{_WRAPPERS.sub('', name)} {'x'.join(map(str, parameter.shape))}"
        for name, parameter in _trained(model)
    )


def _trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def to_bytes(vector: Tensor, dtype: str) -> Body:
    """The vector as it travels; without a copy when the wire is float32. A finite number beyond the largest
    of the wire is sent as that one: Inf would be a violation."""
    sent = vector.to(DTYPES[dtype]).contiguous()
    if sent.dtype != vector.dtype and not is_finite(sent):
        most = torch.finfo(sent.dtype).max
        sent = torch.where(vector.isfinite(), sent.clamp(-most, most), sent)
    return sent.view(torch.uint8).numpy().data


def row_memory(row: Tensor, dtype: str) -> memoryview | None:
    """Where a message can be received in place; None when it must be widened afterwards."""
    return row.view(torch.uint8).numpy().data if dtype == "float32" else None


def widen(body: memoryview, dtype: str, row: Tensor) -> None:
    """Writes a received message into a float32 row."""
    row.copy_(torch.frombuffer(body, dtype=DTYPES[dtype]))


def is_finite(row: Tensor) -> bool:
    """Whether every element is finite. A huge message is no fault here: the rule bounds it."""
    return all(bool(torch.isfinite(end)) for end in row.aminmax()) if row.numel() else True
