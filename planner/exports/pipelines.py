"""A plan as a pipeline in the model's own order, for tools that cut a model between two modules."""

from itertools import chain, groupby, pairwise

from planner.exports.modules import ROOT, Modules, ancestors
from planner.exports.records import device_names, kept_whole
from planner.plans.exported import refuse
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from simulator.training import training_stages

BLOCK = 0.5  # share of all operators; a larger module is too large to keep together
RULE = "cuts an nn.Sequential between its children"


def pipeline_runs(plan: Plan, target: str) -> tuple[tuple[int, ...], ...]:
    """Return [n_stages], the operators of each stage, if the model's own order runs through one stage after the other.

    Raise InputError if the model comes back to a stage that it has left; the error names the operator.
    """
    graph, device = plan.graph, plan.placement.device
    runs = [tuple(run) for _, run in groupby(range(len(device)), key=device.__getitem__)]
    schedule = plan.workload.schedule if plan.goal is Goal.TRAINING else "1f1b"
    stages = training_stages(plan.costs, plan.placement, schedule)
    if list(chain.from_iterable(stages)) == list(range(len(device))):
        return stages
    if len(runs) <= len(stages):
        return tuple(runs)
    left: dict[int, int] = {}  # device → the last operator that the model ran on it
    for before, run in pairwise(runs):
        left[device[before[0]]] = before[-1]
        if device[run[0]] in left:
            break
    op, last = graph.ops[run[0]], graph.ops[left[device[run[0]]]]
    home, away = (plan.cluster.devices[device[number]].name for number in (run[0], before[-1]))
    way_out = "plan with --contiguous"
    if len(stages) == len(set(device)):  # the plan is contiguous, but not in the model's own order
        around = max(set(ancestors(op.module)) & set(ancestors(last.module)), key=len)
        small = around and len(Modules(graph).under[around]) <= len(graph.ops) * BLOCK
        inside = around if small else f"{op.name},{graph.ops[before[-1]].name}"
        way_out = f"plan with --together '{inside}'"
    reason = f"the model goes back to {home} for operator '{op.name}' after it has been on {away}"
    raise refuse(target, reason, "cuts the model's own order into stages", way_out)


def layers_of(plan: Plan, target: str) -> tuple[list[int], list[int]]:
    """Return the plan in layers of an nn.Sequential; a layer without operators belongs to the one before it.

    The result is [n_stages + 1], the bounds of stages, each of which runs the layers from its bound up to the next one,
    and [n_stages], their devices. Raise InputError if the model is no chain of its children, or a child is on two
    devices.
    """
    graph, device, modules = plan.graph, plan.placement.device, Modules(plan.graph)
    children = modules.children[ROOT]
    layer = {op: number for number, path in enumerate(children) for op in modules.under[path]}
    for number, op in enumerate(graph.ops):
        if number not in layer:
            raise refuse(target, f"operator '{op.name}' is in no child of the model", RULE, "put it into a module")
    for writer, reader in graph.edges:
        if layer[reader] - layer[writer] not in (0, 1):
            ends = f"'{children[layer[reader]]}' reads from '{children[layer[writer]]}'"
            raise refuse(target, f"{ends}, which is not the child before it", RULE, "export to torch-split-spec")
    for path in children:
        homes = {device[op] for op in modules.under[path]}
        if len(homes) > 1:
            raise refuse(target, f"module '{path}' is on {device_names(plan, homes)}", RULE, kept_whole(path))
    numbers = modules.layer_numbers
    firsts = [run[0] for run in pipeline_runs(plan, target)]
    return [0, *(numbers[layer[op]] for op in firsts[1:]), numbers[-1] + 1], [device[op] for op in firsts]
