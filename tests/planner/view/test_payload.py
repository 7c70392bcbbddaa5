import json
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from costmodels.cluster.prices import HourlyPrice
from planner.plans.prediction import predict
from planner.plans.runs import MeasuredRun
from planner.problem.problem import Goal
from planner.view.payload import graph_payload, payload
from tests.planner.view.samples import MS, chain_plan, fork_graph, fork_plan, slower, training_plan

SENT_S = pytest.approx(1 * MS + 1024 / 1e6)


def test_it_is_json() -> None:
    plan = fork_plan()
    text = json.dumps(payload(plan, predict(plan, 3), MeasuredRun(slower(plan.simulate(3), 1.1))), allow_nan=False)
    assert json.loads(text)["summary"]["model"] == "fork"


def test_summary() -> None:
    plan = fork_plan()
    summary = payload(plan, predict(plan))["summary"]
    assert summary["goal"] == "throughput"
    assert (summary["batch"], summary["in_flight"], summary["cluster"]) == (2, 4, "desk")
    assert summary["objective_s"] == pytest.approx(10 * MS)
    assert summary["gap"] == pytest.approx(0.1)  # (10 - 9) / 10
    assert summary["bottleneck"] == {"devices": [0], "links": [], "seconds": pytest.approx(10 * MS)}
    # conv and relu 5, to cpu1 2.024, left 3, back 2.024, cat and head 3
    assert summary["latency_s"] == pytest.approx(15.048 * MS)
    assert summary["samples_per_s"] == pytest.approx(2 / plan.period_s, rel=1e-5)
    assert summary["run"] is None
    assert summary["violations"] == ()


def test_shares_of_the_sources() -> None:
    plan = fork_plan()
    # 10 ms measured on cpu0, 3 ms by the roofline on cpu1
    shares = payload(plan, predict(plan))["summary"]["shares"]
    assert shares == {
        "measured": pytest.approx(10 / 13, rel=1e-5),
        "learned": 0,
        "estimated": pytest.approx(3 / 13, rel=1e-5),
        "given": 0,
    }


def test_the_best_device_alone_is_the_one_that_can_run_everything() -> None:
    plan = fork_plan()
    isolated = payload(plan, predict(plan))["summary"]["alone"]
    assert (isolated["device"], isolated["seconds"], isolated["fits"]) == (0, pytest.approx(13 * MS), True)
    assert isolated["speedup"] == pytest.approx(13 * MS / plan.period_s, rel=1e-5)


def test_no_speedup_over_a_device_that_cannot_hold_the_network() -> None:
    plan = fork_plan()
    small = replace(plan, table=replace(plan.table, capacity_bytes=np.full(2, 1.0)))
    # cpu1 cannot run the last operator, so it is cpu0 that would take 13 ms if it held all
    assert small.one_device is None
    alone = payload(small, predict(plan))["summary"]["alone"]
    assert alone == {"device": 0, "seconds": pytest.approx(13 * MS), "speedup": None, "fits": False}


def test_for_latency_the_division_is_compared_by_latency() -> None:
    plan = fork_plan(goal=Goal.LATENCY)
    assert payload(plan, predict(plan))["summary"]["alone"]["speedup"] == pytest.approx(13 / 15.048, rel=1e-5)


def test_devices() -> None:
    plan = fork_plan()
    first, second = payload(plan, predict(plan))["devices"]
    assert (first["name"], first["kind"], first["ops"], second["ops"]) == ("cpu0", "cpu", 5, 1)
    assert (first["load_s"], second["load_s"]) == (pytest.approx(10 * MS), pytest.approx(3 * MS))
    assert (first["share"], second["share"]) == (1, pytest.approx(0.3))
    assert first["memory_bytes"] == plan.evaluation.memory_bytes[0]
    assert first["capacity_bytes"] == 1_000_000


