"""State that survives kill -9 and power cuts: temporary file, fsync, rename; the previous one is kept."""

import contextlib
import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clippedgossip.decode import from_json
from clippedgossip.errors import PeerError
from clippedgossip.files import refuse_newer, replacing, write_tensors

log = logging.getLogger(__name__)
FORMAT = "2"
"""Format of a peer's checkpoint. Version 0.1 wrote no format; its checkpoints are read."""
_KEPT = 2


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything a peer needs to go on: the next round, and tensors."""

    run: str
    round: int
    tensors: Mapping[str, Tensor]


def save(checkpoint: Checkpoint, folder: Path) -> Path:
    """Writes atomically. Raises OSError (disk full); what was there before is then still there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint-{checkpoint.round:09d}.safetensors"
    facts = json.dumps({"format": FORMAT, "run": checkpoint.run, "round": checkpoint.round}, sort_keys=True)
    tensors = _apart(checkpoint.tensors)
    with replacing(path) as temporary:
        write_tensors(temporary, tensors, {"facts": facts, "digest": _digest(facts, tensors)})
    for old in _all(folder)[_KEPT:]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def load(folder: Path, run: str) -> Checkpoint | None:
    """The newest checkpoint of this run that is whole. Raises `PeerError` where there are only damaged ones:
    to start from round 0 without a word would throw the work away."""
    for part in folder.glob(".checkpoint-*.tmp"):  # of a writer that was killed
        with contextlib.suppress(OSError):
            part.unlink()
    damaged = []
    for path in _all(folder):
        found = _read(path)
        if found is None:
            damaged.append(path)
        elif found.run == run:
            for torn in damaged:
                log.error("checkpoint is damaged", extra={"path": str(torn), "going_on_from": found.round})
            return found
    if damaged:
        raise PeerError(
            f"{len(damaged)} checkpoints in {folder} are damaged, and none is whole\n"
            "restore one from a backup, or start anew: `clippedgossip peer start --no-resume` sets them aside"
        )
    return None


def _read(path: Path) -> Checkpoint | None:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        facts = metadata.get("facts", "")
        if metadata.get("digest") != _digest(facts, tensors):
            return None
        known = from_json(facts)
        refuse_newer(known.get("format", 1), FORMAT, path)
        return Checkpoint(run=known["run"], round=known["round"], tensors=tensors)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, each in memory of its own, as safetensors wants it: tied weights are two names for one."""
    found: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        here = tensor.detach().cpu().contiguous()
        if here.untyped_storage().data_ptr() in storages:
            here = here.clone()
        storages.add(here.untyped_storage().data_ptr())
        found[name] = here
    return found


def _all(folder: Path) -> list[Path]:
    found = (
        p for p in folder.glob("checkpoint-*.safetensors") if re.search(r"-\d{9,}\.safetensors$", p.name)
    )
    return sorted(found, key=lambda path: int(path.stem.split("-")[1]), reverse=True)


def _digest(facts: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
