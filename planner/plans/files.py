"""Writes and reads plan.json. A proof in a file is checked as far as possible without another search.

::

    figures or a status that the placement and the costs have not  ─►  the plan was changed: by hand, with an own bound
    a bound that the plan or another placement contradicts         ─►  an error
    a bound for any number of copies that does not follow          ─►  an error

Another bound that nothing contradicts is believed: to check it is to search.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import isclose, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.dictionary import cluster_from_dict, cluster_to_dict
from costmodels.generation_costs import PhaseCosts, mean_pass, of_pass
from costmodels.operator_times import OperatorTimes
from costmodels.table import CostTable, Source
from costmodels.tabulate import assemble, with_flows, with_times
from costmodels.units import format_seconds
from costmodels.workload import Workload
from graphs.common import checks
from graphs.common.documents import DAMAGED, check_version, read_json
from graphs.common.errors import InputError
from graphs.files import graph_from_dict, graph_to_dict, write_text
from graphs.ir import Graph
from graphs.kinds import KINDS, kind_of
from graphs.phases import Phase
from graphs.rewrites.rewrite import rewrite_from_dict, rewrite_to_dict
from planner.plans.plan import Plan, plan_by_hand
from planner.plans.simplification import Simplification
from planner.problem.constraints import Constraint, Rule
from planner.problem.devices import equal_columns
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal
from planner.problem.result import PROOF_TOLERANCE, Status
from planner.solvers.copies import copies_of_everything
from planner.solvers.fewer_devices import best_single_device
from planner.solvers.robust import Robustness
from simulator.placement import Placement

VERSION = 1
PACES = ("pace", "pace_spread")  # by kind of device
COSTS = ("forward_s", "backward_s", "spread", "slowdown", "copies_slowdown", "source")
"""The columns of costs in a file, for each operator on each device."""


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return a plan as a JSON object. Nothing in it depends on when or how fast the plan was made."""
    phases = [_phase(each) for each in plan.phases]
    return {
        **answer_to_dict(plan),
        "costs": _costs(plan.table),
        "phases": phases,
        "graph": graph_to_dict(plan.graph),
    }


def answer_to_dict(plan: Plan) -> dict[str, Any]:
    """Return a plan as a JSON object without its graph and its costs."""
    return {
        "version": VERSION,
        "model": plan.graph.name,
        "fingerprint": plan.graph.fingerprint,
        "network": plan.network_fingerprint or None,
        "goal": str(plan.goal),
        "constraints": [
            {"rule": str(c.rule), "patterns": list(c.patterns), "devices": list(c.devices)} for c in plan.constraints
        ],
        "rewrites": [rewrite_to_dict(rewrite) for rewrite in plan.rewrites],
        "whole_share": plan.whole_share,
        "workload": asdict(plan.workload),
        "solver": plan.solver,
        "status": plan.status,
        "objective_s": plan.objective_s,
        "bound_s": plan.bound_s,
        "gap": plan.gap,
        "robustness": asdict(plan.robustness) if plan.robustness else None,
        "simplification": asdict(plan.simplification) if plan.simplification else None,
        "predicted": {
            "period_s": plan.period_s,
            "period_range_s": plan.period_range.ends,
            "latency_s": plan.latency_s,
            "latency_range_s": plan.latency_range.ends,
            "samples_per_s": _finite(plan.samples_per_s),
            "load_s": dict(zip(plan.table.devices, plan.evaluation.load_s.tolist(), strict=True)),
            "memory_bytes": dict(zip(plan.table.devices, plan.evaluation.memory_bytes.tolist(), strict=True)),
        },
        **_placed(plan, plan.placement),
        "copies": [_placed(plan, other) for other in plan.placement.others],
        "cluster": cluster_to_dict(plan.cluster),
        **{name: {kind: dict(of) for kind, of in sorted(getattr(plan, name).items())} for name in PACES},
    }


