"""Check before the first round that all ranks were started for the same run."""

import json
import re

import numpy as np
import torch

from clippedgossip import __version__
from clippedgossip.simulate.distributed.ranks import Ranks
from clippedgossip.simulate.setup import Setup, digest
from clippedgossip.tasks.datasets import at, leaves

FIX = "give all ranks the same config, overrides, data and versions"


def fingerprint(setup: Setup, device: torch.device) -> dict[str, str]:
    """What determines a run: a text for each section of a config."""
    network, task, data, few = setup.network, setup.task, setup.task.data, slice(0, 64)
    return {
        "version": f"clippedgossip {__version__}, torch {torch.__version__}",
        "device": device.type,
        "seed": str(setup.seed),
        "network": f"{network.n} nodes, {digest(network.indptr, network.indices, network.byzantine)}",
        "weights": digest(np.round(network.edge_weights(), 6)),
        "schedule": _plain((network.schedule, network.delay)),
        "data": f"{data.name} {data.shape}, {digest(*leaves(data.train_y), *leaves(at(data.train_x, few)))}",
        "shares": f"batch {task.batch}, {digest(task.nodes, task.table, task.sizes)}",
        "model": _plain(task.layout),
        "rule": _plain(setup.rule),
        "attack": _plain(setup.attack),
        "training": _plain(setup.training),
    }


def disagreement(own: dict[str, str], ranks: Ranks) -> str | None:
    """Why the ranks cannot start, in words; None if they can. All ranks must call this. `own` is this rank's
    fingerprint, or {"problem": …} if it could not make one."""
    given = [json.loads(text) for text in ranks.all_texts(json.dumps(own))]
    for rank, theirs in enumerate(given):
        if "problem" in theirs:
            return f"rank {rank} cannot start: {theirs['problem']}"
    for rank, theirs in enumerate(given):
        differing = [name for name in given[0] if theirs.get(name) != given[0][name]]
        if differing:
            return f"{difference(rank, differing[0], theirs, given[0])}\n{FIX}"
    return None


def difference(rank: int, name: str, theirs: dict[str, str], first: dict[str, str]) -> str:
    """In words: a rank's value of a section, and rank 0's."""
    here, there = theirs.get(name, "none"), first[name]
    pairs = enumerate(zip(here, there, strict=False))
    place = next((place for place, (a, b) in pairs if a != b), min(len(here), len(there)))
    return f"rank {rank} differs from rank 0 in {name}: {_near(here, place)} and not {_near(there, place)}"


def _near(text: str, place: int) -> str:
    """The text; of a long one, the part around a place."""
    if len(text) <= 80:
        return text
    start = text.rfind(", ", 0, max(0, place - 10)) + 1  # where a field begins
    end = place + 40
    return f"{'…' if start else ''}{text[start:end].rstrip()}{'…' if end < len(text) else ''}"


def _plain(value: object) -> str:
    """Its text, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
