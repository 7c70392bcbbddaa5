"""A plan made by hand, and plans of any size.

::

    device 0 (4 + 1 + 2 + 1 + 2 = 10 ms):   conv ─► relu ──┬──► right ──► cat ─► head
    device 1 (3 ms):                                       └──► left ─────┘

A transfer of 1024 bytes takes 1 ms + 1024 B / (1 MB/s) = 2.024 ms.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.operator_times import OperatorTimes
from costmodels.tabulate import assemble
from costmodels.workload import Workload
from graphs.ir import Graph, Op, Role, Tensor
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from planner.problem.result import Status
from simulator.placement import Placement
from simulator.timeline import Span, Timeline
from tests.costmodels.parts import table_with

MS = 1e-3
INF = float("inf")


def cluster(n_devices: int = 2) -> Cluster:
    devices = [Device(f"cpu{i}", "cpu", 1e6, {"float32": 1e9}, 1e9) for i in range(n_devices)]
    links = [Link(a.name, b.name, 1e6, 1 * MS) for a in devices for b in devices if a is not b]
    return Cluster("desk", tuple(devices), tuple(links))


def fork_graph(name: str = "fork", first: str = "conv") -> Graph:
    """The network above; its first operator may have another name."""
    activation = [("a", 4), ("b", 4), ("c", 4), ("d", 4), ("e", 8)]
    return Graph(
        name,
        ops=(
            Op(first, "aten.conv2d.default", ("image", "w"), ("a",), "stem.conv"),
            Op("relu", "aten.relu.default", ("a",), ("b",), "stem.relu"),
            Op("left", "aten.conv2d.default", ("b",), ("c",), "block.left"),
            Op("right", "mylib.twist.default", ("b",), ("d",), "block.right"),
            Op("cat", "aten.cat.default", ("c", "d"), ("e",), "block"),
            Op("head", "aten.linear.default", ("e", "v"), ("f",)),
        ),
        tensors=(
            Tensor("image", (1, 3, 8, 8), "float32", Role.INPUT),
            Tensor("w", (4, 3, 1, 1), "float32", Role.PARAMETER),
            Tensor("v", (8, 8), "float32", Role.PARAMETER),
            *(Tensor(tensor, (1, channels, 8, 8), "float32", Role.ACTIVATION) for tensor, channels in activation),
            Tensor("f", (), "float32", Role.ACTIVATION),
        ),
        inputs=("image",),
        outputs=("f",),
    )


def fork_plan(graph: Graph | None = None, goal: Goal = Goal.THROUGHPUT, bound_s: float = 9 * MS) -> Plan:
    graph = graph or fork_graph()
    workload = Workload(batch=2, in_flight=4)
    times = np.array([[4, 4], [1, 1], [3, 3], [2, 2], [1, 1], [2, INF]]) * MS
    source = np.array([["measured", "roofline"]] * 5 + [["measured", "given"]])
    table = assemble(graph, cluster(), workload, OperatorTimes(times, source))
    return Plan(
        graph=graph,
        cluster=cluster(),
        workload=workload,
        table=table,
        goal=goal,
        placement=Placement((0, 0, 1, 0, 0, 0)),
        status=str(Status.FEASIBLE),
        solver="chain-dp",
        bound_s=bound_s,
    )


def chain_graph(modules: Sequence[str]) -> Graph:
    """Operators op0, op1, ... one after the other, in these modules."""
    names = [f"op{i}" for i in range(len(modules))]
    reads = ["x", *names[:-1]]
    return Graph(
        "chain",
        tuple(Op(name, "aten.relu.default", (reads[i],), (name,), modules[i]) for i, name in enumerate(names)),
        (
            Tensor("x", (4,), "float32", Role.INPUT),
            *(Tensor(name, (4,), "float32", Role.ACTIVATION) for name in names),
        ),
        ("x",),
        (names[-1],),
    )


def chain_plan(modules: Sequence[str], n_devices: int) -> Plan:
    """Equal operators, dealt out to the devices in consecutive parts."""
    graph, workload = chain_graph(modules), Workload()
    n_ops = len(modules)
    table = assemble(
        graph,
        cluster(n_devices),
        workload,
        OperatorTimes(np.full((n_ops, n_devices), 1 * MS), np.full((n_ops, n_devices), "measured")),
    )
    placement = Placement(tuple(i * n_devices // n_ops for i in range(n_ops)))
    return Plan(graph, cluster(n_devices), workload, table, Goal.THROUGHPUT, placement, "feasible", "chain-dp", 1 * MS)


def random_plan(seed: int, n_ops: int, n_devices: int) -> Plan:
    """Any graph: operators that read up to three earlier ones, in modules that may call each other to and fro."""
    random = Random(seed)
    names = [f"op{i}" for i in range(n_ops)]
    modules = ["", "a", "a.x", "a.y", "b", "b.z.w", "b.z.v"]
    readers = [sorted(random.sample(names[:i] or ["x"], min(max(i, 1), random.randint(1, 3)))) for i in range(n_ops)]
    graph = Graph(
        "random",
        tuple(
            Op(name, "aten.add.Tensor", tuple(reads), (name,), random.choice(modules))
            for name, reads in zip(names, readers, strict=True)
        ),
        (
            Tensor("x", (4,), "float32", Role.INPUT),
            *(Tensor(name, (4,), "float32", Role.ACTIVATION) for name in names),
        ),
        ("x",),
        (names[-1],),
    )
    costs = np.array([[random.randint(1, 9) * MS] * n_devices for _ in names])
    table = assemble(graph, cluster(n_devices), Workload(), OperatorTimes(costs, np.full(costs.shape, "given")))
    placement = Placement(tuple(random.randrange(n_devices) for _ in names))
    return Plan(graph, cluster(n_devices), Workload(), table, Goal.THROUGHPUT, placement, "feasible", "given", 0.0)


def training_plan() -> Plan:
    """Two stages of two operators, one millisecond forward each and two backward."""
    plan = chain_plan(["", "", "", ""], n_devices=2)
    workload = Workload(mode="training", micro_batches=2, schedule="gpipe")
    table = table_with(plan.table, backward_s=2 * plan.table.forward_s)
    return replace(plan, goal=Goal.TRAINING, workload=workload, table=table)


def slower(timeline: Timeline, factor: float) -> Timeline:
    """A run that took longer everywhere."""
    spans = tuple(
        Span(s.kind, s.resource, s.label, s.micro_batch, s.index, s.start_s * factor, s.end_s * factor)
        for s in timeline.spans
    )
    return Timeline(timeline.devices, timeline.micro_batches, spans)
