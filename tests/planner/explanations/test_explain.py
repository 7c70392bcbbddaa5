"""The explanation of `small.DIAMOND` as a whole; its pieces have tests of their own in `tests/planner/why`."""

from dataclasses import replace
from math import inf

import pytest

from costmodels.table import Source
from graphs.ir import Graph, Op
from planner.explanations.bottleneck import bottleneck
from planner.explanations.cuts import CutMove
from planner.explanations.explain import DeviceShare, KindShare, SingleDevice, explain
from planner.explanations.regions import Region
from planner.problem.constraints import pin
from planner.problem.problem import Goal
from tests.planner.explanations.small import DIAMOND, diamond, make_graph, make_plan


def test_what_was_asked_and_what_came_of_it() -> None:
    e = explain(diamond(in_flight=1))
    assert (e.model, e.cluster, e.goal, e.batch, e.in_flight) == ("net", "desk", Goal.THROUGHPUT, 1, 1)
    # a 2, sent 2, c 4, sent 1, d 1: 10 s alone, and one after the other when there is one in flight
    assert (e.objective_s, e.period_s, e.latency_s) == (6.0, 10.0, 10.0)
    assert e.bottleneck == bottleneck(diamond(in_flight=1))


def test_devices_share_the_load() -> None:
    # cpu0: 2 + 3 + 1 of 10 s, cpu1: 4; nothing but 4 bytes of activations at once (a, b, c, while c is written)
    # for each of 4 in flight
    e = explain(diamond(n_devices=3, memory_bytes=100.0))
    regions = (Region("stem", "stem", 1, 1), Region("block.left", "block.left", 1, 1), Region("head", "head", 1, 1))
    assert e.devices == (
        DeviceShare("cpu0", "core", 3, 6.0, 0.6, 20.0, 100.0, regions),
        DeviceShare("cpu1", "core", 1, 4.0, 0.4, 20.0, 100.0, (Region("block.right", "block.right", 1, 1),)),
        DeviceShare("cpu2", "core", 0, 0.0, 0.0, 0.0, 100.0, ()),
    )


def test_transfers_are_load_where_they_occupy_devices() -> None:
    # 3 s of transfers at both ends: 9 and 7 of 16
    e = explain(diamond(overlap=False))
    assert [(device.load_s, device.share) for device in e.devices] == [(9.0, 9 / 16), (7.0, 7 / 16)]


def test_the_best_device_alone() -> None:
    assert explain(diamond()).isolated == SingleDevice("cpu0", 10.0)
    rows = [[2.0, 1.0], [3.0, 2.0], [4.0, 2.0], [1.0, 1.0]]
    assert explain(make_plan(DIAMOND, rows, "0010")).isolated == SingleDevice("cpu1", 6.0)
    rows[0] = [2.0, inf]
    assert explain(make_plan(DIAMOND, rows, "0010")).isolated == SingleDevice("cpu0", 10.0)
    rows[1] = [inf, 2.0]
    assert explain(make_plan(DIAMOND, rows, "0110")).isolated is None


def test_no_device_alone_has_the_memory() -> None:
    # 10 bytes each and 1 in flight (a is 2, x was 1: 3 at once)
    graph = make_graph({"a": "m", "b": "m"}, {"b": "a"}, {"a": 2}, parameters={"a": "p", "b": "q"})
    e = explain(make_plan(graph, (1, 1), "01", memory_bytes=14.0, in_flight=1))
    assert e.isolated is None
    assert [device.memory_bytes for device in e.devices] == [14.0, 14.0]


def test_moves_are_judged_for_as_many_cuts_as_asked() -> None:
    moves = [CutMove("a", 1, "cpu1", 6.0, ""), CutMove("c", 1, "cpu0", 10.0, "")]
    assert list(explain(diamond(), cuts=1).moves) == moves
    assert [*explain(diamond()).moves][2:] == [moves[1], CutMove("d", 1, "cpu1", 5.0, "", better=True)]
    assert list(explain(diamond(), cuts=0).moves) == []


