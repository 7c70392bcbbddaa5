"""planner plan --split-cpu: what it prints for several divisions of a CPU, and what it refuses."""

import json
from pathlib import Path

import pytest

from costmodels.cluster import Cluster, Kernels
from costmodels.clusterwriter import write_cluster
from graphs.errors import InputError
from planner.cli import main, plan_
from planner.plans import load_plan
from planner.split_cpu import Split, widths
from tests.planner.test_split_cpu import division

MODEL = "examples.networks:mnist"
CLUSTERS = {1: division(1, 1.1e9, 2), 2: division(2, 1e9, 2)}


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of two cores on paper, of which two threads use a little more than one."""

    def divisions(split: Split, kernels: Kernels) -> tuple[Cluster, ...]:
        assert kernels == "exact"
        return tuple(CLUSTERS[2 // width] for width in widths(split, {1: 2, 2: 1}))

    monkeypatch.setattr(plan_, "divisions", divisions)


def plan(*options: str) -> int:
    return main(["plan", MODEL, *options])


@pytest.mark.parametrize(("goal", "n_devices"), [("throughput", 2), ("latency", 1)])
def test_the_best_division_is_written_and_all_are_shown(
    goal: str, n_devices: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan("--split-cpu", "auto", "--goal", goal) == 0
    assert len(load_plan("plan.json").cluster.devices) == n_devices
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    one, two = shown[shown.index("divisions of the CPU, and what is predicted for each:") + 1 :][:2]
    assert one.startswith("1 device of 2 cores")
    assert two.startswith("2 devices of 1 core")
    chosen, other = (one, two) if n_devices == 1 else (two, one)
    assert chosen.endswith("chosen: predicted to be the fastest")
    assert "chosen" not in other


def test_json_has_every_division(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--split-cpu", "auto", "--goal", "latency", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    one, two = told["divisions"]
    assert (one["cores"], two["cores"]) == ([[0, 1]], [[0], [1]])
    assert (one["chosen"], two["chosen"]) == (True, False)
    assert one["predicted_s"] == told["predicted"]["latency_s"] < two["predicted_s"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_number_of_devices_is_taken_at_its_word(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--split-cpu", str(count), "--goal", "latency", "--json") == 0
    assert len(load_plan("plan.json").cluster.devices) == count
    assert "divisions" not in json.loads(capsys.readouterr().out)


def test_a_pin_to_a_second_device_needs_two() -> None:
    assert plan("--split-cpu", "auto", "--goal", "latency", "--pin", "fc2=cpu1") == 0
    found = load_plan("plan.json")
    assert len(found.cluster.devices) == 2
    assert found.device_of("linear_1") == "cpu1"


def test_no_division_has_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--split-cpu", "auto", "--goal", "latency", "--pin", "fc2=cpu1", "--forbid", "fc2=cpu1") == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("planner: no plan (infeasible): ")
    assert not Path("plan.json").exists()


def test_bad_input_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan("--split-cpu", "3", "--goal", "latency") == 2
    assert capsys.readouterr().err == (
        "planner: the CPU cannot be divided into 3 equal devices; it can be into 1, 2, or say auto\n"
    )
    assert plan("--cluster", "c.toml", "--kernels", "quick", "--goal", "latency") == 2
    assert capsys.readouterr().err == (
        "planner: --kernels goes with --split-cpu; with --cluster, give it to `planner calibrate`\n"
    )
    assert plan("--split-cpu", "2", "--devices", "1", "--goal", "latency") == 2
    assert capsys.readouterr().err == (
        "planner: --devices and --split-cpu both say how many devices there are; leave out one of them\n"
    )

    def divisions(_: Split, kernels: Kernels) -> tuple[Cluster, ...]:
        raise InputError(f"this host was not measured with {kernels} kernels")

    monkeypatch.setattr(plan_, "divisions", divisions)
    assert plan("--split-cpu", "auto", "--kernels", "quick", "--goal", "latency") == 2
    assert capsys.readouterr().err == "planner: this host was not measured with quick kernels\n"


@pytest.mark.parametrize("options", [[], ["--cluster", "c.toml", "--split-cpu", "auto"]])
def test_devices_come_from_one_place(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    write_cluster(CLUSTERS[2], Path("c.toml"))
    with pytest.raises(SystemExit) as stopped:
        plan("--goal", "latency", *options)
    assert stopped.value.code == 2
    assert "--split-cpu" in capsys.readouterr().err
