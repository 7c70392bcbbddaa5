"""Tables: what a network computes of positions, masks and constants, and of no parameter.

::

    arange ─► cos, sin ─┬─► layer 0        tables: arange, cos and sin. They are small, and each device that reads one
             embed ─────┴─► layer 1        gets a copy, so where a plan has them never stops an export.
"""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import replace

from graphs.ir import Graph, Role
from planner.exports.modules import ancestors
from planner.plans.plan import Plan


def tables(graph: Graph) -> frozenset[int]:
    """Return the operators that depend on no parameter, and on no input but whole numbers and truth values."""
    counts = {
        tensor.name
        for tensor in graph.tensors
        if tensor.role is Role.PARAMETER or (tensor.role is Role.INPUT and _is_floating(tensor.dtype))
    }
    found: set[int] = set()
    for number, op in enumerate(graph.ops):
        if counts.isdisjoint(op.inputs):
            found.add(number)
        else:
            counts.update(op.outputs)
    return frozenset(found)


def with_tables_near(plan: Plan) -> Plan:
    """Return the plan with each table on the device of the operator before it or after it, by their modules.

    Of both, the one counts that has more modules in common with the table; of equals, the one before.
    """
    graph, device, apart = plan.graph, list(plan.placement.device), tables(plan.graph)
    others = [number for number in range(len(device)) if number not in apart]
    if not apart or not others:
        return plan
    for number in apart:
        next_one = bisect(others, number)
        near = others[max(0, next_one - 1) : next_one + 1]
        device[number] = device[max(near, key=lambda other: _in_common(graph, number, other))]
    return replace(plan, placement=replace(plan.placement, device=tuple(device)))


def _in_common(graph: Graph, one: int, other: int) -> int:
    around: Sequence[str] = ancestors(graph.ops[other].module)
    return sum(path in around for path in ancestors(graph.ops[one].module))


def _is_floating(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))
