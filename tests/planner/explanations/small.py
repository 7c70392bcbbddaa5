"""Plans small enough to compute with by hand: one byte takes one second on every link."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.operator_times import OperatorTimes
from costmodels.table import CostTable, Source
from costmodels.tabulate import assemble
from costmodels.workload import Workload
from graphs.ir import Graph, Op, Role, Tensor
from planner.planning.find_plan import plan
from planner.planning.make_plan import Search
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from simulator.placement import Placement
from tests.costmodels.parts import table_with


def make_graph(
    modules: Mapping[str, str],
    reads: Mapping[str, str],
    sizes: Mapping[str, int] | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Graph:
    """Operators that write one tensor each, of their own name.

    Args:
        modules: the module of each operator, in their order.
        reads: names of the operators whose tensors each reads, separated by spaces; "x" is the input.
        sizes: bytes of each tensor; 1 if left out.
        parameters: the name of the parameter that an operator reads; it is of 10 bytes.
    """
    parameters = parameters or {}
    sizes = sizes or {}
    tensors = [Tensor("x", (1,), "uint8", Role.INPUT)]
    tensors += [Tensor(name, (10,), "uint8", Role.PARAMETER) for name in dict.fromkeys(parameters.values())]
    tensors += [Tensor(name, (sizes.get(name, 1),), "uint8", Role.ACTIVATION) for name in modules]
    ops = [
        Op(
            name,
            "aten.relu.default",
            (*reads.get(name, "x").split(), *parameters.get(name, "").split()),
            (name,),
            module,
        )
        for name, module in modules.items()
    ]
    return Graph("net", tuple(ops), tuple(tensors), ("x",), (list(modules)[-1],))


def make_plan(
    graph: Graph,
    seconds: Sequence[Sequence[float] | float],
    placed: str,
    goal: Goal = Goal.THROUGHPUT,
    **fields: Any,
) -> Plan:
    """A plan on the devices cpu0, cpu1, ...

    Args:
        graph: from `make_graph`.
        seconds: of each operator, one number for all devices or one for each.
        placed: a digit for the device of each operator.
        goal: of the plan.
        **fields: ``n_devices``, ``order``, ``bound_s``, ``status``, ``solver``, ``in_flight``, ``source`` of each
            operator on each device, ``overlap``, and ``memory_bytes``, ``overhead_s`` and ``kinds`` of the devices.
    """
    n = fields.get("n_devices", int(max(placed)) + 1)
    cluster = Cluster(
        "desk",
        tuple(
            Device(
                name=f"cpu{i}",
                kind=fields.get("kinds", ("core",) * n)[i],
                memory_bytes=fields.get("memory_bytes", 1e9),
                flops_per_s={"float32": 1e9},
                memory_bytes_per_s=1e9,
                overhead_s=fields.get("overhead_s", 0.0),
            )
            for i in range(n)
        ),
        tuple(Link(f"cpu{i}", f"cpu{j}", 1.0) for i in range(n) for j in range(n) if i != j),
        fields.get("overlap", True),
    )
    workload = Workload(in_flight=fields.get("in_flight", 4))
    times = np.array([[row] * n if isinstance(row, int | float) else list(row) for row in seconds], dtype=float)
    source = np.array(fields.get("source", [[Source.GIVEN] * n] * len(times)), dtype=str)
    return Plan(
        graph=graph,
        cluster=cluster,
        workload=workload,
        table=assemble(graph, cluster, workload, OperatorTimes(times, source)),
        goal=goal,
        placement=Placement(tuple(map(int, placed)), fields.get("order", ())),
        status=fields.get("status", "feasible"),
        solver=fields.get("solver", "by hand"),
        bound_s=fields.get("bound_s", 1.0),
    )


def trained(names: str, schedule: str = "1f1b", micro_batches: int = 8, **parameters: str) -> Plan:
    """A plan for training a line of operators of a millisecond each on two devices.

    Args:
        names: of the operators, a letter each.
        schedule: of a step.
        micro_batches: of a step.
        **parameters: the name of the parameter that an operator reads.
    """
    reads = {reader: writer for writer, reader in pairwise(names)}
    line = make_graph(dict.fromkeys(names, "m"), reads, dict.fromkeys(names, 1_000_000), parameters)
    devices = tuple(Device(name, "gpu", 1e12, {"float32": 1e12}, 2e9) for name in ("gpu0", "gpu1"))
    links = (Link("gpu0", "gpu1", 1e12), Link("gpu1", "gpu0", 1e12))
    workload = Workload(mode="training", schedule=schedule, micro_batches=micro_batches)
    search = Search(time_limit_s=10.0, gap=0.0)
    return plan(line, cluster=Cluster("pair", devices, links), goal="training", workload=workload, search=search)


def plan_of(table: CostTable, placement: Placement, goal: Goal) -> Plan:
    """A plan for any table: its graph has the table's flows, in modules of two operators each."""
    tensors = [Tensor(flow.tensor, (1,), "uint8", Role.ACTIVATION) for flow in table.flows]
    ops = [
        Op(
            name=name,
            kind="aten.add.Tensor",
            inputs=tuple(flow.tensor for flow in table.flows if i in flow.readers),
            outputs=tuple(flow.tensor for flow in table.flows if i == flow.writer),
            module=f"part{i // 2}",
        )
        for i, name in enumerate(table.ops)
    ]
    graph = Graph("drawn", tuple(ops), tuple(tensors), (), ())
    devices = tuple(Device(name, "core", 1e9, {"float32": 1e9}, 1e9) for name in table.devices)
    cluster = Cluster("drawn", devices, (), table.overlap)
    return Plan(graph, cluster, Workload(), table, goal, placement, "feasible", "by hand", 0.0)


DIAMOND = make_graph(
    {"a": "stem", "b": "block.left", "c": "block.right", "d": "head"},
    {"b": "a", "c": "a", "d": "b c"},
    {"a": 2},
)
"""::

    a (2 s) ─2 bytes─┬─► b (3 s) ─1 byte─┬─► d (1 s)       a, b and d on cpu0: 2 + 3 + 1 = 6 s
                     └─► c (4 s) ─1 byte─┘                 c on cpu1:                    4 s
"""


def diamond(goal: Goal = Goal.THROUGHPUT, placed: str = "0010", **fields: Any) -> Plan:
    """The plan above; nothing can be below (2 + 3 + 4 + 1) / 2 = 5 s."""
    return make_plan(DIAMOND, (2, 3, 4, 1), placed, goal, **{"bound_s": 5.0} | fields)


def with_costs(plan: Plan, **fields: Any) -> Plan:
    """The same plan with other costs."""
    return replace(plan, table=table_with(plan.table, **fields))
