"""No name reaches the terminal as anything but visible characters: not in tables, errors or progress, nor in JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.cluster.writer import write_cluster
from graphs.files import write_graph
from planner.cli import main
from planner.cli.console import Console
from planner.plans.files import save_plan
from tests.planner.view.samples import chain_plan, cluster

ODD = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt\n"
COMMANDS = {
    "simulate": ["plan.json"],
    "explain": ["plan.json", "--time-limit", "1"],
    "diff": ["plan.json", "other.json"],
    "show": ["plan.json", "-o", f"{ODD}.svg"],
    "export": ["plan.json", "--to", "networkx"],
    "plan": ["graph.json", "--cluster", "odd.toml", "--goal", "latency", "--time-limit", "1", "-o", f"{ODD}.json"],
}
REFUSED = {
    "no pattern": ["plan", "graph.json", "--cluster", "odd.toml", "--goal", "latency", "--pin", f"{ODD}=cpu0"],
    "no file": ["simulate", f"{ODD}.json"],
    "no option": ["simulate", "plan.json", f"--{ODD}"],
    "no command": [ODD],
    "no JSON": ["simulate", "twice.json"],
    "a graph": ["explain", "graph.json"],
}

pytestmark = pytest.mark.attack("file")


@pytest.fixture(autouse=True)
def _odd() -> None:
    plan = chain_plan([ODD, ODD, "", ""], 2)
    first, *others = plan.graph.ops
    graph = replace(plan.graph, name=f"net{ODD}", ops=(replace(first, name=f"op{ODD}"), *others))
    plan = replace(plan, graph=graph, table=replace(plan.table, ops=tuple(op.name for op in graph.ops)))
    save_plan(plan, "plan.json")
    save_plan(replace(plan, placement=replace(plan.placement, device=(1, 0, 0, 1))), "other.json")
    write_graph(graph, Path("graph.json"))
    devices = cluster().devices
    write_cluster(replace(cluster(), name=ODD, links=(), devices=(replace(devices[0], name=ODD),)), "odd.toml")
    Path("twice.json").write_text(json.dumps({ODD: 1})[:-1] + "," + json.dumps({ODD: 1})[1:])


def seen(text: str) -> None:
    assert text.replace("\n", "").replace("\t", "").isprintable(), ascii(text)


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_printed_can_be_seen(command: str, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, *COMMANDS[command], *more]) == 0
    out, err = capsys.readouterr()
    seen(out + err)
    if more:
        json.loads(out)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_told_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: object = main(REFUSED[name])
    except SystemExit as left:
        status = left.code
    assert status == 2
    out, err = capsys.readouterr()
    seen(err)
    lines = [line for line in err.splitlines() if not line.endswith(" …")]
    assert (out, len(lines)) == ("", 1)


def test_progress_can_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.on_step(ODD, 0, 0)
    console.on_incumbent(ODD, 1.0, 1.0, 0.0)
    console.say(ODD)
    console.close()
    seen("".join(capsys.readouterr()))


def test_json_says_what_the_names_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "plan.json", "--to", "networkx"]) == 0
    assert ODD in {node["id"].removeprefix("op") for node in json.loads(capsys.readouterr().out)["nodes"]}
