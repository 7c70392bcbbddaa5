"""What the schemas refuse is refused by the readers, and where both can tell, nothing else is."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from costmodels import units
from costmodels.cluster.file import cluster_of
from graphs import files
from graphs.common.errors import InputError
from graphs.files import graph_from_dict, graph_to_dict
from planner.plans import files as planfile
from planner.plans.files import plan_from_dict, plan_to_dict
from planner.plans.schemas import schema
from tests.planner.plans.schemas.documents import at, cluster_document, plan_document
from tests.planner.plans.schemas.validation import objections
from tests.planner.sample import PLAN


def remove(*path: Any) -> Callable[[Any], None]:
    return lambda document: at(document, *path[:-1]).pop(path[-1])


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    return lambda document: at(document, *path[:-1]).__setitem__(path[-1], value)


CLUSTERS = [
    remove("version"),
    remove("device"),
    remove("cluster"),
    remove("link"),
    put("version", value=2),
    put("version", value=3),
    put("version", value="1"),
    put("devices", value=[]),
    put("device", value=[]),
    put("cluster", "overlap", value="yes"),
    put("cluster", "sharing", value="equal"),
    put("cluster", "speed", value=1),
    remove("device", 0, "name"),
    remove("device", 0, "kind"),
    remove("device", 0, "memory"),
    remove("device", 0, "flops"),
    remove("device", 0, "memory_bandwidth"),
    remove("device", 0, "launch"),
    put("device", 0, "flops", value={}),
    put("device", 0, "flops", value={"float32": 1e12}),
    put("device", 0, "memory", value=16),
    put("device", 0, "memory", value="16 Gb"),
    put("device", 0, "memory", value="-1 GiB"),
    put("device", 0, "cores", value=["0"]),
    put("device", 0, "cores", value=[True]),
    put("device", 0, "cuda", value=0),
    put("device", 1, "cuda", value="0"),
    put("device", 1, "like", value="A100"),
    put("device", 1, "memory", value="40 GiB"),
    put("device", 1, "colour", value="red"),
    remove("device", 1, "like"),
    remove("link", 0, "between"),
    remove("link", 0, "bandwidth"),
    put("link", 0, "between", value=["cpu0"]),
    put("link", 0, "from", value="cpu0"),
    put("link", 0, "like", value="PCIe4-x16"),
    put("link", 0, "bandwidth", value="unlimited"),
    put("link", 0, "bandwidth", value="fast"),
    put("link", 0, "latency", value="20"),
    put("link", 0, "points", value=[["64 KiB"]]),
    remove("replicas"),
    remove("replicas", "count"),
    remove("replicas", "bandwidth"),
    remove("replicas", "latency"),
    put("replicas", "count", value=1),
    put("replicas", "rings", value=8),
    put("replicas", "rings", value=0),
    put("replicas", "like", value="NVLink4"),
    put("replicas", "channel", value="bus"),
    put("replicas", "bandwidth", value="unlimited"),
    put("device", 1, "price", value="2.49 USD/h"),
    put("device", 1, "price", value="2.49"),
    put("device", 0, "count", value=2),
    put("level", value=[{"size": 2, "like": "NVLink4"}]),
    put("level", value=[{"size": 2, "like": "NVLink4", "cards": 0}]),
    put("level", value=[{"size": 1, "bandwidth": "1 GB/s"}]),
    put("level", value=[{"like": "NVLink4"}]),
    put("link", 0, "points", value=[["64 KiB", "30 us", "31 us"]]),
]


@pytest.mark.parametrize("change", CLUSTERS)
def test_the_schema_of_a_cluster_and_its_reader_agree(change: Callable[[Any], None]) -> None:
    document = cluster_document()
    change(document)
    refused = False
    try:
        cluster_of(deepcopy(document))
    except InputError:
        refused = True
    assert bool(objections("cluster", document)) is refused


def test_both_kinds_of_answer_occur_in_what_is_tried() -> None:
    """Else the agreement would say nothing."""
    answers = []
    for change in CLUSTERS:
        document = cluster_document()
        change(document)
        answers.append(bool(objections("cluster", document)))
    assert answers.count(False) >= 5
    assert answers.count(True) >= 20


@pytest.mark.parametrize(
    "change",
    [
        *(
            remove(key)
            for key in plan_to_dict(PLAN)
            if key not in ("model", "fingerprint", "objective_s", "gap", "predicted", "phases")  # as older plans
        ),
        put("version", value=planfile.VERSION + 1),
        put("goal", value="comfort"),
        put("status", value="great"),
        put("bound_s", value="low"),
        put("workload", "batch", value=0),
        put("workload", "mode", value="play"),
        put("workload", "colour", value="red"),
        put("cluster", "devices", value=[]),
        put("cluster", "devices", 0, "colour", value="red"),
        put("cluster", "links", 0, 2, value=0.0),
        put("costs", 0, "forward_s", 0, value=-1.0),
        put("costs", 0, "source", 0, value="felt"),
        put("graph", "version", value=files.VERSION + 1),
        put("graph", "ops", 0, "inputs", value=1),
        put("graph", "tensors", 0, 2, value="float31"),
        put("constraints", value=[{"rule": "love", "patterns": ["*"], "devices": []}]),
    ],
)
def test_what_the_schema_of_a_plan_refuses_is_not_read(change: Callable[[Any], None]) -> None:
    document = plan_document()
    change(document)
    assert objections("plan", document) != []
    with pytest.raises(InputError):
        plan_from_dict(document)


@pytest.mark.parametrize("key", ["name", "fingerprint", "inputs", "outputs", "tensors", "ops", "version"])
def test_what_the_schema_of_a_graph_refuses_is_not_read(key: str) -> None:
    document: dict[str, Any] = json.loads(json.dumps(graph_to_dict(PLAN.graph)))
    del document[key]
    assert objections("graph", document) != []
    with pytest.raises(InputError):
        graph_from_dict(document)


NUMBERS = st.from_regex(r"[+-]?[0-9]{0,3}\.?[0-9]{0,3}([eE][+-]?[0-9]{0,4})?", fullmatch=True)
UNITS = st.sampled_from(
    [
        *("", "s", "ms", "us", "µs", "ns", "ks", "min", "B", "kB", "KB", "KiB", "GiB", "PiB", "PB", "b", "Gb", "B/s"),
        *("GB/s", "GiB/s", "Gb/s", "Gbit/s", "Gibit/s", "bit/s", "FLOP/s", "TFLOP/s", "GFLOPS", "GFLOPS/s", "TFLOP"),
    ]
)


@given(NUMBERS, st.sampled_from(["", " ", "  "]), UNITS)
def test_quantities_are_those_that_can_be_read(number: str, space: str, unit: str) -> None:
    text = number + space + unit
    for name in ("bytes", "seconds", "bytes_per_s", "flops_per_s"):
        described = {**schema("cluster")["$defs"][name]}
        matched = Draft202012Validator(described).is_valid(text)
        try:
            getattr(units, f"parse_{name}")(text, "it")
            read = True
        except InputError as error:
            read = "too large" in str(error)  # no pattern counts digits
        assert matched is read, (name, text)
