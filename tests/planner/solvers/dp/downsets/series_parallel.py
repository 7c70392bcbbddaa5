"""Networks of parallel branches in the public format, and their contiguous optimum by the ordinary dynamic program.

::

        ┌─ o ─ o ─ o ─┐   ┌─ o ─ o ─┐
    o ──┤             ├─ o┤         ├─ o        a section of branches of 3 and 2 nodes has (3 + 1) (2 + 1) downsets
        └─ o ─ o ─────┘   └─ o ─────┘
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import inf, prod
from typing import Any

import numpy as np

from graphs.common.arrays import Floats, Ints
from planner.solvers.dp.downsets.kernel import Words

SLOWER = 8.0  # a host than an accelerator


@dataclass(frozen=True)
class Shape:
    """What to draw.

    Attributes:
        n_nodes: about so many.
        downsets: at least and at most so many.
        n_accelerators: devices that pay for transfers.
        n_hosts: devices that do not.
        memory: of all accelerators together, in multiples of what the nodes need; 0 for any amount.
        transfers: milliseconds on average; nodes take 2 on average.
        unsupported: share of nodes that only hosts run.
    """

    n_nodes: int
    downsets: tuple[int, int]
    n_accelerators: int = 4
    n_hosts: int = 1
    memory: float = 0.0
    transfers: float = 0.5
    unsupported: float = 0.0


def series_parallel(shape: Shape, seed: int) -> dict[str, Any]:
    """A problem in the public format: sections of parallel branches, one after the other."""
    rng = np.random.default_rng(seed)
    sections = _sections(shape, rng)
    edges, n_nodes, join = [], 1, 0
    for lengths in sections:
        ends = []
        for length in lengths:
            branch = [join, *range(n_nodes, n_nodes + length)]
            edges += list(pairwise(branch))
            ends.append(branch[-1])
            n_nodes += length
        edges += [(end, n_nodes) for end in ends]
        join, n_nodes = n_nodes, n_nodes + 1
    takes_ms, size = np.round(rng.gamma(2.0, 1.0, n_nodes), 3), rng.integers(1, 100, n_nodes)
    cost_ms = np.round(rng.exponential(shape.transfers, n_nodes), 3)
    supported = rng.random(n_nodes) >= shape.unsupported
    return {
        "maxFPGAs": shape.n_accelerators,
        "maxCPUs": shape.n_hosts,
        "maxSizePerFPGA": float(size.sum() * shape.memory // shape.n_accelerators) if shape.memory else 1e9,
        "nodes": [
            {
                "id": node,
                "supportedOnFpga": int(supported[node]),
                "cpuLatency": float(SLOWER * takes_ms[node]),
                "fpgaLatency": float(takes_ms[node]),
                "isBackwardNode": 0,
                "size": float(size[node]),
            }
            for node in range(n_nodes)
        ],
        "edges": [{"sourceId": a, "destId": b, "cost": float(cost_ms[a])} for a, b in edges],
    }


def _sections(shape: Shape, rng: np.random.Generator) -> list[list[int]]:
    """The lengths of the branches of each section, drawn until there are as many downsets as asked for."""
    while True:
        sections: list[list[int]] = []
        left = shape.n_nodes - 1
        while left > 2:
            lengths = rng.integers(1, 12, int(rng.integers(1, 6))).tolist()
            sections.append(lengths if sum(lengths) < left else [left - 1])
            left -= sum(sections[-1]) + 1
        if shape.downsets[0] <= 2 + sum(prod(n + 1 for n in lengths) for lengths in sections) <= shape.downsets[1]:
            return sections


def optimum_ms(document: dict[str, Any]) -> float:
    """The least largest load of a contiguous placement; infinite if there is none.

    Over all pairs of downsets, by the definition of the load; nothing is shared with the planner.
    """
    graph = _Graph(document)
    accelerators, hosts = document["maxFPGAs"], document["maxCPUs"]
    busiest = np.full((accelerators + 1, hosts + 1, len(graph.words)), inf)
    busiest[:, :, 0] = 0.0
    for target in range(1, len(graph.words)):
        sources = np.flatnonzero(~(graph.words[:target] & ~graph.words[target]).any(axis=1))
        on_accelerator, on_host = graph.loads(sources, target)
        for a, h in product(range(accelerators + 1), range(hosts + 1)):
            for used, load in (((a - 1, h), on_accelerator), ((a, h - 1), on_host)):
                if min(used) >= 0:
                    least = float(np.maximum(busiest[used][sources], load).min())
                    busiest[a, h, target] = min(busiest[a, h, target], least)
    return float(busiest[-1, -1, -1])


class _Graph:
    """The nodes, and their downsets as bits, smaller ones first."""

    def __init__(self, document: dict[str, Any]) -> None:
        nodes = document["nodes"]
        self._room = document["maxSizePerFPGA"]
        self._size = np.asarray([node["size"] for node in nodes])
        self._supported = np.asarray([node["supportedOnFpga"] for node in nodes])
        self._takes = np.asarray([[node["fpgaLatency"], node["cpuLatency"]] for node in nodes])
        before, after = [0] * len(nodes), [0] * len(nodes)
        self._cost = np.zeros(len(nodes))
        for edge in document["edges"]:
            before[edge["destId"]] |= 1 << edge["sourceId"]
            after[edge["sourceId"]] |= 1 << edge["destId"]
            self._cost[edge["sourceId"]] = edge["cost"]
        self._after = _words(after, len(nodes))
        downsets = sorted(_downsets(before), key=int.bit_count)
        self.words = _words(downsets, len(nodes))
        self._bits = np.asarray([[some >> node & 1 for node in range(len(nodes))] for some in downsets], dtype=bool)
        # without a sum over the nodes of each pair: what a downset holds, less what a smaller one holds
        self._sums = self._bits @ np.column_stack([self._takes, self._size, self._supported == 0])

    def loads(self, sources: Ints, target: int) -> tuple[Floats, Floats]:
        """[n_sources] on an accelerator and on a host, of the nodes from each source to the target."""
        on_accelerator, on_host, size, unsupported = (self._sums[target] - self._sums[sources]).T
        inside = self.words[target] & ~self.words[sources]
        for node in np.flatnonzero(self._cost).tolist():
            here = self._bits[target, node] & ~self._bits[sources, node]
            if (self._after[node] & ~self.words[target]).any():
                on_accelerator = on_accelerator + np.where(here, self._cost[node], 0.0)
            read = (inside & self._after[node]).any(axis=1)
            on_accelerator = on_accelerator + np.where(read & self._bits[sources, node], self._cost[node], 0.0)
        possible = (size <= self._room) & (unsupported == 0)
        return np.where(possible, on_accelerator, inf), on_host


def _downsets(before: Sequence[int]) -> set[int]:
    """Every set of nodes, as bits, that has with each node all those before it."""
    found, fresh = {0}, [0]
    while fresh:
        larger = {
            some | 1 << node
            for some in fresh
            for node, needs in enumerate(before)
            if not some >> node & 1 and not needs & ~some
        }
        fresh = list(larger - found)
        found |= larger
    return found


def _words(sets: Sequence[int], n_nodes: int) -> Words:
    """[n_sets, n_words], the same bits, 64 a word."""
    n_words = -(-n_nodes // 64)
    raw = b"".join(some.to_bytes(8 * n_words, "little") for some in sets)
    return np.frombuffer(raw, dtype="<u8").reshape(-1, n_words).astype(np.uint64)
