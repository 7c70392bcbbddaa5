"""Small hybrid networks, for tests."""

from random import Random
from typing import Any


def network(seconds: list[float], edges: list[tuple[int, int]], **fields: Any) -> dict[str, Any]:
    """Nodes that take these seconds alone and 60 % of them on two devices; recomputation adds a third of them.

    Node i has 1 + i MB of parameters, 4 MB a micro-batch in flight (1 with recomputation) and 2 MB besides. Edges carry
    1 MB, and half of it again if shared.
    """
    nodes: list[dict[str, Any]] = []
    for node, alone in enumerate(seconds):
        came = {str(u): 0.5e6 for u, v in edges if v == node}
        went = {str(v): 0.5e6 for u, v in edges if u == node}
        nodes.append({"id": node, "TMPCs": {}})
        for degree in (1, 2):
            takes = alone if degree == 1 else 0.6 * alone
            nodes[-1]["TMPCs"][str(degree)] = [
                {
                    "id": name,
                    "timePerSample": takes * slower,
                    "parameterSize": (1 + node) * 1e6 / degree,
                    "memoryUsageA": held / degree,
                    "memoryUsageB": 2e6 / degree,
                    "syncTimeFw": dict.fromkeys(came, 0.0) if degree == 1 else came,
                    "syncTimeBw": dict.fromkeys(went, 0.0) if degree == 1 else went,
                }
                for name, slower, held in (("keep", 1.0, 4e6), ("recompute", 4 / 3, 1e6))
            ]
    known = {
        "maxDevices": 3,
        "maxMemoryPerDevice": 20e6,
        "bandwidth": 1e8,
        "mbsInBatch": 4,
        "nodes": nodes,
        "edges": [{"sourceId": u, "destId": v, "communicationCost": 1e6} for u, v in edges],
    }
    return known | fields


def drawn(seed: int) -> dict[str, Any]:
    """A network of 3 or 4 nodes with random figures and more variants."""
    draw = Random(seed)
    n = draw.randint(3, 4)
    edges = [(u, v) for v in range(1, n) for u in range(v) if draw.random() < 0.6]
    document = network([draw.uniform(0.01, 0.1) for _ in range(n)], edges)
    document["maxDevices"] = draw.randint(1, 4)
    document["mbsInBatch"] = draw.choice([1, 2, 4, 6])
    document["maxMemoryPerDevice"] = draw.uniform(8e6, 40e6)
    document["bandwidth"] = draw.choice([1e7, 1e8, 1e9])
    for node in document["nodes"]:
        for variants in node["TMPCs"].values():
            for variant in variants:
                variant["memoryUsageA"] *= draw.uniform(0.5, 1.5)
            if draw.random() < 0.3:
                middle = {"id": "some", "timePerSample": 1.1 * variants[0]["timePerSample"], "memoryUsageA": 2.2e6}
                variants.append(variants[0] | middle)
        if draw.random() < 0.2:
            del node["TMPCs"]["2"]
    return document