def plan_from_dict(document: Mapping[str, Any]) -> Plan:
    """Return the plan of a JSON object. Predicted figures are computed again, not believed, see `planner.plans.files`.

    Raises:
        InputError: if the version is another, a field is missing, the parts do not fit together, or something
            contradicts the proof.
    """
    check_version(document, "plan", VERSION, "plan again")
    try:
        graph = graph_from_dict(document["graph"])
        cluster = cluster_from_dict(document["cluster"])
        workload = Workload(**document["workload"])
        table, phases = _tables(document, graph, cluster, workload)
        others = tuple(_placement(copy, graph, cluster) for copy in document["copies"])
        placement = replace(_placement(document, graph, cluster), others=others)
        placement.check(table)
        plan = Plan(
            graph=graph,
            cluster=cluster,
            workload=workload,
            table=table,
            goal=Goal(document["goal"]),
            placement=placement,
            status=str(Status(document["status"])),
            solver=document["solver"],
            bound_s=float(document["bound_s"]),
            constraints=tuple(
                Constraint(Rule(c["rule"]), tuple(c["patterns"]), tuple(c["devices"])) for c in document["constraints"]
            ),
            robustness=Robustness(**document["robustness"]) if document["robustness"] else None,
            simplification=Simplification(**document["simplification"]) if document["simplification"] else None,
            rewrites=tuple(map(rewrite_from_dict, document["rewrites"])),
            whole_share=_whole_share(document),
            network=_network(document),
            phases=phases,
            **{
                name: {kind: {str(of): float(x) for of, x in each.items()} for kind, each in document[name].items()}
                for name in PACES
            },
        )
        checks.check_fields(plan, "the plan")
        return _confirmed(plan, document)
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(f"the plan is damaged: {error!r}; plan again") from error


def _whole_share(document: Mapping[str, Any]) -> float:
    """Return the time of the network before its split, as a share of that of its parts."""
    share = float(document["whole_share"])
    if not (isfinite(share) and share > 0):
        raise InputError(f"the plan's whole_share is {share:g}; plan again")
    return share


def _network(document: Mapping[str, Any]) -> str:
    """Return the fingerprint of the network before its rewrites."""
    network = document["network"]
    if not isinstance(network, str | None):
        raise TypeError(f"the network is {network!r}")
    return (network or "") if document["rewrites"] else ""


def _placed(plan: Plan, copy: Placement) -> dict[str, Any]:
    """Return the devices of the operators of one copy of the network, and their order if it is not the graph's."""
    ops, devices = plan.graph.ops, plan.table.devices
    return {
        "placement": {op.name: devices[device] for op, device in zip(ops, copy.device, strict=True)},
        "order": None if copy.order == tuple(range(len(ops))) else [ops[i].name for i in copy.order],
    }


