"""Pace: which operators feel what, and how many times as long a network takes."""

from dataclasses import replace
from math import exp, log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from costmodels.cluster.cluster import Cluster, Device
from costmodels.measured import ALIKE_S, MOMENTS, Measurement, Profile
from costmodels.operators.keys import op_keys
from costmodels.operators.pace import (
    PACE_NAMES,
    SAMPLED,
    USUAL_SPREADS,
    kind_spreads,
    likely_pace,
    mean_pace,
    network_pace,
    operator_paces,
    pace_kinds,
    pace_ratios,
)
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph

UNSURE = 1.638 / 1.2816  # quantiles of 90 % of the t-distribution with three degrees of freedom, and of the normal one


class Mixed(nn.Module):
    """A convolution, a product of many rows, one of a single row, and an addition of few elements."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.many, self.one = nn.Conv2d(16, 32, 3), nn.Linear(512, 512), nn.Linear(512, 512)

    def forward(self, image: torch.Tensor, rows: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.conv(image), self.many(rows), self.one(row), row + 1


@pytest.fixture(scope="module")
def graph() -> Graph:
    inputs = torch.ones(1, 16, 64, 64), torch.ones(256, 512), torch.ones(1, 512)
    return program_from_module(Mixed(), inputs).graph


def test_kinds(graph: Graph) -> None:
    assert pace_kinds(graph) == ("computing", "computing", "streaming", "computing")


def test_ratios_of_what_both_know() -> None:
    now, before = {"computing": 3.0, "memory": 1.0}, {"computing": 2.0, "memory": 0.0}
    assert pace_ratios(now, before) == {"computing": 1.5, "streaming": 1.5}
    assert pace_ratios(now, {"computing": 2.0, "memory": 0.5}) == {"computing": 1.5, "streaming": 3.0}
    assert pace_ratios({}, before) == {"computing": 1.0, "streaming": 1.0}


def test_devices_that_compute_at_once_have_their_own_ratios() -> None:
    now = {"computing": 4.0, "computing on 2": 16.0, "computing on 4": 9.0}
    before = {"computing": 2.0, "computing on 2": 2.0}
    assert [pace_ratios(now, before, n)["computing"] for n in (1, 2, 4)] == [2.0, 8.0, 2.0]


@given(st.floats(0.2, 5.0))
def test_much_of_a_small_difference_is_chance_and_little_of_a_large_one(ratio: float) -> None:
    found = likely_pace([{"computing": ratio, "memory on 2": 2.0}], {"computing": 1.0, "memory": 1.0})
    assert found == {"computing": found["computing"], "memory": 1.0}
    small = found["computing"]
    assert min(1.0, ratio) <= small <= max(1.0, ratio)
    assert small == 1.0 if abs(log(ratio)) <= SAMPLED else small != 1.0
    assert abs(log(small) - log(ratio)) <= SAMPLED + 1e-12
    if abs(log(ratio)) > 10 * SAMPLED:
        assert log(small) == pytest.approx(log(ratio), rel=0.0101)


def test_the_spread_of_paces_is_learned_from_moments(graph: Graph) -> None:
    known = {"computing": 1.0}
    assert profile_at(graph, {}).pace_spread == pytest.approx(
        {kind: spread * sqrt(2) * UNSURE for kind, spread in USUAL_SPREADS.items()}, rel=1e-3
    )
    steady = profile_at(graph, dict.fromkeys(range(50), known)).pace_spread
    moments = {ALIKE_S * at: {"computing": exp(0.3 * (-1) ** at)} for at in range(MOMENTS)}
    assert steady["computing"] < 0.75 * USUAL_SPREADS["computing"]
    assert profile_at(graph, moments).pace_spread["computing"] == pytest.approx(0.3, rel=0.05)
    soon = {at // ALIKE_S: pace for at, pace in moments.items()}
    assert profile_at(graph, soon).pace_spread["computing"] == pytest.approx(0.3 * UNSURE, rel=0.05)
    assert profile_at(graph, soon).pace_spread["memory"] == steady["memory"]
    at_once = dict.fromkeys(("memory", "memory on 2"), 1.0)
    alike = replace(profile_at(graph, {}), pace=at_once).pace_spread
    assert alike["memory on 2"] == alike["memory"]


def test_what_streams_spreads_as_both_figures_do() -> None:
    spreads = {"computing": 0.3, "memory": 0.4, "memory on 2": 0.0}
    assert kind_spreads(spreads, 1, 9.0) == pytest.approx({"computing": 0.3, "streaming": 0.5})
    assert kind_spreads(spreads, 2, 9.0) == {"computing": 0.3, "streaming": 0.3}
    assert kind_spreads({}, 1, 0.3)["computing"] == 0.3


def test_a_network_is_as_slow_as_its_operators_in_proportion_to_their_times(graph: Graph) -> None:
    ratios = pace_ratios({"computing": 1.5, "memory": 2.0}, {"computing": 1.0, "memory": 1.0})
    # 6 s of a convolution and 2 s of products and small operators, 2 s of streaming: (9 + 3 + 6) / 10
    assert network_pace(pace_kinds(graph), np.array([6.0, 1.0, 2.0, 1.0]), ratios) == pytest.approx(1.8)
    assert network_pace(pace_kinds(graph), np.zeros(4), ratios) == 1.0
    assert operator_paces(pace_kinds(graph), ratios).tolist() == [1.5, 1.5, 3.0, 1.5]


def profile_at(graph: Graph, moments: dict[int, dict[str, float]]) -> Profile:
    """Every operator takes 1 s at a pace of 1 in both figures."""
    ops = {key: Measurement(1.0, 0.0, 3) for key in op_keys(graph)}
    return Profile("abc", {}, ops, pace=dict.fromkeys(PACE_NAMES, 1.0), moments=moments)


def test_the_usual_pace_is_the_likely_one_of_the_mean_moment(graph: Graph) -> None:
    measured = dict.fromkeys(PACE_NAMES, 1.0)
    assert profile_at(graph, {}).usual_pace == measured
    for seconds, usual_s in (((1.01,), 1.0), ((1.5,), 1.498), ((1.0, 1.5), 1.2476)):
        moments = {at: {"computing": each_s} for at, each_s in enumerate(seconds)}
        usual = profile_at(graph, moments).usual_pace
        assert usual == pytest.approx(measured | {"computing": usual_s}, rel=1e-3)


@pytest.mark.parametrize(
    ("seconds", "mean_s"),
    [((1, 1.5), 1.25), ((1, 1.5, 9), 3.833), ((9, 1.5, 1, 2), 1.75), ((*(1.0,) * 20, *(2.0,) * 18, 99, 99), 1.5)],
)
def test_a_pace_is_the_mean_without_the_outermost(seconds: tuple[float, ...], mean_s: float) -> None:
    samples: list[dict[str, float]] = [{"computing": each_s} for each_s in seconds]
    assert mean_pace([*samples, {"memory": 1.0}]) == {"computing": mean_s, "memory": 1.0}


@pytest.mark.parametrize(("scatter", "found"), [(0.001, 1.2), (0.1, 1.18), (0.5, 1.07)])
def test_samples_that_scatter_tell_little_of_a_change(scatter: float, found: float) -> None:
    samples = [{"computing": 1.2 * exp(sign * scatter)} for sign in (1, -1) * 4]
    assert likely_pace(samples, {"computing": 1.0})["computing"] == pytest.approx(found, rel=0.01)


def test_moments_come_together_and_the_oldest_go(graph: Graph) -> None:
    older = profile_at(graph, {at: {"computing": 1.0} for at in range(MOMENTS)})
    found = older.updated(profile_at(graph, {MOMENTS - 1: {"computing": 2.0}, MOMENTS: {"computing": 3.0}})).moments
    assert list(found) == list(range(1, MOMENTS + 1))
    assert found[MOMENTS - 1] == {"computing": 2.0}


def test_measured_times_are_planned_with_at_the_usual_pace(graph: Graph) -> None:
    device = Device("cpu0", "cpu", 1e9, {"float32": 1e9}, 1e9, profile="abc")
    cluster = Cluster("one", (device,))
    paced = profile_at(graph, {0: {"computing": 1.5, "memory": 2.0}})
    table = tabulate(graph, cluster, Workload(), {"abc": paced})
    assert table.forward_s[:, 0].tolist() == pytest.approx([1.5, 1.5, 3.0, 1.5], rel=0.003)
    ratios = pace_ratios(paced.usual_pace, paced.pace)
    assert table.forward_s[:, 0].tolist() == pytest.approx([ratios[kind] for kind in pace_kinds(graph)])
    assert tabulate(graph, cluster, Workload(), {"abc": profile_at(graph, {})}).forward_s[:, 0].tolist() == [1.0] * 4
