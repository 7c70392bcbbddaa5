"""Strategy problems in the format of the ASPLOS 2025 contest on intra-operator parallelism, read from JSON.

::

    {"problem": {"name": "small",
                 "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[1, 2], [3]], "usages": [[5, 1], [4]]},
                 "edges": {"nodes": [[0, 1]], "costs": [[7, 0]]},
                 "usage_limit": 8}}

A node needs memory from the first time of its interval until before the last. The costs of an edge are a table of the
strategies of its nodes, flattened, with the last node's strategies next to each other. An answer is the list of the
nodes' strategies, from 0.

Source: Moffitt and Fegade, The ASPLOS 2025 / EuroSys 2025 Contest on Intra-Operator Parallelism for Distributed Deep
Learning; https://github.com/google/iopddl.
"""

from collections.abc import Mapping
from math import inf, prod
from typing import Any

import numpy as np

from graphs.common.errors import InputError
from graphs.common.json_object import JsonObject
from planner.problem.strategies import Edge, LiveRange, StrategyProblem


def contest_problem(document: Mapping[str, Any]) -> StrategyProblem:
    """Return a strategy problem from the content of its JSON file.

    Raises:
        InputError: if a field is missing or of the wrong kind, or lists are not as long as they have to be.
    """
    top = JsonObject("the file", document).object("problem")
    nodes, edges = top.object("nodes"), top.object("edges")
    costs = nodes.records("costs")
    intervals = _as_many(nodes, "intervals", len(costs))
    usages = _as_many(nodes, "usages", len(costs))
    node_cost, live = [], []
    for node, (own, interval, usage) in enumerate(zip(costs, intervals, usages, strict=True)):
        record = JsonObject(f"node {node}", {"costs": own, "interval": interval, "usages": usage})
        n = len(record.records("costs"))
        if not n:
            raise InputError(f"node {node} has no strategies; give it one cost at least")
        node_cost.append(np.asarray(record.numbers("costs", n)))
        start, end = record.wholes("interval", 2)
        live.append(LiveRange(node, start, end, np.asarray(record.numbers("usages", n))))
    found = []
    ends = edges.records("nodes")
    for number, (pair, table) in enumerate(zip(ends, _as_many(edges, "costs", len(ends)), strict=True)):
        record = JsonObject(f"edge {number}", {"nodes": pair, "costs": table})
        joined = record.wholes("nodes")
        unknown = next((node for node in joined if node >= len(costs)), None)
        if unknown is not None:
            raise InputError(f"edge {number} names node {unknown}, but nodes go from 0 to {len(costs) - 1}")
        shape = tuple(len(node_cost[node]) for node in joined)
        found.append(Edge(joined, np.reshape(record.numbers("costs", prod(shape)), shape)))
    limit = top.number("usage_limit") if top.has("usage_limit") else inf
    return StrategyProblem(tuple(node_cost), tuple(found), tuple(live), limit)


def _as_many(record: JsonObject, key: str, n: int) -> list[Any]:
    """Return a list of records, which must have ``n`` entries."""
    found = record.records(key)
    if len(found) != n:
        raise InputError(f"{record.where} has {len(found)} {key}; give {n}, one for each")
    return found