WORK = "for all operators take that long even if divided at will with free transfers"
PATH = "for the longest path takes that long even on the fastest devices with free transfers"


@pytest.mark.parametrize(
    ("goal", "bound_s", "because"),
    [
        (Goal.THROUGHPUT, 5.0, WORK),  # 10 s of work on two devices
        (Goal.THROUGHPUT, 5.5, "which the search has proved"),
        (Goal.LATENCY, 7.0, PATH),  # a 2, c 4, d 1
        (Goal.LATENCY, 8.0, "which the search has proved"),
    ],
)
def test_how_the_bound_is_known(goal: Goal, bound_s: float, because: str) -> None:
    plan = diamond(goal, bound_s=bound_s, status="feasible", solver="ilp")
    proof = explain(plan).proof
    assert (proof.because, proof.bound_s, proof.gap) == (because, bound_s, 1 - bound_s / plan.objective_s)
    assert (proof.status, proof.solver) == ("feasible", "ilp")


def test_work_may_bound_a_latency() -> None:
    # two operators of 4 s side by side and one of 1 s: 9 s of work on one device, the longest path is 5 s
    graph = make_graph(dict.fromkeys("abc", "m"), {"c": "a b"})
    assert explain(make_plan(graph, (4, 4, 1), "000", Goal.LATENCY, bound_s=9.0)).proof.because == WORK


def sourced(*sources: Source) -> dict[str, float]:
    plan = diamond(source=[[source] * 2 for source in sources])
    return {str(source): share for source, share in explain(plan).sources.items()}


def test_where_the_times_of_the_plan_came_from() -> None:
    # a 2, b 3, c 4, d 1 of 10
    measured, roofline, given = Source.MEASURED, Source.ROOFLINE, Source.GIVEN
    assert sourced(measured, roofline, roofline, measured) == {"measured": 0.3, "roofline": 0.7}
    assert sourced(given, given, given, given) == {"given": 1.0}


def test_only_where_they_run() -> None:
    """cpu1 was not measured, but nothing runs there."""
    e = explain(diamond(placed="0000", n_devices=2, source=[["measured", "roofline"]] * 4))
    assert e.sources == {Source.MEASURED: 1.0}
    assert e.estimated == ()


def test_kinds_that_were_estimated_and_those_that_were_guessed() -> None:
    kinds = ("aten.tanh.default", "acme.twist.default", "aten.tanh_.default", "aten.relu.default")
    ops = tuple(
        Op(op.name, kind, op.inputs, op.outputs, op.module) for op, kind in zip(DIAMOND.ops, kinds, strict=True)
    )
    graph = Graph("net", ops, DIAMOND.tensors, DIAMOND.inputs, DIAMOND.outputs)
    source = [["roofline"] * 2] * 3 + [["measured"] * 2]
    # tanh a 2 + c 4 of 10, twist b 3; relu was measured
    assert explain(make_plan(graph, (2, 3, 4, 1), "0010", source=source)).estimated == (
        KindShare("aten.tanh", 0.6, 2, False),
        KindShare("acme.twist", 0.3, 1, True),
    )


def test_a_network_that_takes_no_time() -> None:
    e = explain(make_plan(DIAMOND, (0, 0, 0, 0), "0000", bound_s=0.0))
    assert (e.objective_s, e.devices[0].share, e.proof.gap) == (0.0, 0.0, 0.0)
    assert e.sources == {}


def test_a_device_that_constraints_keep_something_off_is_not_the_best_one_alone() -> None:
    constrained = replace(diamond(), constraints=(pin("a", "cpu0"),))
    assert explain(constrained).isolated == SingleDevice("cpu0", 10.0)
    assert explain(replace(diamond(), constraints=(pin("a", "cpu0"), pin("c", "cpu1")))).isolated is None


def test_what_counts_is_simulated() -> None:
    assert explain(diamond(in_flight=1)).now_s == 10.0  # streaming; the busiest device has 6 s
    assert explain(diamond(Goal.LATENCY)).now_s == 10.0
    assert explain(diamond(placed="0011")).replanned.again_s == 5.0
