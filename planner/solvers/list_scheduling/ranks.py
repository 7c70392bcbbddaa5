"""Ranks: the priorities of operators before anything is placed, on average devices and links."""

from collections.abc import Sequence

import numpy as np

from costmodels.table import CostTable, Floats
from planner.problem.precedence import inputs_of, successors


def mean_computes(table: CostTable) -> list[float]:
    """[n_ops], mean seconds of each operator over the devices that can run it."""
    able = np.where(np.isfinite(table.forward_s), table.forward_s, np.nan)
    return [float(mean) for mean in np.nanmean(able, axis=1)]


def mean_sends(table: CostTable) -> list[float]:
    """[n_flows], mean seconds to send each flow over the links; 0 without links."""
    links = table.link_class[table.link_class >= 0]
    return [float(mean) for mean in table.link_s[:, links].mean(axis=1)] if len(links) else [0.0] * len(table.flows)


def upward_rank(table: CostTable) -> list[float]:
    """[n_ops], seconds from each operator's start to the end of the graph along its longest path (HEFT)."""
    computes, sends = mean_computes(table), mean_sends(table)
    tail, rank = [0.0] * table.n_ops, [0.0] * table.n_ops
    inputs = inputs_of(table)
    for op in reversed(range(table.n_ops)):  # readers come after their writers, so the tail is final by now
        rank[op] = computes[op] + tail[op]
        for flow in inputs[op]:
            writer = table.flows[flow].writer
            tail[writer] = max(tail[writer], sends[flow] + rank[op])
    return rank


def downward_rank(table: CostTable) -> list[float]:
    """[n_ops], seconds from the beginning to each operator's start along its longest path (CPOP)."""
    computes, sends = mean_computes(table), mean_sends(table)
    rank = [0.0] * table.n_ops
    for op, flows in enumerate(inputs_of(table)):
        for flow in flows:
            writer = table.flows[flow].writer
            rank[op] = max(rank[op], rank[writer] + computes[writer] + sends[flow])
    return rank


def critical_path(table: CostTable, length_s: Sequence[float]) -> list[int]:
    """The operators of one longest path, by the length of the longest path through each operator, [n_ops]."""
    readers, n_writers = successors(table.n_ops, table.edges)
    choices = [op for op, count in enumerate(n_writers) if not count]
    path: list[int] = []
    while choices:
        path.append(min(choices, key=lambda op: (-length_s[op], op)))
        choices = readers[path[-1]]
    return path


def optimistic_costs(table: CostTable) -> Floats:
    """[n_ops, n_devices], the least seconds from the end of an operator on a device to the end of the graph (PEFT).

    ::

        cost[i, p] = max over readers j of min over devices q of cost[j, q] + computes[j, q] + (sends if q != p)
    """
    sends, inputs = mean_sends(table), inputs_of(table)
    cost = np.zeros((table.n_ops, table.n_devices))
    for op in reversed(range(table.n_ops)):
        ahead = cost[op] + table.forward_s[op]
        for flow in inputs[op]:
            writer = table.flows[flow].writer
            cost[writer] = np.maximum(cost[writer], np.minimum(ahead, ahead.min() + sends[flow]))
    return cost
