"""Plans of rewritten networks for tools that place the network's own operators.

::

    fused      conv + relu on gpu0                   conv on gpu0, relu on gpu0
    copies     a b | a b on gpu0 and gpu1            one of them, by its number
    split      linear[0/2] and linear[1/2]           refused: such a tool places no parts of operators
"""

from dataclasses import replace

import numpy as np

from costmodels.operator_times import OperatorTimes
from costmodels.tabulate import assemble
from graphs.common.arrays import Floats
from graphs.common.errors import InputError
from graphs.ir import unfused
from planner.explanations.common_ops import NetworkOps
from planner.exports.records import device_names
from planner.plans.exported import refuse
from planner.plans.plan import Plan
from simulator.placement import Placement

PARTS_SHOWN = "networkx, model-explorer-devices or onnx-devices, which show parts"


def one_copy(plan: Plan, copy: int | None) -> Plan:
    """Return the plan with one of its copies alone, counted from 1; the plan as it is without a number.

    Raise InputError if there is no such copy.
    """
    copies = plan.placement.copies
    if copy is None:
        return plan
    if not 1 <= copy <= len(copies):
        there = "no copies of the network: leave the copy out" if len(copies) == 1 else f"the copies 1 to {len(copies)}"
        raise InputError(f"copy {copy} is asked for, and the plan has {there}")
    return replace(plan, placement=replace(copies[copy - 1], others=()))


def whole_operators(plan: Plan, target: str) -> Plan:
    """Return the plan with the members of fused operators in their place, of which the first one takes all their time.

    Raise InputError if operators are divided, or the plan has several copies.
    """
    if plan.placement.others:
        reason = f"the plan has {len(plan.placement.copies)} copies of the network, which take turns"
        way_out = "export each of them, as --copy 1, or plan with --rewrites none"
        raise refuse(target, reason, "has one device for each operator", way_out)
    if plan.is_split:
        network = NetworkOps(plan, rewritten=True)
        name = next(iter(network.choices))
        reason = f"operator '{name}' is {network.how(name)}, on {device_names(plan, {*network.parts_on(name)})}"
        way_out = f"plan with --rewrites copies,fuse, or export to {PARTS_SHOWN}"
        raise refuse(target, reason, "has one device for each operator", way_out)
    return _unfused(plan)


def _unfused(plan: Plan) -> Plan:
    numbers = [number for number, op in enumerate(plan.graph.ops) for _ in op.members or (op,)]
    if len(numbers) == len(plan.graph.ops):
        return plan
    first = np.diff(numbers, prepend=-1)[:, None] > 0  # [n_ops, 1]

    def spread(seconds: Floats) -> Floats:
        return np.where(first, seconds[numbers], 0.0)

    graph, table, before = replace(plan.graph, ops=tuple(unfused(plan.graph.ops))), plan.table, plan.placement
    times = OperatorTimes(
        spread(table.forward_s),
        table.source[numbers],
        spread(table.backward_s),
        slowdown=spread(table.slowdown),
        copies_slowdown=spread(table.copies_slowdown),
    )
    order = sorted(range(len(numbers)), key=lambda op: before.rank[numbers[op]])
    placement = Placement(tuple(before.device[number] for number in numbers), tuple(order))
    costs = assemble(graph, plan.cluster, plan.workload, times)
    return replace(plan, graph=graph, table=costs, placement=placement, rewrites=(), network="")
