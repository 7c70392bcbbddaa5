"""``planner run`` with a plan for training: gradients, times, and what was predicted, in tables and as JSON."""

import json
import os
from pathlib import Path

import pytest

from planner.cli import main
from planner.plans import load_plan
from planner.runs import load_run

MNIST = "examples.networks:mnist"
CORE = min(os.sched_getaffinity(0))
DESK = f"""
version = 1
[[device]]
name = "cpu0"
kind = "cpu"
cores = [{CORE}]
memory = "1 GiB"
flops = {{ float32 = "100 GFLOP/s" }}
memory_bandwidth = "10 GB/s"
[[device]]
name = "cpu1"
kind = "cpu"
cores = [{CORE}]
memory = "1 GiB"
flops = {{ float32 = "100 GFLOP/s" }}
memory_bandwidth = "10 GB/s"
[[link]]
between = ["cpu0", "cpu1"]
bandwidth = "10 GB/s"
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    Path("desk.toml").write_text(DESK)


def planned(*options: str) -> None:
    training = ("--goal", "training", "--optimizer", "adam", "--micro-batches", "4", "--batch", "2")
    assert main(["plan", MNIST, "--cluster", "desk.toml", *training, *options]) == 0


def test_a_training_plan_is_run_checked_measured_and_compared(capsys: pytest.CaptureFixture[str]) -> None:
    planned()
    capsys.readouterr()
    assert main(["run", "plan.json", MNIST, "--rounds", "2", "-o", "run.json"]) == 0
    shown = capsys.readouterr()
    assert "steps of 4 micro-batches of 2 by 1f1b" in shown.out
    for row in ("plan, predicted", "plan, measured", "one device, measured", "cpu0: stage 0, conv2d", "cpu1: stage 1"):
        assert row in shown.out
    assert "the gradients are bit-equal to the unsplit model's" in shown.err + shown.out
    run = load_run(Path("run.json"), load_plan("plan.json"))
    assert {span.label for span in run.spans} == {f"{s}{c}{i}" for s in "01" for c in "FB" for i in range(4)} | {
        "optimizer"
    }


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    planned("--schedule", "zb-h1")
    capsys.readouterr()
    assert main(["run", "plan.json", MNIST, "--rounds", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["bit_equal"], document["differences"]) == (True, [])
    assert document["predicted"]["step_s"] > 0
    assert document["measured"].keys() == {"plan", "one device"}
    assert document["speedup"]["one device"] > 0
    against = document["against_prediction"]
    assert [figure["name"] for figure in against["totals"]] == ["step"]
    assert [figure["name"] for figure in against["devices"]] == ["cpu0", "cpu1"]
    assert [figure["name"][:13] for figure in against["stages"]] == ["cpu0: stage 0", "cpu1: stage 1"]


def test_what_does_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    planned()
    capsys.readouterr()
    assert main(["run", "plan.json", MNIST, "--processes"]) == 2
    assert (
        "a plan for training runs on threads here: leave --processes out, or use torchrun -m planner.runtime"
        in capsys.readouterr().err
    )
