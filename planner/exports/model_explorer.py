"""Plans as node data of Google's Model Explorer: a value and a colour for each operator of the model's ``.pt2``.

::

    {"graph": {"results": {"conv2d": {"value": "gpu0", "bgColor": "#cfe2ff"}, ...}}}         which device
    {"graph": {"results": {"conv2d": {"value": 0.0012}, ...}, "gradient": [...]}}            seconds there

Keys are the names of nodes in the exported program, which operators keep. Model Explorer loads the file with the model.
https://github.com/google-ai-edge/model-explorer, node_data_builder.py
"""

from collections.abc import Mapping
from typing import Any

from planner.explanations.common_ops import NetworkOps
from planner.exports.records import listed
from planner.plans.exported import Export
from planner.plans.plan import Plan

DEVICES, SECONDS = "model-explorer-devices", "model-explorer-seconds"
GRAPH = "graph"  # what Model Explorer calls the graph of an exported program
COLOURS = ("#cfe2ff", "#ffe5b4", "#d1f0d1", "#f8d0d8", "#e2d4f7", "#fff3a8", "#c9eef0", "#e6d5c3")
GRADIENT = ({"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#f08080"})


def devices(plan: Plan) -> Export:
    """Return the devices of each operator, and how it is divided; a colour for each device, that of the first."""
    network, index = NetworkOps(plan, rewritten=True), plan.cluster.index
    results = {}
    for name in network.members:
        on, how = network.devices(name), network.how(name)
        value = f"{listed(on)}, {how}" if how else listed(on)
        results[name] = {"value": value, "bgColor": COLOURS[index[on[0]] % len(COLOURS)]}
    return _node_data(results, {"showExpandedSummaryOnGroupNode": True})


def export_seconds(plan: Plan) -> Export:
    """Return the seconds of each operator forward on its device, of parts on the device where they take longest.

    Those of a fused operator are with its first member.
    """
    results = {name: {"value": each_s} for name, each_s in NetworkOps(plan, rewritten=True).seconds_each.items()}
    return _node_data(results, {"gradient": list(GRADIENT)})


def _node_data(results: Mapping[str, Mapping[str, Any]], more: dict[str, Any]) -> Export:
    return Export({GRAPH: {"results": results, **more}})
