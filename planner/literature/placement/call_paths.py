"""Call paths: how soon a path can end on a host with accelerators, whatever its operators run on.

::

    path      a ─► b ─► c ─► d            b and c in one call: so is x, and their bytes have to fit
                   └► x ─┘
    host      ████                  ██    an operator at a time
    call           ▒██████████▒           fetch a's tensor · b, x and c · store c's tensor

An accelerator is called once, starts when all tensors from outside are there, and ends for all its operators at once.
So if a tensor left it and came back on another way, the call would wait for itself: with two operators, all between
them are on the accelerator too.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Floats, Ints
from planner.literature.placement.offload import OffloadTable
from planner.problem.blocks import merge_blocks

MOST_OPS = 3_000  # with more operators, what is between each two of them takes too much memory
ROUNDING = 1e-9  # relative; sums of seconds are rounded


class CallCosts(NamedTuple):
    """The least costs over all hosts and over all accelerators."""

    host_s: Floats  # [n_ops], seconds on a host
    between_s: Floats  # [n_ops, n_ops], seconds on an accelerator of two operators and all between; infinite if too big
    edges: dict[tuple[int, int], tuple[float, float]]  # seconds of an accelerator to store and to fetch what goes there


def call_path_bound(table: OffloadTable) -> float:
    """Return the least seconds of a path through the graph, the worst of one path to each operator.

    With j accelerators used so far on the path, at least one operator each::

        host[v, j] = min(host[p, j], call[p, j] + store(p, v)) + host_s[v]
        open[u, j] = min(host[p, j - 1], call[p, j - 1] + store(p, u)) + fetch(p, u)
        call[v, j] = min over u on the path up to v of open[u, j] + between_s[u, v]

    where p is the operator before on the path: of all that v reads, the one that is there last. Any path gives a bound.
    Returns 0 for a table that is too large.
    """
    if table.n_ops > MOST_OPS or not table.n_ops:
        return 0.0
    costs, before = call_costs(table), _predecessors(table)
    n_calls = int((~table.offload.host).sum())
    host, call = np.empty((table.n_ops, n_calls + 1)), np.empty((table.n_ops, n_calls + 1))
    opens, chains = np.empty((table.n_ops, n_calls + 1)), list[Ints]()
    for op in range(table.n_ops):  # in a topological order
        there = {first: np.minimum(host[first], call[first] + costs.edges[first, op][0]) for first in before[op]}
        last = max(there, key=lambda first: (float(there[first].min()), -first), default=-1)
        arrives, fetch_s = (there[last], costs.edges[last, op][1]) if there else (np.zeros(n_calls + 1), 0.0)
        chains.append(np.append(chains[last], op) if there else np.asarray([op]))
        host[op] = arrives + costs.host_s[op]
        opens[op, 0], opens[op, 1:] = np.inf, arrives[:-1] + fetch_s
        call[op] = (opens[chains[op]] + costs.between_s[chains[op], op, None]).min(axis=0)
    return float(np.minimum(host, call).min(axis=1).max()) * (1 - ROUNDING)


def call_costs(table: OffloadTable) -> CallCosts:
    """Return the least costs of operators, and of calls with two operators and all between them."""
    offload, n = table.offload, table.n_ops
    work = ~offload.host
    reaches = np.eye(n)  # [n_ops, n_ops], whether the second operator is the first or comes after it
    for writer, reader in reversed(table.edges):  # sorted by writer, so the reader's row is final
        np.maximum(reaches[writer], reaches[reader], out=reaches[writer])
    takes_s = table.forward_s[:, work].min(axis=1, initial=np.inf)
    able = np.isfinite(takes_s)
    room_bytes = max(float(merge_blocks(table).room_bytes[work].max(initial=0.0)), 0.0)
    too_big = (reaches * np.where(able, 0.0, 1.0)) @ reaches > 0
    too_big |= (reaches * table.placed_bytes) @ reaches > room_bytes * (1 + ROUNDING)
    between_s = (reaches * np.where(able, takes_s, 0.0)) @ reaches
    edges: dict[tuple[int, int], tuple[float, float]] = {}
    store_s = offload.store_s[:, work].min(axis=1, initial=np.inf).tolist()
    fetch_s = offload.fetch_s[:, work].min(axis=1, initial=np.inf).tolist()
    for flow, stores_s, fetches_s in zip(table.flows, store_s, fetch_s, strict=True):
        for reader in set(flow.readers):
            known = edges.get((flow.writer, reader), (0.0, 0.0))
            edges[flow.writer, reader] = known[0] + stores_s, known[1] + fetches_s
    host_s = table.forward_s[:, offload.host].min(axis=1, initial=np.inf)
    return CallCosts(host_s, np.where(too_big, np.inf, between_s), edges)


def _predecessors(table: OffloadTable) -> Sequence[Sequence[int]]:
    """Return [n_ops], the operators that each one reads from."""
    before: list[list[int]] = [[] for _ in table.ops]
    for writer, reader in table.edges:
        if writer != reader:
            before[reader].append(writer)
    return before
