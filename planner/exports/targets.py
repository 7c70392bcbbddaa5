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
from os import PathLike
from typing import Any

from graphs.common import checks
from graphs.common.errors import InputError
from graphs.files import graph_to_dict
from graphs.networkx import to_networkx
from graphs.rewrites.split import undivided
from planner.exports import deepspeed, device_map, megatron, model_explorer, split_spec
from planner.exports.generation.targets import GENERATION_TARGETS, export_generation
from planner.exports.pipelines import layers_of
from planner.exports.records import device_words
from planner.exports.rewritten import one_copy, whole_operators
from planner.exports.tables import with_tables_near
from planner.generation.files import is_generation_plan
from planner.generation.plan import GenerationPlan
from planner.plans.exported import Export, refuse
from planner.plans.given import Named, given_plan
from planner.plans.plan import Plan
from planner.problem.problem import Goal

ONNX = "onnx-devices"  # the only target that needs the model itself
TORCHGPIPE, SCHEDULE, GRAPH, NETWORKX = "torchgpipe", "torch-schedule-csv", "graph-json", "networkx"


def export(
    plan: Plan | GenerationPlan | Named,
    to: str,
    *,
    copy: int | None = None,
    model: str | PathLike[str] | None = None,
) -> Export:
    """Return a plan in the format of another tool.

    Args:
        plan: a plan, or the path of a plan.json or of a plan of `planner.fit`.
        to: the tool: a name from `TARGETS`, or "onnx-devices"; for a plan of `planner.fit` from `GENERATION_TARGETS`.
        copy: of several copies of the network the one to write, counted from 1; None for all of them.
        model: for "onnx-devices", the path of the .onnx that the plan is for.

    Raises:
        InputError: for an unknown tool, or one that cannot express the plan: the error names the reason and the way
            out.
    """
    known = (*TARGETS, ONNX, *GENERATION_TARGETS)
    if to not in known:
        raise InputError(f"there is no target {checks.shown(to)}; known: {', '.join(known)}")
    if isinstance(plan, GenerationPlan) or to in GENERATION_TARGETS or _generates(plan):
        return _export_generation(plan, to, copy, model)
    plan = one_copy(given_plan(plan), None if copy is None else checks.integer(copy, "the copy"))
    if to == ONNX:
        return _onnx(plan, model)
    if model is not None:
        raise InputError(f"a model is for {ONNX}, and the target is {to}; leave it out")
    return TARGETS[to](plan if to in REWRITTEN else with_tables_near(whole_operators(plan, to)))


def _generates(plan: Plan | Named) -> bool:
    """Return whether a file is a plan of `planner.fit`."""
    return not isinstance(plan, Plan) and is_generation_plan(checks.path(plan, "the plan", "a plan or the path of one"))


def _export_generation(plan: object, to: str, copy: int | None, model: object) -> Export:
    """Return a plan of `planner.fit` for a tool that generates text."""
    if copy is not None or model is not None:
        raise InputError("a plan of `planner fit` has no copies and needs no model; leave them out")
    if isinstance(plan, GenerationPlan):
        return export_generation(plan, to)
    if isinstance(plan, Plan):
        raise InputError(f"{to} is for plans of `planner fit`, and this one places operators; choose another target")
    return export_generation(checks.path(plan, "the plan", "a plan or the path of one"), to)


def _onnx(plan: Plan, model: str | PathLike[str] | None) -> Export:
    """Return the plan within its .onnx, as bytes."""
    if model is None:
        raise InputError(f"{ONNX} writes a model; give the path of its .onnx as the model")
    path = checks.path(model, "the model", "the path of an .onnx file")
    from planner.exports.onnx_devices import onnx_devices  # late: onnx and torch take seconds to load

    placed = onnx_devices(plan, path)
    apart = any(tensor.external_data for tensor in placed.graph.initializer)
    notes = (f"its weights stay in files next to '{model}'; put the new model there",) if apart else ()
    return Export(placed.SerializeToString(), notes)


def _torchgpipe(plan: Plan) -> Export:
    """Return the number of an nn.Sequential's layers in each partition, and the devices."""
    (bounds, devices), words = layers_of(plan, TORCHGPIPE), device_words(plan.cluster)
    balance = [stop - start for start, stop in pairwise(bounds)]
    return Export({"balance": balance, "devices": [words[device] for device in devices]})


def _schedule_csv(plan: Plan) -> Export:
    """Return the order of a training step. Ranks are numbered in the order in which a micro-batch reaches devices."""
    if plan.goal is not Goal.TRAINING:
        raise refuse(SCHEDULE, f"the plan is for {plan.goal}", "needs a schedule", "plan with --goal training")
    return Export(plan.training_run.pipeline.lowered.schedule.to_csv())


def _node_link(plan: Plan) -> Export:
    """Return operators, tensors between them, devices and times as node-link JSON.

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
    model_explorer.SECONDS: model_explorer.export_seconds,
}
REWRITTEN = frozenset({SCHEDULE, GRAPH, NETWORKX, model_explorer.DEVICES, model_explorer.SECONDS})
"""Targets that can have copies of the network, and fused or split operators."""
