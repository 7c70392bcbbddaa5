"""networkx: the operators with their devices and times as node-link JSON.

::

    {"directed": true, ..., "nodes": [{"id": "conv1", "device": "gpu0", ...}], "edges": [{"source": "conv1", ...}]}

    networkx.node_link_graph(json.load(open("graph.json")), edges="edges")

https://networkx.org/documentation/stable/reference/readwrite/json_graph.html
"""

from graphs.networkx import to_networkx
from planner.export.records import Export
from planner.plans.plan import Plan

NAME = "networkx"


def node_link(plan: Plan) -> Export:
    """Operators, tensors between them, devices and times as node-link JSON for networkx."""
    digraph = to_networkx(plan.graph)
    device, forward_s = plan.placement.device, plan.costs.forward_s
    nodes = [
        {
            "id": op.name,
            "kind": op.kind,
            "module": op.module,
            "device": plan.device_of(op.name),
            "position": plan.placement.rank[number],
            "forward_s": float(forward_s[number, device[number]]),
            "state_bytes": sum(tensor.n_bytes for tensor in plan.graph.state(op)),
        }
        for number, op in enumerate(plan.graph.ops)
    ]
    edges = [
        {"source": source, "target": target, "tensors": list(values["tensors"]), "n_bytes": values["n_bytes"]}
        for source, target, values in digraph.edges(data=True)
    ]
    graph = {"name": plan.graph.name, "goal": str(plan.goal)}
    return Export({"directed": True, "multigraph": False, "graph": graph, "nodes": nodes, "edges": edges})
