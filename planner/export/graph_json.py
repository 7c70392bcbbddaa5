"""graph-json: the network alone, as `planner import` writes it."""

from graphs.files import graph_to_dict
from planner.export.records import Export
from planner.plans.plan import Plan

NAME = "graph-json"


def graph_json(plan: Plan) -> Export:
    """The network as graph.json, which is a MODEL for planner plan."""
    return Export(graph_to_dict(plan.graph))
