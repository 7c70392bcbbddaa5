"""The data of the page: a plan and its timelines as compact JSON. The page itself computes only its layout.

Numbers are SI; operators, groups, devices and flows are given by index, repeated texts by index into a list.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from math import isfinite, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.memory.device import cache_bytes, gradient_bytes, lasting_bytes, op_bytes
from costmodels.table import CostTable, Source
from graphs.common.arrays import Floats
from graphs.ir import STATE, Flow, Graph, Op, Role, Tensor
from planner.plans.generation import generation_of, held_bytes
from planner.plans.plan import Plan
from planner.plans.prediction import Prediction
from planner.plans.runs import MeasuredRun
from planner.plans.speed import model_flops_utilisation, tokens_per_s, what_tokens
from planner.problem.bottleneck import Busiest, busiest
from planner.problem.devices import equal_columns
from planner.problem.problem import Goal
from planner.view.numbers import Numbers, number
from planner.view.timelines import curves, idle_shares, packed, steady_part, with_transfers
from planner.view.tree import group_tree
from simulator.memory import memory_of
from simulator.timeline import Timeline

WORDS = {source: str(source) for source in Source} | {Source.ROOFLINE: "estimated"}
"""The sources of times, as the command line calls them."""

FIGURES = ("objective_s", "bound_s", "gap", "period_s", "latency_s", "samples_per_s")


def payload(plan: Plan, predicted: Prediction, measured: MeasuredRun | None = None) -> dict[str, Any]:
    """Return the data of the page as an object for JSON; infinite times are None. ``measured`` is a run of the plan."""
    document = graph_payload(plan)
    timelines, memory = {"predicted": packed(predicted.timeline)}, {"predicted": curves(plan, predicted.memory)}
    for device, share in zip(document["devices"], _idle(plan, predicted.timeline), strict=True):
        device["idle"] = number(share)
    document["summary"]["filled"] = not plan.workload.trains or steady_part(predicted.timeline) is not None
    if measured is not None:
        document["summary"]["run"] = _run(plan, predicted.timeline, measured)
        timelines["measured"] = packed(measured.timeline)
        if not plan.workload.trains:
            moved = with_transfers(plan, measured.timeline)
            memory["measured"] = curves(plan, memory_of(plan.costs, plan.placement, moved))
    stages = list(plan.training_run.stages if plan.workload.trains else ())
    stages = stages or [stage.ops for stage in plan.stages]
    return document | {"stages": stages, "timelines": timelines, "memory": memory}


def _idle(plan: Plan, timeline: Timeline) -> list[float]:
    """Return [n_devices], the share of the steady state of a stream, or of a step, without computing."""
    if plan.workload.trains:
        shares = dict(zip(timeline.devices, idle_shares(timeline), strict=True))
        return [shares.get(device, 1.0) for device in plan.table.devices]  # one without a stage is not in the timeline
    return [max(0.0, 1 - load_s / plan.period_s) if plan.period_s > 0 else 0.0 for load_s in plan.evaluation.load_s]


def graph_payload(plan: Plan) -> dict[str, Any]:
    """Return the data from which the graph is drawn."""
    tree, busy = group_tree(plan.graph, _weight(plan)), busiest(plan.problem, plan.placement)
    classes = equal_columns(_seconds(plan), plan.table.source)
    return {
        "summary": _summary(plan, busy),
        "devices": _devices(plan, busy, classes),
        "groups": [[group.label, group.path, group.parent, group.kind] for group in tree.groups],
        "ops": _ops(plan, classes) | {"parent": tree.parent, "label": tree.labels},
        "ends": _ends(plan.graph),
        "flows": [  # the last number says which of its writer's tensors it is
            [flow.tensor, flow.writer, flow.readers, number(n_bytes), _written(plan.graph, flow)]
            for flow, n_bytes in zip(plan.table.flows, plan.table.flow_bytes, strict=True)
        ],
        "cuts": _cuts(plan),
        "forbidden": _forbidden(plan),
        "unlinked": np.flatnonzero(~plan.table.linked & ~np.eye(plan.table.n_devices, dtype=np.bool_)).tolist(),
    }


def _written(graph: Graph, flow: Flow) -> int:
    return graph.ops[flow.writer].outputs.index(flow.tensor)


def _cuts(plan: Plan) -> list[list[float | int | None]]:
    """Flow, ends and seconds of each transfer, and the share of micro-batches that go through a copy with it."""
    times = Counter(plan.placement.all_cuts(plan.table))
    copies = len(plan.placement.copies)
    return [
        [flow, src, dst, number(plan.table.send_s(flow, src, dst)), number(n / copies)]
        for (flow, src, dst), n in times.items()
    ]


def _summary(plan: Plan, busy: Busiest) -> dict[str, Any]:
    rate, spread = plan.samples_per_s, plan.spread().factor
    tokens = None if plan.workload.generates else tokens_per_s(plan)
    return {
        "model": plan.graph.name,
        "goal": str(plan.goal),
        "status": plan.status,
        "solver": plan.solver,
        **{name: number(getattr(plan, name)) for name in FIGURES},
        "ranges": [[number(rate / spread), number(rate * spread)], [*map(number, plan.latency_range.ends)]],
        "language": [number(tokens), number(model_flops_utilisation(plan)), what_tokens(plan)] if tokens else None,
        "price": str(plan.cluster.price) if plan.cluster.price else None,
        "run": None,
        "holds": _holds(plan),
        "generation": _generation(plan) if plan.workload.generates else None,
        "division": plan.division,
        "batch": plan.workload.batch,
        "in_flight": plan.workload.in_flight,
        "copies": len(plan.placement.copies),
        "step": [plan.workload.micro_batches, plan.workload.schedule] if plan.workload.trains else None,
        "cluster": plan.cluster.name,
        "overlap": plan.cluster.overlap,
        "shares": {
            word: number(sum(plan.time_shares.get(source, 0.0) for source in Source if WORDS[source] == word))
            for word in dict.fromkeys(WORDS.values())
        },
        "bottleneck": {
            "devices": [] if busy.device is None else [busy.device],
            "links": busy.link_names(plan.table.devices),
            "seconds": number(busy.seconds),
        },
        "alone": _alone(plan),
        "violations": plan.evaluation.violations,
    }


def _run(plan: Plan, predicted: Timeline, measured: MeasuredRun) -> dict[str, Any]:
    """Predicted and measured time of one micro-batch alone or of a step; in a stream, samples per second.

    ``usage`` has the name and the seconds of each device: busy, waiting for input, for a micro-batch, between stages.
    """
    trains, timeline = plan.workload.trains, measured.timeline
    if trains or timeline.micro_batches == 1:
        seconds = measured.seconds if trains else measured.latency_s
        both_s = predicted.makespan_s, timeline.makespan_s if seconds is None else seconds
        return {"of": str(Goal.LATENCY), "predicted": number(both_s[0]), "measured": number(both_s[1]), "usage": []}
    period_s = timeline.period_s if measured.seconds is None else measured.seconds
    rates = [number(plan.workload.batch / each_s) if each_s > 0 else None for each_s in (plan.period_s, period_s)]
    used = measured.usage.devices if measured.usage else {}
    usage = [[name, *map(number, (d.busy_s, d.input_s, d.admission_s, d.between_s))] for name, d in used.items()]
    return {"of": str(Goal.THROUGHPUT), "predicted": rates[0], "measured": rates[1], "usage": usage}


def _generation(plan: Plan) -> dict[str, Any]:
    """Return tokens a second and the phases; each phase has its tokens, positions, passes and seconds."""
    found, work = generation_of(plan), plan.workload
    return {
        "tokens_per_s": number(found.tokens_per_s),
        "range": [*map(number, found.range_per_s)],
        "one": number(found.tokens_per_s_one),
        "one_range": [*map(number, found.range_per_s_one)],
        "first_s": number(found.first_token_s),
        "first_range": [*map(number, found.first_token_range.ends)],
        "sequences": work.sequences,
        "prompt": work.prompt,
        "output": work.output,
        "cache_bytes": number(held_bytes(plan)[1].sum()),
        "phases": [
            [*each.phase, each.prompt, each.output, number(each.alone_s), number(each.period_s)]
            for each in found.phases
            if each.prompt + each.output
        ],
    }


def _holds(plan: Plan) -> list[str]:
    """Describe a network in words: the number of its parameters, and the tokens, pixels or numbers of a sample."""
    graph = plan.graph
    count = sum(prod(tensor.shape) for tensor in graph.tensors if tensor.role is Role.PARAMETER)
    scale = next(((size, unit) for size, unit in ((1e9, "billion "), (1e6, "million ")) if count >= size), (1, ""))
    words = [f"{count / scale[0]:.3g} {scale[1]}parameters" if scale[1] else f"{count:,} parameters"]
    if plan.workload.generates:
        return [*words, f"a context of {plan.workload.context:,} positions"]
    for name in graph.inputs[:1]:
        tensor = graph.tensor[name]
        if tensor.dtype.startswith("int") and tensor.shape:
            return [*words, f"{tensor.shape[-1]:,} tokens a sample"]
        size = "×".join(map(str, tensor.shape[1:])) or "1"
        unit = "pixels" if len(tensor.shape) == 4 else "number" if size == "1" else "numbers"
        words.append(f"{size} {unit} a sample")
    return words


def _alone(plan: Plan) -> dict[str, Any] | None:
    """Return the best device with all operators, and the plan's speedup over it; None if no device can run all.

    Where none has the memory, the one that would be fastest if it had, and no speedup over what cannot run.
    """
    if plan.one_device is not None:
        best, seconds = plan.one_device.placement.device[0], plan.one_device.predicted_s
        return {"device": best, "seconds": number(seconds), "speedup": number(plan.times_one_device), "fits": True}
    total_s = (plan.table.forward_s + plan.table.backward_s).sum(axis=0)
    best = int(total_s.argmin())
    if not isfinite(total_s[best]):
        return None
    count = plan.workload.micro_batches if plan.workload.trains else 1
    return {"device": best, "seconds": number(count * total_s[best]), "speedup": None, "fits": False}


def _forbidden(plan: Plan) -> list[list[Any]]:
    """Return [operator, devices] where constraints alone keep operators from devices on which they could run."""
    kept = isfinite_s(plan.costs) & ~isfinite_s(plan.problem.table)
    return [[int(op), np.flatnonzero(kept[op]).tolist()] for op in np.flatnonzero(kept.any(axis=1))]


def isfinite_s(table: CostTable) -> NDArray[np.bool_]:
    """Return [n_ops, n_devices], whether an operator can run on a device."""
    return np.isfinite(table.forward_s + table.backward_s)


def _devices(plan: Plan, busy: Busiest, classes: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Return the devices; ``cost`` is the column of a device in ``ops.cost_s``, the same for devices with equal times.

    ``parts`` has the bytes of `PARTS`.
    """
    load_s, parts = plan.evaluation.load_s, memory_parts(plan)
    column = {device: equal for equal, devices in enumerate(classes) for device in devices}
    return [
        {
            "name": device.name,
            "kind": device.kind,
            "host": device.host,
            "ops": len(plan.placement.operators(i)),
            "load_s": number(load_s[i]),
            "share": number(load_s[i] / busy.seconds) if busy.seconds > 0 else 0,
            "memory_bytes": number(plan.evaluation.memory_bytes[i]),
            "parts": [number(part[i]) for part in parts],
            "capacity_bytes": number(plan.table.capacity_bytes[i]),
            "cost": column[i],
        }
        for i, device in enumerate(plan.cluster.devices)
    ]


