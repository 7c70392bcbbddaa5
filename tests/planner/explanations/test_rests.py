"""What estimates from data sheets rest on, and by how much a measurement on another device corrects them."""

from dataclasses import replace

import pytest

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.cluster.sheet import DataSheet
from costmodels.estimates.parameters import parameters_for
from costmodels.measured import Measurement, Profile
from costmodels.operators.keys import op_keys
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.ir import Graph, Op, Role, Tensor
from planner.cli.explain_ import _rests
from planner.explanations.rests import EstimateBasis, estimate_bases
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from simulator.placement import Placement

SHEET = DataSheet("Ampere", units=10, clock_hz=1e9, cache_bytes=1e6)
HERE = Device("here", "measured", 1e12, {"float32": 1e12}, 1e11, launch_s=5e-6, sheet=SHEET, profile="abc")
THERE = replace(HERE, name="there", kind="elsewhere", memory_bytes_per_s=2e11, profile="")
CLUSTER = Cluster("two", (HERE, THERE), (Link("here", "there", 1e9, 1e-6),))
GRAPH = Graph(
    "net",
    (Op("a", "aten.linear.default", ("x", "weight"), ("a",)), Op("y", "aten.relu.default", ("a",), ("y",))),
    (
        Tensor("x", (4096, 512), "float32", Role.INPUT),
        Tensor("weight", (512, 512), "float32", Role.PARAMETER),
        Tensor("a", (4096, 512), "float32", Role.ACTIVATION),
        Tensor("y", (4096, 512), "float32", Role.ACTIVATION),
    ),
    ("x",),
    ("y",),
)


def bases(longer: tuple[float, float] | None) -> tuple[EstimateBasis, ...]:
    """Of a plan for the device that nobody measured; ``longer`` is how the other one compares with its estimate."""
    workload = Workload()
    seconds = tabulate(GRAPH, CLUSTER, workload, {}).forward_s[:, 0].tolist()
    profiles = {}
    if longer:
        measured = [factor * each for factor, each in zip(longer, seconds, strict=True)]
        ops = {key: Measurement(each, 0.0, 9) for key, each in zip(op_keys(GRAPH), measured, strict=True)}
        profiles = {"abc": Profile("abc", {}, ops)}
    table = tabulate(GRAPH, CLUSTER, workload, profiles)
    where = Placement((1, 1))
    return estimate_bases(Plan(GRAPH, CLUSTER, workload, table, Goal.LATENCY, where, "feasible", "by hand", 0.0))


def test_an_estimate_says_by_how_much_a_measured_device_corrects_it() -> None:
    product, relu = bases(longer=(1.5, 0.8))
    assert (product.kernel_kind, relu.kernel_kind) == ("product", "element-wise")
    assert (product.correction, relu.correction) == pytest.approx((1.5, 0.8))
    assert product.arithmetic_share == parameters_for(SHEET).arithmetic_share["product"]
    head, *rows = [line.split() for line in _rests((product, relu))][2:]
    assert head[-1] == "corrected"
    assert [row[-2:] for row in rows[:2]] == [["×", "1.50"], ["×", "0.80"]]


def test_an_estimate_without_measurements_is_not_corrected() -> None:
    found = bases(longer=None)
    assert [basis.correction for basis in found] == [1.0, 1.0]
    assert not any("corrected" in line for line in _rests(found))
