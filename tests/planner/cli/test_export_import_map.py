"""``planner export`` and ``planner import-map``: files, tables, notes, exit statuses."""

import json
from pathlib import Path

import pytest

from costmodels.cluster.writer import write_cluster
from graphs.files import write_graph
from planner.cli import main
from planner.plans.files import load_plan, save_plan
from tests.planner.exports.nets import GPUS, MIXED, chain, graph_of, plan_of

GRAPH = graph_of(chain(3))
MAP = {"0": 0, "1": 0, "2": 1, "3": 1, "4": 1}


@pytest.fixture(autouse=True)
def _planned() -> None:
    save_plan(plan_of(GRAPH, MAP, GPUS), Path("plan.json"))
    write_graph(GRAPH, Path("graph.json"))
    write_cluster(GPUS, Path("cluster.toml"))
    Path("map.json").write_text(json.dumps(MAP), encoding="utf-8")


def test_an_export_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "plan.json", "--to", "hf-device-map"]) == 0
    assert json.loads(capsys.readouterr().out) == MAP


def test_an_export_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "plan.json", "--to", "torchgpipe", "-o", "balance.json"]) == 0
    assert capsys.readouterr() == ("plan.json for torchgpipe → balance.json\n", "")
    assert json.loads(Path("balance.json").read_text(encoding="utf-8")) == {"balance": [2, 3], "devices": [0, 1]}


def test_notes_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    save_plan(plan_of(GRAPH, MAP, MIXED), Path("plan.json"))
    assert main(["export", "plan.json", "--to", "hf-device-map", "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["document"] == {**MAP, "2": "cpu", "3": "cpu", "4": "cpu"}
    assert (document["target"], document["output"], len(document["notes"])) == ("hf-device-map", None, 1)
    assert err == f"planner: note: {document['notes'][0]}\n"
    assert main(["export", "plan.json", "--to", "hf-device-map", "-o", "map.json", "--force", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_refusal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "plan.json", "--to", "torch-schedule-csv", "-o", "none.csv"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "planner: the plan is for throughput; torch-schedule-csv needs a schedule: plan with --goal training\n"
    )
    assert not Path("none.csv").exists()


IMPORT = ["import-map", "map.json", "graph.json", "--cluster", "cluster.toml"]


def test_a_map_becomes_a_plan_beside_the_planner_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*IMPORT, "-o", "hand.json"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    plan = load_plan("hand.json")
    assert (plan.solver, plan.status, plan.placement.device) == ("by hand", "feasible", (0, 0, 1, 1, 1))
    assert lines[0][-1] == "hand.json"
    assert lines[1][:2] == ["by", "hand"]
    assert [line[0] for line in lines[2:]] == ["throughput", "samples/s", "one", "gap", *["memory"] * 3]
    assert main(["simulate", "hand.json"]) == main(["explain", "hand.json"]) == 0
    assert main(["diff", "plan.json", "hand.json"]) == 0


def test_the_way_back_is_the_same_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "plan.json", "--to", "torch-split-spec", "-o", "map.json", "--force"]) == 0
    assert main([*IMPORT, "-o", "hand.json", "--json"]) == 0
    document = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert load_plan("hand.json").placement == load_plan("plan.json").placement
    assert document["by_hand"]["objective_s"] >= document["planner"]["objective_s"] > 0
    assert document["by_hand"]["solver"] == "by hand"
    assert document["by_hand"]["violations"] == []


def test_a_map_for_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*IMPORT, "--goal", "training", "--micro-batches", "4", "-o", "hand.json"]) == 0
    assert main(["export", "hand.json", "--to", "torch-schedule-csv"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3",
        "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3",
    ]


def test_an_unknown_module_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("map.json").write_text('{"encoder": 0}', encoding="utf-8")
    assert main([*IMPORT, "-o", "none.json"]) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert err == "planner: no operator of 'Sequential' is in a module 'encoder'; there are 0, 1, 2, ..."
    assert not Path("none.json").exists()