def _placement(document: Mapping[str, Any], graph: Graph, cluster: Cluster) -> Placement:
    """Return the placement of a file, the inverse of `_placed`."""
    device_of, order = document["placement"], document["order"] or ()
    for op in graph.ops:
        if op.name not in device_of:
            raise InputError(f"the plan says nothing of operator '{op.name}'; give it a device, or plan again")
        if device_of[op.name] not in cluster.index:
            known = ", ".join(cluster.index)
            raise InputError(f"the plan has operator '{op.name}' on '{device_of[op.name]}'; its devices are {known}")
    for name in (*device_of, *order):
        if name not in graph.index:
            raise InputError(f"the plan names the operator '{name}', which its graph does not have; plan again")
    return Placement(
        tuple(cluster.index[device_of[op.name]] for op in graph.ops), tuple(graph.index[name] for name in order)
    )


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write plan.json: the same bytes for the same plan."""
    checks.instance(plan, Plan, "the plan", "a Plan")
    path = checks.path(path, "the path", "a path to write to")
    text = json.dumps(plan_to_dict(plan), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(text + "\n", path)


def load_plan(path: str | Path) -> Plan:
    """Read plan.json.

    Raises:
        InputError: if the file is missing, not JSON, or not a plan of this version. The message names the file.
    """
    path = checks.path(path, "the plan", "the path of a plan.json")
    document = read_json(path, "plan")
    kind = kind_of(document)
    if kind == KINDS["hardware"]:
        raise InputError(
            f"'{path}' is a {kind}, which other programs run; `planner export` writes their options, and `planner fit` "
            "draws it"
        )
    if kind != "plan" and (kind or "version" not in document):
        of_it, model = ("of it ", path) if kind == "graph" else ("", "MODEL")
        what = f"a {kind}, no plan" if kind else "no plan"
        raise InputError(f"'{path}' is {what}; make one {of_it}with planner plan {model} --cluster FILE")
    try:
        return plan_from_dict(document)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _times(costs: Sequence[Mapping[str, Any]]) -> OperatorTimes:
    """Return the times of operators, the inverse of `_costs`; columns that devices share are read once."""
    read = {number: _columns(cost) for number, cost in {id(cost): cost for cost in costs}.items()}
    return OperatorTimes(**{name: np.array([read[id(cost)][name] for cost in costs]).T for name in COSTS})


def _columns(cost: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return [n_ops] of each kind of number, infinite where there is none, and of the sources."""
    zeros = [0.0] * len(cost["forward_s"])
    columns = {name: np.array(cost.get(name, zeros), dtype=float) for name in COSTS if name != "source"}
    sources = {source: str(Source(source)) for source in set(cost["source"])}
    found = {name: np.where(np.isnan(values), np.inf, values) for name, values in columns.items()}
    return found | {"source": np.array([sources[source] for source in cost["source"]], dtype=str)}


def _tables(
    document: Mapping[str, Any], graph: Graph, cluster: Cluster, workload: Workload
) -> tuple[CostTable, tuple[PhaseCosts, ...]]:
    """Return the cost table of a file, and its phases in generation; files from before that have no phases."""
    table = assemble(graph, cluster, workload, _times(_by_device(document, cluster)))
    phases = tuple(_phase_costs(each, table, graph, cluster) for each in document.get("phases", ()))
    if workload.generates != bool(phases):
        raise InputError(f"the plan is for {workload.mode} and has {len(phases)} phases; plan again")
    return (mean_pass(phases) if phases else table), phases


def _by_device(document: Mapping[str, Any], cluster: Cluster) -> list[Mapping[str, Any]]:
    """Return the costs of a file for each device of a cluster."""
    cost_of = {name: cost for cost in document["costs"] for name in cost["devices"]}
    return [cost_of[device.name] for device in cluster.devices]


def _phase(costs: PhaseCosts) -> dict[str, Any]:
    """Return a phase of generation: its sizes, its passes, and what differs from phase to phase."""
    return {
        "tokens": costs.phase.tokens,
        "length": costs.phase.length,
        "prompt_passes": costs.prompt,
        "output_passes": costs.output,
        "working_bytes": costs.table.working_bytes,
        "flow_bytes": costs.table.flow_bytes.tolist(),
        "costs": _costs(costs.table),
    }


def _phase_costs(document: Mapping[str, Any], whole: CostTable, graph: Graph, cluster: Cluster) -> PhaseCosts:
    """Return a phase of a file, the inverse of `_phase`; what is the same for all phases is that of ``whole``."""
    prompt, output = (
        checks.integer(document[f"{of}_passes"], f"{of}_passes of a phase") for of in ("prompt", "output")
    )
    times, flow_bytes = _times(_by_device(document, cluster)), np.array(document["flow_bytes"], dtype=float)
    phase = Phase(int(document["tokens"]), int(document["length"]))
    table = of_pass(with_flows(with_times(whole, times, cluster), cluster, flow_bytes), graph, phase)
    return PhaseCosts(phase, prompt, output, replace(table, working_bytes=float(document["working_bytes"])))


