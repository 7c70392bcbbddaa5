"""A plan with a bit of everything: names that are no ASCII, attributes of all kinds, a device that cannot run all."""

import math
from typing import Any

import numpy as np

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.operator_times import OperatorTimes
from costmodels.table import CostTable
from costmodels.tabulate import assemble
from costmodels.workload import Workload
from graphs.ir import Graph, Op, Role, Tensor
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from simulator.placement import Placement

INF = math.inf

GRAPH = Graph(
    name="naïve",
    ops=(
        Op("a", "aten.linear.default", ("x", "w"), ("a",), "left"),
        Op("b", "aten.split.Tensor", ("x",), ("b.0", "b.1"), "", {"size": (1, (2, 3)), "p": 0.5}),
        Op(
            "c", "aten.cat.default", ("a", "b.0"), ("c",), members=(Op("c1", "aten.cat.default", ("a", "b.0"), ("c",)),)
        ),
    ),
    tensors=(
        Tensor("w", (2, 2), "float32", Role.PARAMETER),
        Tensor("x", (4, 2), "float32", Role.INPUT),
        Tensor("a", (4, 2), "float32", Role.ACTIVATION),
        Tensor("b.0", (4, 1), "float32", Role.ACTIVATION),
        Tensor("b.1", (4, 1), "float32", Role.ACTIVATION),
        Tensor("c", (4, 3), "float32", Role.ACTIVATION),
    ),
    inputs=("x",),
    outputs=("c", "b.1"),
)


def device(name: str, kind: str, **fields: Any) -> Device:
    return Device(name, kind, 2e9, {"float32": 1e11, "bfloat16": 2e11}, 1e10, **fields)


CLUSTER = Cluster(
    "desk",
    (
        device("cpu0", "cpu", cores=(0,), launch_s=1e-6, kernels="quick"),
        device("gpu0", "gpu", cuda=0, profile="abc"),
        device("cpu1", "cpu", cores=(1,)),
    ),
    (Link("cpu0", "gpu0", 16.0, 0.5, "bus"), Link("gpu0", "cpu0", 16.0, 0.5, "bus"), Link("cpu0", "cpu1", INF)),
    overlap=False,
)

# seconds on cpu0, gpu0, cpu1; b cannot run on the GPU
SECONDS = [[4.0, 1.0, 4.0], [1.0, INF, 1.0], [2.0, 3.0, 2.0]]
SOURCES = [["measured", "roofline", "measured"]] * 3


def table(seconds: list[list[float]], cluster: Cluster = CLUSTER, sources: list[list[str]] = SOURCES) -> CostTable:
    return assemble(GRAPH, cluster, Workload(batch=4, in_flight=3), OperatorTimes(np.array(seconds), np.array(sources)))


PLAN = Plan(
    graph=GRAPH,
    cluster=CLUSTER,
    workload=Workload(batch=4, in_flight=3),
    table=table(SECONDS),
    goal=Goal.THROUGHPUT,
    placement=Placement((1, 0, 0), (1, 0, 2)),
    status="feasible",
    solver="by hand",
    bound_s=1.3,
)
