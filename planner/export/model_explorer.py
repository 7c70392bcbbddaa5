"""Plans as node data of Google's Model Explorer: a value and a colour for each operator of the model's ``.pt2``.

::

    {"graph": {"results": {"conv2d": {"value": "gpu0", "bgColor": "#cfe2ff"}, ...}}}         which device
    {"graph": {"results": {"conv2d": {"value": 0.0012}, ...}, "gradient": [...]}}            seconds there

Keys are the names of nodes in the exported program, which operators keep. Model Explorer loads the file with the model.
https://github.com/google-ai-edge/model-explorer, node_data_builder.py
"""

from typing import Any

from planner.export.records import Export
from planner.plans.plan import Plan

DEVICES, SECONDS = "model-explorer-devices", "model-explorer-seconds"
GRAPH = "graph"  # what Model Explorer calls the graph of an exported program
COLOURS = ("#cfe2ff", "#ffe5b4", "#d1f0d1", "#f8d0d8", "#e2d4f7", "#fff3a8", "#c9eef0", "#e6d5c3")
GRADIENT = ({"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#f08080"})


def devices(plan: Plan) -> Export:
    """The device of each operator, a colour for each device."""
    results = {
        op.name: {"value": plan.cluster.devices[device].name, "bgColor": COLOURS[device % len(COLOURS)]}
        for op, device in zip(plan.graph.ops, plan.placement.device, strict=True)
    }
    return _node_data(results, {"showExpandedSummaryOnGroupNode": True})


def seconds(plan: Plan) -> Export:
    """The seconds of each operator forward on its device."""
    forward_s = plan.costs.forward_s
    results = {
        op.name: {"value": float(forward_s[number, device])}
        for number, (op, device) in enumerate(zip(plan.graph.ops, plan.placement.device, strict=True))
    }
    return _node_data(results, {"gradient": list(GRADIENT)})


def _node_data(results: dict[str, dict[str, Any]], more: dict[str, Any]) -> Export:
    return Export({GRAPH: {"results": results, **more}})
