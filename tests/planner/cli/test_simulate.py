"""planner simulate: figures, files and what changes would bring."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from planner.cli import main
from tests.planner.cli.given import MNIST, PAPER


@pytest.fixture(autouse=True)
def _planned(_paper: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", MNIST, "--cluster", "paper.toml", "--goal", "throughput", "--pin", "flatten*=b"]) == 0
    capsys.readouterr()


def test_it_tells_what_runs_what_is_held_and_what_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "plan.json"]) == 0
    shown = capsys.readouterr().out
    assert "8 micro-batches of mnist" in shown
    for word in ("memory at the peak", "links busy: ", "resident, ", "waited for: ", "one alone takes"):
        assert word in shown
    assert main(["simulate", "plan.json", "--json", "--micro-batches", "3", "--sharing", "fair"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["micro_batches"] == 3
    assert sum(document["critical_path_s"].values()) == pytest.approx(document["makespan_s"])
    assert document["memory"]["a"]["peak_bytes"] > document["memory"]["a"]["resident_bytes"] > 0
    assert all(0 < share < 1 for share in document["link_share"].values())
    assert document["link_share"]


def test_it_writes_a_trace_and_a_picture() -> None:
    assert main(["simulate", "plan.json", "--trace", "t.json", "--svg", "c.svg"]) == 0
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C", "s", "t", "f"}
    assert ElementTree.parse("c.svg").getroot().tag.endswith("svg")
    first = Path("t.json").read_bytes(), Path("c.svg").read_bytes()
    again = ["simulate", "plan.json", "--trace", "t.json", "--svg", "c.svg"]
    assert main(again) == 2
    assert main([*again, "--force"]) == 0
    assert (Path("t.json").read_bytes(), Path("c.svg").read_bytes()) == first


def test_changes_stand_beside_what_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "plan.json", "--set", "a.memory=2MiB", "--add-device", "a=c", "--replan"]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[1].split() == ["before", "after", "replanned"]
    assert "after: 'a' is over by" in shown
    assert "of 2 MiB" in shown
    assert main(["simulate", "plan.json", "--set", "*.memory_bandwidth=40GB/s", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["after"]["objective_s"] < document["before"]["objective_s"]
    assert list(document) == ["before", "after"]


def test_the_busiest_may_be_a_link(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "plan.json", "--set", "link.bandwidth=1MB/s", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["before"]["busiest"] in ("a", "b")
    assert document["after"]["busiest"] in ("a → b", "b → a")
    assert document["after"]["busiest_s"] == document["after"]["objective_s"]


def test_another_batch_needs_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "plan.json", "--batch", "4"]) == 2
    told = capsys.readouterr().err
    assert told == "planner: --batch needs the model besides the plan: planner simulate PLAN MODEL --batch N\n"
    assert main(["simulate", "plan.json", "--size", "seq=4"]) == 2
    assert capsys.readouterr().err.startswith("planner: --size is for a MODEL of another batch: planner simulate PLAN ")
    assert main(["simulate", "plan.json", MNIST, "--batch", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["after"]["objective_s"] > document["before"]["objective_s"]


def test_no_plan_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "plan.json", "--set", "*.memory=1KiB", "--replan"]) == 1
    assert "no plan (infeasible)" in capsys.readouterr().err


def test_a_model_is_for_another_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "plan.json", MNIST]) == 2
    told = capsys.readouterr().err
    assert told == f"planner: '{MNIST}' is imported for another batch only; add --batch N, or leave it out\n"


class TestTraining:
    @pytest.fixture(autouse=True)
    def _trained(self, capsys: pytest.CaptureFixture[str]) -> None:
        Path("paper.toml").write_text(PAPER.replace("10 GB/s", "100 GB/s"))
        command = ["plan", MNIST, "--cluster", "paper.toml", "--goal", "training", "--micro-batches", "4"]
        assert main([*command, "--batch", "64", "-o", "train.json"]) == 0
        capsys.readouterr()

    def test_a_step_has_its_own_micro_batches(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["simulate", "train.json", "--trace", "t.json", "--svg", "c.svg", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["micro_batches"] == 4
        assert all(memory["peak_bytes"] > memory["resident_bytes"] for memory in document["memory"].values())
        assert any(event["name"] == "0B3" for event in json.loads(Path("t.json").read_text())["traceEvents"])
        assert main(["simulate", "train.json"]) == 0
        assert "a step takes" in capsys.readouterr().out

    def test_schedules_and_micro_batches_change(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["simulate", "train.json", "--schedule", "gpipe", "--micro-batches", "8", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["after"]["latency_s"] > 1.5 * document["before"]["latency_s"]
        before, after = (sum(document[when]["memory_bytes"].values()) for when in ("before", "after"))
        assert after > before  # gpipe holds all eight

    def test_a_schedule_that_cannot_run_the_stages_can_be_planned_for(self, capsys: pytest.CaptureFixture[str]) -> None:
        changed = ["simulate", "train.json", "--schedule", "zbv"]
        assert main(changed) == 2
        assert "a schedule of 1 stages a device; this one is for 2" in capsys.readouterr().err
        changed = ["simulate", "train.json", "--schedule", "interleaved", "--replan", "--time-limit", "2"]
        assert main(changed) == 0
        assert "replanned" in capsys.readouterr().out

    def test_a_plan_that_cannot_run_cannot_be_compared_with(self, capsys: pytest.CaptureFixture[str]) -> None:
        document = json.loads(Path("train.json").read_text())
        document["workload"]["schedule"] = "zbv"  # by hand
        Path("hand.json").write_text(json.dumps(document))
        for changed in (["--schedule", "1f1b"], ["--replan", "--time-limit", "2"]):
            assert main(["simulate", "hand.json", *changed]) == 2
            assert "a schedule of 1 stages a device; this one is for 2" in capsys.readouterr().err

    def test_channels_are_shared_as_asked(self, capsys: pytest.CaptureFixture[str]) -> None:
        takes_s = {}
        for sharing in ("fifo", "fair", "unlimited"):
            assert main(["simulate", "train.json", "--sharing", sharing, "--json"]) == 0
            takes_s[sharing] = json.loads(capsys.readouterr().out)["makespan_s"]
        assert takes_s["unlimited"] <= min(takes_s["fifo"], takes_s["fair"])

    def test_recomputing_takes_time_and_less_memory(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["simulate", "train.json", "--recompute", "full", "--schedule", "gpipe", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["after"]["latency_s"] > document["before"]["latency_s"]
        assert main(["simulate", "plan.json", "--recompute", "full"]) == 2
        told = capsys.readouterr().err
        assert told == "planner: the plan's goal is throughput; recompute can be changed for training only\n"

    def test_devices_divided_into_replicas_share_a_batch(self, capsys: pytest.CaptureFixture[str]) -> None:
        command = ["plan", MNIST, "--cluster", "paper.toml", "--goal", "training", "--batch", "64", "--replicas", "2"]
        assert main([*command, "-o", "both.json"]) == 0
        assert "by 1f1b, in each of 2 replicas" in capsys.readouterr().out
        assert json.loads(Path("both.json").read_text())["cluster"]["replicas"] == [2, 100e9, 10e-6]
        assert main(["simulate", "both.json", "--set", "replicas.bandwidth=1MB/s", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["after"]["busiest"] == "a → replicas"
        assert document["after"]["latency_s"] > document["before"]["latency_s"]
        assert main(["plan", MNIST, "--cluster", "paper.toml", "--goal", "latency", "--replicas", "2", "--force"]) == 2
        told = capsys.readouterr().err
        assert told == "planner: --replicas is for training and the goal is latency; leave it out\n"

    def test_a_plan_may_recompute(self, capsys: pytest.CaptureFixture[str]) -> None:
        command = ["plan", MNIST, "--cluster", "paper.toml", "--goal", "training", "--batch", "64", "-o", "again.json"]
        assert main([*command, "--recompute", "full", "--schedule", "gpipe"]) == 0
        assert "by gpipe, recomputing" in capsys.readouterr().out
        assert json.loads(Path("again.json").read_text())["workload"]["recompute"] == "full"
        assert main(["simulate", "again.json", "--recompute", "none", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["after"]["latency_s"] < document["before"]["latency_s"]
        before, after = (max(document[when]["memory_bytes"].values()) for when in ("before", "after"))
        assert after > before