def test_operators() -> None:
    plan = fork_plan()
    ops = payload(plan, predict(plan))["ops"]
    assert ops["name"] == ["conv", "relu", "left", "right", "cat", "head"]
    assert ops["device"] == (0, 0, 1, 0, 0, 0)
    assert ops["kinds"][ops["kind"][2]] == "aten.conv2d.default"
    assert ops["modules"][ops["module"][4]] == "block"
    assert ops["bytes"] == [4 * 3 * 4, 0, 0, 0, 0, 8 * 8 * 4]
    assert [ops["shapes"][i] for i in ops["reads"][0]] == ["1×3×8×8 float32"]
    assert [ops["shapes"][i] for i in ops["state"][0]] == ["4×3×1×1 float32"]
    assert [ops["shapes"][i] for i in ops["writes"][5]] == ["scalar float32"]


def test_times_by_column_and_where_they_come_from() -> None:
    plan = fork_plan()
    data = payload(plan, predict(plan))
    assert [device["cost"] for device in data["devices"]] == [0, 1]
    assert data["ops"]["cost_s"] == [
        [0.004, 0.001, 0.003, 0.002, 0.001, 0.002],
        [0.004, 0.001, 0.003, 0.002, 0.001, None],
    ]
    assert data["ops"]["source"] == ["mmmmmm", "rrrrrg"]


def test_equal_devices_share_a_column() -> None:
    plan = chain_plan([""] * 6, n_devices=3)
    data = payload(plan, predict(plan))
    assert [device["cost"] for device in data["devices"]] == [0, 0, 0]
    assert data["ops"]["cost_s"] == [[0.001] * 6]


def test_ends_flows_and_cuts() -> None:
    plan = fork_plan()
    data = payload(plan, predict(plan))
    assert data["ends"]["inputs"] == [["image", "1×3×8×8 float32", [0]]]
    assert data["ends"]["outputs"] == [["f", "scalar float32", 5]]
    assert data["flows"][1] == ["b", 1, (2, 3), 1024, 0]
    # b goes to cpu1 for left, left's c comes back
    assert data["cuts"] == [[1, 0, 1, SENT_S, 1], [2, 1, 0, SENT_S, 1]]


def unpacked(timeline: dict[str, Any]) -> dict[tuple[int, int], tuple[float, float]]:
    """Seconds from and to of the last span of each lane and index."""
    found, end_ns = {}, dict[int, int]()
    for what, _, wait_ns, takes_ns in zip(*timeline["spans"].values(), strict=True):
        lane, _, index, _ = timeline["what"][what]
        start_ns = end_ns.get(lane, 0) + wait_ns
        end_ns[lane] = start_ns + takes_ns
        found[lane, index] = start_ns / 1e9, end_ns[lane] / 1e9
    return found


def test_stages_are_those_of_the_timeline() -> None:
    plan = fork_plan()
    data = payload(plan, predict(plan, 1))
    assert data["stages"] == [(0, 1), (2,), (3,), (4, 5)]
    predicted = data["timelines"]["predicted"]
    assert predicted["lanes"] == ["cpu0", "cpu1", "cpu0 → cpu1", "cpu1 → cpu0"]
    found = unpacked(predicted)
    assert found[0, 0] == pytest.approx((0, 5 * MS))
    assert found[2, 1] == pytest.approx((5 * MS, 7.024 * MS))  # flow 1 on its way
    assert found[1, 1] == pytest.approx((7.024 * MS, 10.024 * MS))
    assert predicted["makespan_s"] == pytest.approx(15.048 * MS)


def test_a_measured_run_stands_beside_its_prediction() -> None:
    plan = fork_plan()
    predicted = plan.simulate(6)
    data = payload(plan, predict(plan, 6), MeasuredRun(slower(predicted, 1.25)))
    assert list(data["timelines"]) == ["predicted", "measured"]
    run = data["summary"]["run"]
    assert run["of"] == "throughput"
    assert run["predicted"] == pytest.approx(plan.samples_per_s, rel=1e-5)
    assert run["measured"] == pytest.approx(2 / (1.25 * predicted.period_s), rel=1e-5)


