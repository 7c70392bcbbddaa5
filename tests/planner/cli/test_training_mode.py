"""Commands for training import a network as it is trained, all others as it is used."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import main
from planner.parallelism.network.training_rows import TradeOffs
from planner.planning.calibrate import Calibration
from planner.plans.files import load_plan
from tests.planner.planning.test_calibrate import HOST, MODULE

NETWORK = """
import torch
from torch import nn

def net(batch=2):
    layers = [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 4)]
    return nn.Sequential(*layers).eval(), (torch.ones(batch, 4),)
"""
MODEL = "network_of_a_user:net"


@pytest.fixture(autouse=True)
def _network(_paper: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("network_of_a_user.py").write_text(NETWORK)


def modes(ops: list[dict[str, Any]]) -> set[bool]:
    """In which operators say that they are."""
    attrs = [op.get("attrs", {}) for op in ops]
    return {a[name] for a in attrs for name in ("train", "training") if name in a}


@pytest.mark.parametrize("training", [False, True])
def test_import(training: bool) -> None:
    assert main(["import", MODEL, *(["--training"] if training else [])]) == 0
    assert modes(json.loads(Path("graph.json").read_text())["ops"]) == {training}


@pytest.mark.parametrize("goal", ["throughput", "training"])
def test_plan_and_what_if_of_another_batch(goal: str) -> None:
    assert main(["plan", MODEL, "--cluster", "paper.toml", "--goal", goal, "--time-limit", "1"]) == 0
    plan = load_plan(Path("plan.json"))
    assert {op.attrs["train"] for op in plan.graph.ops if "dropout" in op.kind} == {goal == "training"}
    assert main(["simulate", "plan.json", MODEL, "--batch", "4"]) == 0


@pytest.mark.parametrize("training", [False, True])
def test_calibrate(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def surveys(program: Any, **_: Any) -> tuple[Calibration, ...]:
        seen.append(program.training)
        return (Calibration(HOST.cluster, HOST.spread, True),)

    monkeypatch.setattr(MODULE, "surveys", surveys)
    assert main(["calibrate", MODEL, *(["--training"] if training else [])]) == 0
    assert seen == [training]


def test_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[Any]] = []

    def trade_offs(graph_of: Any, *_: Any, **__: Any) -> TradeOffs:
        seen.append({op.attrs["train"] for op in graph_of(2).ops if "dropout" in op.kind})
        return TradeOffs(())

    monkeypatch.setattr("planner.planning.choose.trade_offs", trade_offs)
    assert main(["choose", MODEL, "--cluster", "paper.toml", "--global-batch", "2"]) == 1
    assert seen == [{True}]
