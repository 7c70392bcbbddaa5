"""The schemas say what the code writes and reads: no less, and no more."""

import json
import math
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator

from costmodels.cluster import dictionary as clusterdict
from costmodels.cluster import file as clusterfile
from costmodels.cluster.catalogue import catalogue
from costmodels.cluster.cluster import SHARINGS, Device
from costmodels.cluster.dictionary import cluster_to_dict
from costmodels.cluster.file import cluster_of, read_cluster
from costmodels.cluster.one_line import catalogue_cluster
from costmodels.cluster.tables import KEYS
from costmodels.cluster.writer import write_cluster
from costmodels.memory.optimizers import OPTIMIZERS
from costmodels.table import Source
from costmodels.workload import Mode, Workload
from graphs import files, ir
from graphs.common.errors import InputError
from graphs.files import graph_to_dict
from planner.plans import files as planfile
from planner.plans import runs
from planner.plans.files import plan_to_dict
from planner.plans.plan import Plan
from planner.plans.schemas import NAMES, schema
from planner.problem.constraints import Constraint, Rule, contiguous, pin
from planner.problem.problem import Goal
from planner.problem.result import Status
from planner.solvers.robust import Robustness
from simulator.timeline import Kind, Span
from tests.planner.plans.schemas.documents import at, cluster_document, plan_document
from tests.planner.plans.schemas.validation import objections
from tests.planner.sample import PLAN


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_one_and_complete(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))
    assert schema(name)["title"] in (f"{name}.json", f"{name}.toml")
    folder = Path(planfile.__file__).parent / "schemas"
    assert sorted(path.name for path in folder.glob("*.json")) == sorted(f"{known}.schema.json" for known in NAMES)


def test_an_unknown_schema_is_refused() -> None:
    with pytest.raises(InputError, match=r"^there is no schema of 'cost'; there are plan, cluster, graph, run$"):
        schema("cost")


# What is written is right


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, goal=Goal.LATENCY),
        replace(PLAN, goal=Goal.COST, constraints=(pin("*", "cpu0", "gpu0"), contiguous())),
        replace(PLAN, robustness=Robustness(20, 0.1, 0.01, 0.2)),
        replace(PLAN, cluster=replace(PLAN.cluster, sharing="unlimited")),
    ],
)
def test_plans_keep_the_schema(plan: Plan) -> None:
    assert objections("plan", json.loads(json.dumps(plan_to_dict(plan)))) == []


def test_graphs_keep_the_schema() -> None:
    assert objections("graph", json.loads(json.dumps(graph_to_dict(PLAN.graph)))) == []


@pytest.mark.parametrize("link", ["PCIe4-x16", "Ethernet-10"])
def test_clusters_keep_the_schema(link: str, tmp_path: Path) -> None:
    line = read_cluster("2x(4xV100-SXM2-16GB@2.5usd/h:NVLink2):4xEthernet-10")
    for cluster in (PLAN.cluster, catalogue_cluster("V100-SXM2-16GB", 3, link), cluster_of(cluster_document()), line):
        write_cluster(cluster, tmp_path / "cluster.toml")
        assert objections("cluster", tomllib.loads((tmp_path / "cluster.toml").read_text())) == []
        assert objections("plan", plan_document() | {"cluster": cluster_to_dict(cluster)}) == []


STREAM = PLAN.simulate(8 * PLAN.workload.in_flight)


@pytest.mark.parametrize("run", [runs.MeasuredRun(STREAM), runs.streamed(PLAN, STREAM, 0.25, 0.5)])
def test_runs_keep_the_schema(run: runs.MeasuredRun) -> None:
    document: dict[str, Any] = json.loads(json.dumps(runs.run_to_dict(PLAN, run)))
    assert objections("run", document) == []
    assert len(document["spans"][0]) == len(schema("run")["$defs"]["span"]["prefixItems"]) == len(fields(Span))
    assert list(document) == list(schema("run")["properties"]) == schema("run")["required"]


def test_a_link_of_unlimited_bandwidth_is_null_in_a_plan() -> None:
    assert [link[2] for link in plan_document()["cluster"]["links"]] == [16.0, 16.0, None]
    assert any(link.bytes_per_s == math.inf for link in PLAN.cluster.links)


# What the schemas list is what the code knows


@pytest.mark.parametrize(
    ("name", "path", "known"),
    [
        ("plan", ("properties", "version", "const"), planfile.VERSION),
        ("plan", ("$defs", "cluster", "properties", "version", "const"), clusterdict.VERSION),
        ("cluster", ("properties", "version", "enum"), [clusterdict.VERSION, clusterfile.ALSO_READ]),
        ("graph", ("properties", "version", "const"), files.VERSION),
        ("run", ("properties", "version", "const"), runs.VERSION),
        ("run", ("$defs", "span", "prefixItems", 0, "enum"), list(get_args(Kind))),
        ("plan", ("properties", "goal", "enum"), list(Goal)),
        ("plan", ("properties", "status", "enum"), list(Status)),
        ("plan", ("$defs", "constraint", "properties", "rule", "enum"), list(Rule)),
        ("plan", ("$defs", "workload", "properties", "mode", "enum"), list(get_args(Mode))),
        ("plan", ("$defs", "workload", "properties", "optimizer", "enum"), list(OPTIMIZERS)),
        ("plan", ("$defs", "costs", "properties", "source", "items", "enum"), list(Source)),
        ("plan", ("$defs", "cluster", "properties", "sharing", "enum"), list(SHARINGS)),
        ("cluster", ("properties", "cluster", "properties", "sharing", "enum"), list(SHARINGS)),
        ("cluster", ("$defs", "device", "properties", "like", "enum"), list(catalogue("device"))),
        ("cluster", ("$defs", "link_like", "enum"), list(catalogue("link"))),
        ("graph", ("$defs", "tensor", "prefixItems"), None),
    ],
)
def test_versions_and_words_are_those_of_the_code(name: str, path: tuple[str | int, ...], known: Any) -> None:
    if known is None:
        dtypes, roles = (item["enum"] for item in at(schema(name), *path)[2:])
        assert (dtypes, roles) == (list(ir.ITEM_BYTES), list(ir.Role))
    else:
        assert at(schema(name), *path) == known


LEFT_OUT = {(Device, name) for name in ("request_s", "kernels", "host", "price", "reserve_bytes", "sheet")} | {
    (Workload, "free")
}  # where they are as usual


@pytest.mark.parametrize(
    ("path", "record"),
    [(("workload",), Workload), (("constraint",), Constraint), (("robustness",), Robustness), (("device",), Device)],
)
def test_keys_of_a_plan_are_the_fields_of_its_records(path: tuple[str, ...], record: type) -> None:
    described = at(schema("plan")["$defs"], *path)
    names = [field.name for field in fields(record)]
    assert list(described["properties"]) == names
    assert described["required"] == [name for name in names if (record, name) not in LEFT_OUT]


def test_keys_of_cluster_toml_are_those_that_are_read() -> None:
    described = schema("cluster")["$defs"]
    assert {name: set(described[name]["properties"]) for name in KEYS} == {
        name: set(keys) for name, keys in KEYS.items()
    }


def test_every_key_of_a_plan_is_described_and_needed() -> None:
    described = schema("plan")
    assert list(described["$defs"]["costs"]["properties"]) == ["devices", *planfile.COSTS]
    assert list(described["properties"]) == described["required"] == list(plan_document())
    assert list(described["$defs"]["predicted"]["properties"]) == list(plan_document()["predicted"])