def test_a_measured_micro_batch_alone_is_a_latency() -> None:
    plan = fork_plan()
    run = payload(plan, predict(plan, 1), MeasuredRun(slower(plan.simulate(1), 2)))["summary"]["run"]
    assert (run["of"], run["usage"]) == ("latency", [])
    assert (run["predicted"], run["measured"]) == (pytest.approx(15.048 * MS), pytest.approx(30.096 * MS))


def test_a_slow_link_is_the_bottleneck() -> None:
    plan = chain_plan(["", ""], n_devices=2)  # 1 ms on each device, 1 ms + 16 B / (1 MB/s) between them
    bottleneck = payload(plan, predict(plan))["summary"]["bottleneck"]
    assert bottleneck == {"devices": [], "links": ["cpu0 → cpu1"], "seconds": pytest.approx(1.016 * MS)}


def test_a_bound_that_is_not_known() -> None:
    plan = fork_plan(bound_s=0.0)
    assert payload(plan, predict(plan))["summary"]["gap"] == 1
    assert payload(fork_plan(bound_s=-inf), predict(plan))["summary"]["bound_s"] is None


def test_names_are_kept_as_they_are() -> None:
    plan = fork_plan(fork_graph("a & b", first="</script>"))
    data = payload(plan, predict(plan))
    assert data["summary"]["model"] == "a & b"
    assert data["ops"]["name"][0] == "</script>"


def test_memory_over_time_has_a_curve_for_each_device_in_use() -> None:
    plan = fork_plan()
    (first, second) = payload(plan, predict(plan, 1))["memory"]["predicted"]
    assert (first["device"], second["device"]) == (0, 1)
    assert first["time_s"][0] == 0
    assert first["bytes"][0] >= 4 * 3 * 4 + 8 * 8 * 4  # its parameters are there from the start
    assert max(first["bytes"]) == first["peak_bytes"]
    assert first["bytes"][first["time_s"].index(first["peak_s"])] == first["peak_bytes"]
    isolated = chain_plan(["", ""], n_devices=1)
    assert len(payload(isolated, predict(isolated, 1))["memory"]["predicted"]) == 1


def test_a_training_step_has_stages_actions_and_memory() -> None:
    plan = training_plan()
    data = payload(plan, predict(plan), MeasuredRun(plan.simulate()))
    assert data["summary"]["step"] == [2, "gpipe"]
    assert data["stages"] == [(0, 1), (2, 3)]
    assert {"0F", "1B"} <= set(data["timelines"]["predicted"]["labels"])
    assert [0, data["timelines"]["predicted"]["labels"].index("0F"), 0, 1] in map(
        list, data["timelines"]["predicted"]["what"]
    )
    assert list(data["memory"]) == ["predicted"]  # what a real step keeps is not known
    assert data["ops"]["cost_s"] == [[0.003] * 4]
    step_s = pytest.approx(plan.latency_s, rel=1e-5)
    assert data["summary"]["run"] == {"of": "latency", "predicted": step_s, "measured": step_s, "usage": []}


def test_a_language_model_has_tokens_and_priced_devices_a_price() -> None:
    chain = chain_plan(["", ""], n_devices=2)
    reader = replace(chain.graph.ops[0], kind="aten.embedding.default")
    plan = replace(chain, graph=replace(chain.graph, ops=(reader, *chain.graph.ops[1:])))
    priced = tuple(replace(device, price=HourlyPrice.parse("2 USD/h")) for device in plan.cluster.devices)
    summary = graph_payload(replace(plan, cluster=replace(plan.cluster, devices=priced)))["summary"]
    assert summary["language"] == [
        pytest.approx(4 / 1.016e-3, rel=1e-5),
        pytest.approx(0, abs=1e-5),
        "tokens/s of the prompt, in one pass",
    ]  # four tokens in 1 ms + 16 B / (1 MB/s)
    assert summary["price"] == "4 USD/h"
    unread = graph_payload(chain)["summary"]
    assert (unread["language"], unread["price"]) == (None, None)
