"""The targets by name. Those that take more than a few lines have their own files.

::

    torchgpipe          {"balance": [2, 3], "devices": [0, 1]}    GPipe(model, balance=[2, 3], devices=[0, 1], chunks=8)
    torch-schedule-csv  0F0,0F1,0B0,0B1                           a line for each rank: stage, F, B, I or W, micro-batch
    networkx            {"directed": true, ..., "nodes": [{"id": "conv1", "device": "gpu0", ...}], "edges": [...]}
                        networkx.node_link_graph(json.load(open("graph.json")), edges="edges")

https://torchgpipe.readthedocs.io/en/stable/guide.html, torch's ``_PipelineScheduleRuntime._load_csv``,
https://networkx.org/documentation/stable/reference/readwrite/json_graph.html
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from graphs.errors import InputError
from graphs.files import graph_to_dict
from graphs.networkx import to_networkx
from graphs.rewrites.split import undivided
from planner.export import deepspeed, device_map, megatron, model_explorer, split_spec
from planner.export.pipelines import layers_of
from planner.export.records import Export, device_words, refuse
from planner.export.rewritten import one_copy, whole_operators
from planner.export.tables import with_tables_near
from planner.plans.plan import Plan
from planner.problem.problem import Goal

TORCHGPIPE, SCHEDULE, GRAPH, NETWORKX = "torchgpipe", "torch-schedule-csv", "graph-json", "networkx"


def export(plan: Plan, target: str, copy: int | None = None) -> Export:
    """A plan in the format of another tool.

    Args:
        plan: the plan.
        target: a name from `TARGETS`.
        copy: of several copies of the network the one to write, counted from 1.

    Raises:
        InputError: for an unknown target, or a target that cannot express the plan: the error names the reason and the
            way out.
    """
    if target not in TARGETS:
        raise InputError(f"there is no target '{target}'; known: {', '.join(TARGETS)}")
    plan = one_copy(plan, copy)
    return TARGETS[target](plan if target in REWRITTEN else with_tables_near(whole_operators(plan, target)))


def _torchgpipe(plan: Plan) -> Export:
    """The number of an nn.Sequential's layers in each partition, and the devices."""
    (bounds, devices), words = layers_of(plan, TORCHGPIPE), device_words(plan.cluster)
    balance = [stop - start for start, stop in pairwise(bounds)]
    return Export({"balance": balance, "devices": [words[device] for device in devices]})


def _schedule_csv(plan: Plan) -> Export:
    """The order of a training step. Rank 0 is the device of the first stage, and so on as a micro-batch meets them."""
    if plan.goal is not Goal.TRAINING:
        raise refuse(SCHEDULE, f"the plan is for {plan.goal}", "needs a schedule", "plan with --goal training")
    return Export(plan.training_run.pipeline.lowered.schedule.to_csv())


def _node_link(plan: Plan) -> Export:
    """Operators, tensors between them, devices and times as node-link JSON.

    A node of a rewritten network names the members of a fused operator, or the operator that it is a part of.
    """
    device, forward_s, names = plan.placement.device, plan.costs.forward_s, plan.table.devices
    nodes: list[dict[str, Any]] = [
        {
            "id": op.name,
            "kind": op.kind,
            "module": op.module,
            "device": plan.device_of(op.name),
            "position": plan.placement.rank[number],
            "forward_s": float(forward_s[number, device[number]]),
            "state_bytes": sum(tensor.n_bytes for tensor in plan.graph.state(op)),
            **({"members": [member.name for member in op.members]} if op.members else {}),
            **({"part_of": undivided(op.name)} if undivided(op.name) != op.name else {}),
            **({"devices": [names[home] for home in homes]} if plan.placement.others else {}),
        }
        for number, (op, homes) in enumerate(zip(plan.graph.ops, plan.placement.homes, strict=True))
    ]
    edges = [
        {"source": source, "target": target, "tensors": list(values["tensors"]), "n_bytes": values["n_bytes"]}
        for source, target, values in to_networkx(plan.graph).edges(data=True)
    ]
    graph = {"name": plan.graph.name, "goal": str(plan.goal)}
    return Export({"directed": True, "multigraph": False, "graph": graph, "nodes": nodes, "edges": edges})


TARGETS: dict[str, Callable[[Plan], Export]] = {
    device_map.NAME: device_map.hf_device_map,
    split_spec.NAME: split_spec.torch_split_spec,
    SCHEDULE: _schedule_csv,
    megatron.NAME: megatron.megatron_layout,
    deepspeed.NAME: deepspeed.deepspeed,
    TORCHGPIPE: _torchgpipe,
    GRAPH: lambda plan: Export(graph_to_dict(plan.graph)),  # as `planner import` writes it
    NETWORKX: _node_link,
    model_explorer.DEVICES: model_explorer.devices,
    model_explorer.SECONDS: model_explorer.seconds,
}
REWRITTEN = frozenset({SCHEDULE, GRAPH, NETWORKX, model_explorer.DEVICES, model_explorer.SECONDS})
"""Targets that can have copies of the network, and fused or split operators."""
