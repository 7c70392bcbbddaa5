"""A plan as a pipeline in the order in which the model itself runs, for tools that cut it between two modules."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise

from planner.export.modules import Modules, ancestors, common
from planner.export.records import kept_whole, listed, refuse
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from simulator.training import training_stages

BLOCK = 0.5  # a module with more of all operators is too much to keep together


@dataclass(frozen=True)
class Layers:
    """A plan for an nn.Sequential."""

    bounds: tuple[int, ...]  # [n_stages + 1], numbers of layers: a stage runs those from its bound to the next one
    devices: tuple[int, ...]  # [n_stages]

    @property
    def balance(self) -> list[int]:
        """[n_stages], how many layers each stage has."""
        return [stop - start for start, stop in pairwise(self.bounds)]


def pipeline_runs(plan: Plan, target: str) -> tuple[tuple[int, ...], ...]:
    """[n_stages], the operators of each stage, where the model's own order runs through one stage after the other.

    Raises:
        InputError: if it does not: the operator with which it comes back to a stage that it has left.
    """
    graph, device = plan.graph, plan.placement.device
    runs = [tuple(run) for _, run in groupby(range(len(device)), key=device.__getitem__)]
    schedule = plan.workload.schedule if plan.goal is Goal.TRAINING else "1f1b"
    stages = training_stages(plan.costs, plan.placement, schedule)
    if list(chain.from_iterable(stages)) == list(range(len(device))):
        return stages
    if len(runs) <= len(stages):
        return tuple(runs)
    left: dict[int, int] = {}  # device -> the last operator that the model ran there
    for before, run in pairwise(runs):
        left[device[before[0]]] = before[-1]
        if device[run[0]] in left:
            break
    op, last = graph.ops[run[0]], graph.ops[left[device[run[0]]]]
    here, there = (plan.cluster.devices[device[number]].name for number in (run[0], before[-1]))
    way_out = "plan with --contiguous"
    if len(stages) == len(set(device)):  # it is contiguous, but not in the model's own order
        around = common(op.module, last.module)
        small = around and len(Modules(graph).under[around]) <= len(graph.ops) * BLOCK
        inside = around if small else f"{op.name},{graph.ops[before[-1]].name}"
        way_out = f"plan with --together '{inside}'"
    what = f"the model goes back to {here} for operator '{op.name}' after it has been on {there}"
    raise refuse(target, what, "cuts the model's own order into stages", way_out)


def layers_of(plan: Plan, target: str) -> Layers:
    """The plan in layers of an nn.Sequential; a layer without operators belongs to the one before it.

    Raises:
        InputError: if the model is no chain of its children, or a child is on two devices.
    """
    graph, device = plan.graph, plan.placement.device
    modules = Modules(graph)
    children = modules.children[""]
    layer_of = {path: number for number, path in enumerate(children)}
    place = [layer_of.get((ancestors(op.module)[1:2] or ("",))[0], -1) for op in graph.ops]
    rule = "cuts an nn.Sequential between its children"
    for op, layer in zip(graph.ops, place, strict=True):
        if layer < 0:
            raise refuse(target, f"operator '{op.name}' is in no child of the model", rule, "put it into a module")
    for writer, reader in graph.edges:
        if place[reader] - place[writer] not in (0, 1):
            what = (
                f"'{children[place[reader]]}' reads from '{children[place[writer]]}', which is not the child before it"
            )
            raise refuse(target, what, rule, "export to torch-split-spec")
    homes = [{device[op] for op in modules.under[path]} for path in children]
    for path, home in zip(children, homes, strict=True):
        if len(home) > 1:
            names = [plan.cluster.devices[one].name for one in sorted(home)]
            raise refuse(target, f"module '{path}' is on {listed(names)}", rule, kept_whole(path))
    numbers = _numbers(children)
    firsts = [run[0] for run in pipeline_runs(plan, target)]
    bounds = (0, *(numbers[place[op]] for op in firsts[1:]), numbers[-1] + 1)
    return Layers(bounds, tuple(device[op] for op in firsts))


def _numbers(children: Sequence[str]) -> list[int]:
    """Positions of children: their names where these are numbers, as nn.Sequential gives them, else counted."""
    named = [int(name) for name in children if name.isdecimal()]
    ascending = all(earlier < later for earlier, later in pairwise(named))
    return named if len(named) == len(children) and ascending else list(range(len(children)))
