"""Rewrites that fail leave the network as it was imported, unless they were asked for by name."""

from dataclasses import replace

import pytest

from costmodels.cluster.cluster import Device
from costmodels.workload import Workload
from graphs.common import errors
from graphs.common.errors import FallbackWarning, fallbacks_said, say_once, warn_once
from graphs.ir import Graph
from planner.planning import make_plan as make_plan_module
from planner.planning import rewriting
from planner.planning.make_plan import Search, make_plan
from planner.planning.rewriting import rewrites_for
from planner.problem.problem import Goal
from tests.planner.runtime.small import desk, program_of


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned_of", {})


def fails(*_: object) -> None:
    raise KeyError("a kind that nobody has thought of")


def graph_and_devices() -> tuple[Graph, tuple[Device, ...]]:
    return program_of("tied").graph, tuple(replace(device, kernels="quick") for device in desk(2).devices)


def test_fusions_that_cannot_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, devices = graph_and_devices()
    assert rewrites_for("auto", graph, devices, trains=False)
    monkeypatch.setattr(rewriting, "find_fusions", fails)
    with pytest.warns(FallbackWarning, match="the rewrite 'fuse' fails here .*the network stays as it was imported"):
        assert rewrites_for("auto", graph, devices, trains=False) == ()
    with pytest.raises(KeyError):
        rewrites_for("fuse", graph, devices, trains=False)


def test_fusions_that_cannot_be_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, devices = graph_and_devices()
    monkeypatch.setattr("graphs.rewrites.fuse.Fuse.__call__", fails)
    with pytest.warns(FallbackWarning):
        assert rewrites_for("auto", graph, devices, trains=False) == ()


def test_a_plan_is_found_without_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, devices = graph_and_devices()
    cluster = replace(desk(2), devices=devices)
    workload = Workload(batch=2)
    asked = graph, cluster, Goal.LATENCY, workload, (), Search(time_limit_s=0.5)
    monkeypatch.setattr(make_plan_module, "splits_for", fails)
    with pytest.warns(FallbackWarning, match="the rewrite 'split' fails here"):
        plan = make_plan(*asked)
    assert plan.evaluation.feasible
    with pytest.raises(KeyError):
        make_plan(*asked[:-1], Search(time_limit_s=0.5, rewrites="split"))


def test_a_reason_is_said_once() -> None:
    heard: list[str] = []
    with fallbacks_said(heard.append):
        for what in ("the kernel of conv2d", "the kernel of relu"):
            warn_once(what, OSError("no such primitive.\nand more"), "PyTorch computes it")
        say_once("OSError: no such primitive", "the same of another process")
        warn_once("the kernel of relu", OSError("no memory"), "PyTorch computes it")
    reasons = ["OSError: no such primitive", "OSError: no memory"]
    kinds = ["conv2d", "relu"]
    assert heard == [
        f"the kernel of {kind} fails here ({reason}); PyTorch computes it"
        for kind, reason in zip(kinds, reasons, strict=True)
    ]
