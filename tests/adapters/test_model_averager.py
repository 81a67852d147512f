"""Robust gossip between ranks, one of which is faulty."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = """
import json, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
import clippedgossip as cg
from clippedgossip.adapters.model_averager import RobustAverager

def main(rank, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=6)
    errors = {}
    for name in ("average", "clipped"):
        model = nn.Linear(4, 1, bias=False)
        nn.init.zeros_(model.weight)
        target = torch.arange(4.0)
        if name == "average":
            averager = PeriodicModelAverager(period=2)
        else:
            network = cg.Network(cg.graphs.complete(nodes=6))
            averager = RobustAverager(cg.rules.ClippedGossip(1.0), network, period=2)
        optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), averager)
        draw = torch.Generator().manual_seed(rank)
        for step in range(60):
            if rank == 3:  # the faulty one
                with torch.no_grad():
                    model.weight.fill_(1e18)
            x = torch.randn(16, 4, generator=draw)
            loss = ((model(x)[:, 0] - x @ target) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        errors[name] = float((model.weight[0] - target).norm())
    if rank == 0:
        print(json.dumps(errors), flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(main, args=(sys.argv[1],), nprocs=6)
"""


@pytest.mark.slow
def test_a_rank_that_sends_rubbish_does_bounded_harm(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "rendezvous")],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    errors = json.loads(done.stdout)
    assert errors["average"] > 1e15
    assert errors["clipped"] < 1
