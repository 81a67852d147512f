"""Nodes whose loss takes a connected graph apart, and how much each takes apart (Hopcroft–Tarjan, linear)."""

import numpy as np

from clippedgossip.network.spectrum import Ints


def separated_by(indptr: Ints, indices: Ints) -> Ints:
    """For every node of a connected graph: how many others lose the largest part if it goes; 0 if none."""
    n = len(indptr) - 1
    starts, ends, targets = indptr.tolist(), indptr[1:].tolist(), indices.tolist()
    depth, low, parent = [-1] * n, [0] * n, [-1] * n
    size, cut_off, biggest = [1] * n, [0] * n, [0] * n
    cursor = list(starts[:n])
    stack = [0]
    depth[0] = 0
    while stack:
        node = stack[-1]
        if cursor[node] < ends[node]:
            other = targets[cursor[node]]
            cursor[node] += 1
            if depth[other] < 0:
                depth[other] = low[other] = depth[node] + 1
                parent[other] = node
                stack.append(other)
            elif other != parent[node]:
                low[node] = min(low[node], depth[other])
            continue
        stack.pop()
        up = parent[node]
        if up >= 0:
            low[up] = min(low[up], low[node])
            size[up] += size[node]
            if low[node] >= depth[up]:  # nothing below reaches past `up`
                cut_off[up] += size[node]
                biggest[up] = max(biggest[up], size[node])
    rest = n - 1 - np.array(cut_off)  # what hangs together above; nothing for the root
    largest = np.maximum(rest, np.array(biggest))
    return np.asarray(n - 1 - largest, dtype=np.int64)