def _costs(table: CostTable) -> list[dict[str, Any]]:
    """Return the operators' times and their sources, once for equal devices; without columns of zeros."""
    numbers = {name: getattr(table, name) for name in COSTS}
    return [
        {"devices": [table.devices[device] for device in devices]}
        | {
            name: [_finite(value) if isinstance(value, float) else value for value in values[:, devices[0]].tolist()]
            for name, values in numbers.items()
            if name == "forward_s" or any(values[:, devices[0]])
        }
        for devices in equal_columns(*numbers.values())
    ]


def _finite(value: float) -> float | None:
    """JSON has no infinity: null where an operator cannot run, and where nothing takes time."""
    return value if isfinite(value) else None


SAME = 1e-6  # relative, of figures that were computed on another machine
SLACK = 1e-4  # relative, of bounds by another version of the library for linear programs


def _confirmed(plan: Plan, document: Mapping[str, Any]) -> Plan:
    """Return a plan as in its file, or as a plan made by hand if the figures or the status do not fit the placement."""
    if plan.status not in (Status.OPTIMAL, Status.FEASIBLE, Status.UNKNOWN):
        raise InputError(f"the plan has a placement and the status '{plan.status}'; plan again")
    if not (isfinite(plan.bound_s) and plan.bound_s >= 0):
        raise InputError(f"the plan's bound is {plan.bound_s} s; plan again")
    feasible = plan.evaluation.feasible
    optimal = plan.objective_s <= plan.bound_s * (1 + PROOF_TOLERANCE)
    believable = (feasible or plan.status == Status.UNKNOWN) and (optimal or plan.status != Status.OPTIMAL)
    if not (believable and _has_its_figures(plan, document)):
        from planner.problem.bounds import lower_bound  # late: it needs scipy

        return plan_by_hand(replace(plan, bound_s=min(lower_bound(plan.problem), plan.objective_s)), plan.placement)
    if feasible:
        _check_bound(plan)
    return plan


def _has_its_figures(plan: Plan, document: Mapping[str, Any]) -> bool:
    """Return whether the objective, the loads and the memory in the file are those of the placement and the costs."""
    predicted, judged = document["predicted"], plan.evaluation
    names = [device.name for device in plan.cluster.devices]
    return isclose(document["objective_s"], judged.objective_s, rel_tol=SAME) and all(
        np.allclose([predicted[name][device] for device in names], values, rtol=SAME, atol=0.0)
        for name, values in (("load_s", judged.load_s), ("memory_bytes", judged.memory_bytes))
    )


def _check_bound(plan: Plan) -> None:
    """Check that no placement at hand is better than the bound allows, and that one for any number of copies follows.

    Raises:
        InputError: if one is better, or the bound does not follow from the costs.
    """
    least_s = plan.bound_s / (1 + PROOF_TOLERANCE)
    claim = f"the plan says that nothing is below {format_seconds(plan.bound_s)}"
    if plan.objective_s < least_s:
        raise InputError(f"{claim}, and takes {format_seconds(plan.objective_s)} itself; plan again")
    one = best_single_device(plan.problem) if plan.table.n_ops else None
    if one is not None and one[1] < least_s:
        raise InputError(
            f"{claim}; with all operators on '{plan.table.devices[one[0].device[0]]}' it is {format_seconds(one[1])}; "
            "plan again"
        )
    if not plan.problem.copies or least_s <= 0:
        return
    copies = copies_of_everything(plan.problem, 0.0)
    if copies is not None and (copies_s := evaluate(plan.problem, copies).objective_s) < least_s:
        raise InputError(f"{claim}; with copies of everything it is {format_seconds(copies_s)}; plan again")
    from planner.problem.bounds import lower_bound  # late: it needs scipy

    if (proved_s := lower_bound(plan.problem)) * (1 + SLACK) < least_s:
        raise InputError(
            f"{claim}; for any number of copies its costs prove no more than {format_seconds(proved_s)}; plan again"
        )
