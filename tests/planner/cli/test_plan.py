"""What ``planner plan`` says of one device, and of devices that no link leads to."""

import json
import re
from argparse import ArgumentParser
from pathlib import Path

import pytest

from examples import demo
from graphs.files import write_graph
from graphs.ir import Graph, Op, Role, Tensor
from planner.cli import main
from planner.cli.console import Console
from planner.cli.plan_ import declare, show_plan
from tests.planner.cli.given import MNIST, PAPER
from tests.planner.sample import PLAN

pytestmark = pytest.mark.usefixtures("_paper")


def said(capsys: pytest.CaptureFixture[str], cluster: str, *options: str) -> str:
    Path("cluster.toml").write_text(cluster, encoding="utf-8")
    assert main(["plan", MNIST, "--cluster", "cluster.toml", "--goal", "throughput", *options]) == 0
    return capsys.readouterr().out


WITHOUT_LINKS = PAPER.partition("\n[[link]]")[0]
APART = "no link joins 'a' to 'b', so nothing runs there; add a [[link]] to cluster.toml"


@pytest.mark.attack("first-try")
def test_what_two_devices_bring_beside_one(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = PAPER.replace('"10 us"', '"100 ns"')
    one_copy = ("--rewrites", "none")
    assert re.search(r"^\d\.\d+ × one device: a alone takes \d+ us$", said(capsys, cluster, *one_copy), re.MULTILINE)
    times = json.loads(said(capsys, cluster, *one_copy, "--json", "--force"))["times_one_device"]
    assert 1 < times < 2
    assert "2 × one device" in said(capsys, cluster, "--force")  # a copy of everything on each


def test_no_single_device_has_room(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = PAPER.replace('memory = "1 GiB"', 'memory = "7.3 MB"')
    assert "no single device can run and hold all of it" in said(capsys, cluster)
    assert json.loads(said(capsys, cluster, "--json", "--force"))["times_one_device"] is None


@pytest.mark.attack("first-try")
def test_a_cluster_without_links_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    one_copy = ("--rewrites", "none")
    shown = said(capsys, WITHOUT_LINKS, *one_copy)
    assert APART in shown
    assert "all of it runs on one device" in shown
    assert json.loads(said(capsys, WITHOUT_LINKS, *one_copy, "--json", "--force"))["advice"] == APART
    assert main(["explain", "plan.json", "--time-limit", "1"]) == 0
    assert "No link joins 'a' to 'b'" in capsys.readouterr().out


def test_copies_of_everything_need_no_links(capsys: pytest.CaptureFixture[str]) -> None:
    shown = json.loads(said(capsys, WITHOUT_LINKS, "--json"))
    assert (shown["solver"], shown["advice"], len(shown["copies"])) == ("copies", "", 1)
    assert {*shown["placement"].values()} != {*shown["copies"][0]["placement"].values()}


def test_an_unknown_rewrite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("cluster.toml").write_text(WITHOUT_LINKS, encoding="utf-8")
    words = ["plan", "examples.networks:mnist", "--cluster", "cluster.toml", "--goal", "throughput"]
    assert main([*words, "--rewrites", "copy"]) == 2
    assert "the rewrite is 'copy'; it must be one of auto, none, copies, fuse, split" in capsys.readouterr().err


def test_a_machine_that_is_not_as_fast_as_usual_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.cli.plan_.unusual_pace", lambda _: {"computing": 1.5, "streaming": 0.7})
    Path("paper.toml").write_text(PAPER, encoding="utf-8")
    assert main(["plan", MNIST, "--cluster", "paper.toml", "--goal", "latency"]) == 0
    told = "plans are made for the usual pace of this machine; now it takes this many times as long: "
    assert f"planner: {told}computing 1.50, streaming memory 0.70\n" in capsys.readouterr().err
    assert main(["plan", MNIST, "--cluster", "paper.toml", "--goal", "latency", "--force", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("option", ["--schedule gpipe", "--micro-batches 4"])
def test_options_of_a_training_step_are_refused_for_another_goal(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", MNIST, "--cluster", "2xT4:PCIe4", "--goal", "throughput", *option.split()]) == 2
    told = f"planner: {option.split()[0]} is for training and the goal is throughput; leave it out\n"
    assert capsys.readouterr().err.endswith(told)


def test_prices_and_a_target_on_a_cluster_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", MNIST, "--cluster", "2xT4:PCIe4", "--goal", "throughput", "--price", "0.35 usd/h", "--force"]
    assert main([*words, "--samples", "90M", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    seconds = 90e6 / shown["predicted"]["samples_per_s"]
    assert (shown["price_per_h"], shown["currency"], shown["tokens_per_s"]) == (0.7, "USD", None)
    assert shown["target_s"] == pytest.approx(seconds)
    assert shown["target_cost"] == pytest.approx(0.7 * seconds / 3600)
    assert main([*words, "--samples", "90M"]) == 0
    told = rf"all devices together cost 0.7 USD/h\n90M samples take {seconds / 3600:.1f} hours and cost \d\.\d+ USD\n"
    assert re.search(told, capsys.readouterr().out)
    assert main([*words, "--tokens", "1B"]) == 2
    assert "this one reads none; give --samples" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--tokens", "1X"])
    assert "'1X' is no number above 0, such as 5000, 1e9, 90M, 300B or 1.5T" in capsys.readouterr().err


def test_the_demo_shows_its_plan_as_the_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    declare(parser)
    show_plan(PLAN, parser.parse_args(demo.PLAN.split()), Console())
    assert "; `planner calibrate MODEL` measures it" in capsys.readouterr().out


def test_kinds_without_a_formula_are_named_with_their_share(capsys: pytest.CaptureFixture[str]) -> None:
    roles = {"x": Role.INPUT, "y": Role.ACTIVATION, "z": Role.ACTIVATION}
    tensors = tuple(Tensor(name, (1024, 1024), "float32", role) for name, role in roles.items())
    ops = (Op("known", "aten.relu.default", ("x",), ("y",)), Op("odd", "own.odd.default", ("y",), ("z",)))
    write_graph(Graph("net", ops, tensors, ("x",), ("z",)), Path("graph.json"))
    assert main(["plan", "graph.json", "--cluster", "1xT4", "--goal", "latency", "-o", "p.json"]) == 0
    named = re.compile(r"^ranges are wider for kinds without a formula, whose work is a guess: own\.odd \(\d+\.\d%\)$")
    assert any(map(named.match, capsys.readouterr().out.splitlines()))
    assert main(["explain", "p.json"]) == 0
    explained = " ".join(capsys.readouterr().out.split())
    assert re.search(r"a guess, for want of a formula, in own\.odd \d+\.\d%; ranges are wider for it\.", explained)
