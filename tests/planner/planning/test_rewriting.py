"""Rewrites that fail leave the network as it was imported, unless they were asked for by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest

from costmodels.cluster.cluster import Cluster, Device
from costmodels.workload import Workload
from graphs.common import errors
from graphs.common.errors import FallbackWarning, InputError, fallbacks_said, say_once, warn_once
from graphs.ir import Graph
from planner.planning import make_plan as make_plan_module
from planner.planning.make_plan import Search, make_plan
from planner.planning.rewriting import rewrites_for
from planner.problem.problem import Goal
from tests.planner.runtime.small import desk, program_of

Stops: TypeAlias = Callable[..., None]
PlacementQuestion: TypeAlias = tuple[Graph, Cluster, Goal, Workload, tuple[()], Search]


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned_of", {})


def refuses(*_: object) -> None:
    raise InputError("operator 'b' cannot be split")


def has_no_memory(*_: object) -> None:
    raise MemoryError("no room for an array")


def fails(*_: object) -> None:
    raise KeyError("a kind that nobody has thought of")


def graph_and_devices() -> tuple[Graph, tuple[Device, ...]]:
    return program_of("tied").graph, tuple(replace(device, kernels="quick") for device in desk(2).devices)


@pytest.mark.parametrize("stops", [refuses, has_no_memory, fails])
@pytest.mark.parametrize("where", ["planner.planning.rewriting.find_fusions", "graphs.rewrites.fuse.Fuse.__call__"])
def test_fusions_that_a_network_refuses(where: str, stops: Stops, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, devices = graph_and_devices()
    assert rewrites_for("auto", graph, devices, trains=False)
    monkeypatch.setattr(where, stops)
    with pytest.warns(FallbackWarning, match="the rewrite 'fuse' fails here .*the network stays as it was imported"):
        assert rewrites_for("auto", graph, devices, trains=False) == ()
    with pytest.raises((InputError, MemoryError, KeyError)):
        rewrites_for("fuse", graph, devices, trains=False)


def asked_for(rewrites: str) -> PlacementQuestion:
    graph, devices = graph_and_devices()
    search = Search(time_limit_s=0.5, rewrites=rewrites)
    return graph, replace(desk(2), devices=devices), Goal.LATENCY, Workload(batch=2), (), search


@pytest.mark.parametrize("stops", [refuses, has_no_memory, fails])
def test_a_plan_is_found_without_splits(stops: Stops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_plan_module, "splits_for", stops)
    with pytest.warns(FallbackWarning, match="the rewrite 'split' fails here"):
        plan = make_plan(*asked_for("auto"))
    assert plan.evaluation.feasible
    with pytest.raises((InputError, MemoryError, KeyError)):
        make_plan(*asked_for("split"))


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