PARTS = ("weights", "gradients", "optimizer", "activations", "cache")


def memory_parts(plan: Plan) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return [n_devices], bytes of each of `PARTS`; activations are those of the peak, with all that is temporary."""
    held = partial(plan.placement.held_bytes, n_devices=plan.table.n_devices)
    lasting, in_flight = lasting_bytes(plan.graph), 0 if plan.workload.trains else plan.workload.in_flight
    weights, stays, kept = held(op_bytes(plan.graph) - lasting), held(plan.table.op_bytes), in_flight * held(lasting)
    gradients = held(gradient_bytes(plan.graph)) if plan.workload.trains else np.zeros(len(stays))
    temporary = np.maximum(0.0, plan.evaluation.memory_bytes - stays)
    cache = np.minimum(temporary, in_flight * held(cache_bytes(plan.graph)))
    return weights, gradients, np.maximum(0.0, stays - weights - gradients - kept), temporary - cache, cache + kept


def _seconds(plan: Plan) -> Floats:
    """Return [n_ops, n_devices], seconds of each operator for one micro-batch, in training forward and backward."""
    return plan.costs.forward_s + plan.costs.backward_s


def _weight(plan: Plan) -> Floats:
    """Return [n_ops], the share of each operator in the time where it is placed, or in what stays, if larger."""
    seconds = _seconds(plan)[np.arange(plan.table.n_ops), list(plan.placement.device)]
    n_bytes = plan.table.op_bytes
    return np.maximum(seconds / (seconds.sum() or 1.0), n_bytes / (n_bytes.sum() or 1.0))


def _ops(plan: Plan, classes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return a list for each attribute; ``source`` has the first letter of each operator's source, as m(easured).

    With several copies of the network, ``homes`` has all devices of each operator, and ``device`` the first one's.
    """
    graph, table, seconds = plan.graph, plan.table, _seconds(plan)
    kinds, modules, shapes = Numbers(), Numbers(), Numbers()
    first = [devices[0] for devices in classes]
    return {
        "name": [op.name for op in graph.ops],
        "kind": [kinds[op.kind] for op in graph.ops],
        "module": [modules[op.module] for op in graph.ops],
        "device": plan.placement.device,
        "homes": plan.placement.homes if plan.placement.others else None,
        "bytes": [number(n_bytes) for n_bytes in table.op_bytes],
        "reads": [_shapes(shapes, _read(graph, op, state=False)) for op in graph.ops],
        "state": [_shapes(shapes, _read(graph, op, state=True)) for op in graph.ops],
        "writes": [_shapes(shapes, (graph.tensor[name] for name in op.outputs)) for op in graph.ops],
        "cost_s": [[number(each_s) for each_s in seconds[:, i]] for i in first],
        "source": ["".join(table.source[:, i].astype("U1")) for i in first],
        "kinds": list(kinds),
        "modules": list(modules),
        "shapes": list(shapes),
    }


