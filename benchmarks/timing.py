"""Medians of interleaved repetitions: machines are shared, so only ratios within one run mean anything."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

Work = Callable[[], object]
IN_A_ROW = 10  # calls on a GPU between two looks at its clock


def interleaved(
    work: Mapping[str, Work],
    device: str,
    repetitions: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each piece of work, all pieces taking turns."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for name in work:
        work[name]()  # warm up: compilation, allocation, caches
    for _ in range(repetitions):
        for name, call in work.items():
            times[name].append(_once(call, device, clock))
    return {name: statistics.median(values) for name, values in times.items()}


def captured(call: Work) -> Work:
    """The work as a CUDA graph, as the engine runs it."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()

    def replay(kept: object = (call, found)) -> None:
        """The graph reads what the work holds, which must stay where it is."""
        graph.replay()

    return replay


def _once(call: Work, device: str, clock: Callable[[], float]) -> float:
    if device == "cuda":
        return _on_gpu(call)
    start = clock()
    call()
    return clock() - start


def _on_gpu(call: Work) -> float:
    """The device's own time, of calls that follow each other as rounds do: a device that waits for the first
    of them would count the host's preparation as its own."""
    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    for _ in range(IN_A_ROW):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / IN_A_ROW