def _read(graph: Graph, op: Op, state: bool) -> Iterable[Tensor]:
    """Yield the tensors that an operator reads: its parameters and buffers, or the others."""
    for name in dict.fromkeys(op.inputs):
        tensor = graph.tensor[name]
        if (tensor.role in STATE) is state:
            yield tensor


def _shapes(texts: Numbers, tensors: Iterable[Tensor]) -> list[int]:
    return [texts[_shape(tensor)] for tensor in tensors]


def _shape(tensor: Tensor) -> str:
    return f"{'×'.join(map(str, tensor.shape)) or 'scalar'} {tensor.dtype}"


def _ends(graph: Graph) -> dict[str, Any]:
    """Inputs with their readers and outputs with their writers; those without an operator are left out."""
    readers: dict[str, list[int]] = {name: [] for name in graph.inputs}
    writer = {name: i for i, op in enumerate(graph.ops) for name in op.outputs}
    for i, op in enumerate(graph.ops):
        for name in dict.fromkeys(op.inputs):
            if name in readers:
                readers[name].append(i)
    return {
        "inputs": [[name, _shape(graph.tensor[name]), ops] for name, ops in readers.items() if ops],
        "outputs": [
            [name, _shape(graph.tensor[name]), writer[name]] for name in dict.fromkeys(graph.outputs) if name in writer
        ],
    }
