"""Ranges: two times between which eight of ten runs of a plan are expected.

A run takes longer or shorter than predicted for three independent reasons::

    pace     the machine is faster or slower than usual: from the moments of a profile, and from
             how much the passes of its measurement differ
    costs    of operators that nobody measured: errors of one kind of operator go together, those of two kinds do not
    model    effects that are not simulated: from networks that were planned and run, see `tests.benchmarks.accuracy`

Each is a relative spread, the standard deviation of a logarithm; their squares add up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, inf

import numpy as np

from costmodels.operators.pace import kind_spreads, network_pace, pace_kinds
from costmodels.table import QUARTILES, SURE, CostTable, Source
from costmodels.units import format_seconds
from graphs.common.arrays import Floats
from graphs.ir import Graph
from simulator.placement import Placement

WIDTH = 1.2816  # standard deviations to either side that hold 80 % of a normal distribution
UNKNOWN_PACE = 0.10  # of a machine of which no moments are known
MODEL_ONE, MODEL_SEVERAL, MODEL_IN_TURN = 0.01, 0.02, 0.015
"""Spread of effects that are not simulated: on one device; in a stream over several; for one that they run in turn."""
MOST = 700.0  # of which the exponential is a number
LEFT = 0.5  # of the deviation of passes over a network, in the means of some seconds of a calibration and of a run


@dataclass(frozen=True, slots=True)
class Range:
    """Two times between which 80 % of runs are expected."""

    low_s: float
    high_s: float

    def __contains__(self, seconds: float) -> bool:
        """Return whether a measured time is in the range."""
        return self.low_s <= seconds <= self.high_s

    @property
    def ends(self) -> list[float]:
        """Both ends for files."""
        return [self.low_s, self.high_s]

    def __str__(self) -> str:
        """Return both ends for people."""
        return f"{format_seconds(self.low_s)} – {format_seconds(self.high_s)}"


@dataclass(frozen=True, slots=True)
class Spread:
    """By how much runs differ from a prediction, see `planner.plans.ranges`."""

    pace: float
    costs: float
    model: float

    @property
    def total(self) -> float:
        """All of it."""
        return hypot(self.pace, self.costs, self.model)

    @property
    def factor(self) -> float:
        """By what 80 % of runs take at most longer or shorter."""
        return exp(min(WIDTH * self.total, MOST))

    def range(self, predicted_s: float) -> Range:
        """Return the range in which 80 % of runs with this prediction are expected."""
        return Range(predicted_s / self.factor, predicted_s * self.factor)

    def without_pace(self) -> "Spread":
        """Return the spread of a run whose pace is known."""
        return replace(self, pace=0.0)

    def beside(self, other: "Spread") -> "Spread":
        """Return the spread of the ratio of two runs on one machine, which have one pace."""
        return Spread(0.0, hypot(self.costs, other.costs), hypot(self.model, other.model))


def spreads_of(
    graph: Graph, table: CostTable, placement: Placement, pace_spread: Mapping[str, float]
) -> Mapping[bool, Spread]:
    """Return the spread of runs around the prediction: of a micro-batch alone (True), and of those that stream (False).

    ``pace_spread`` is that of `costmodels.measured.Profile.pace_spread`; empty if unknown.
    """
    device = placement.device  # the operators of another copy of the network are as uncertain
    seconds = operator_seconds(table, placement)
    total_s, n_used = float(seconds.sum()), len(placement.used)
    takes_time = 0 < total_s < inf
    costs = _cost_spread(graph, table, device, seconds) / total_s if takes_time else 0.0
    passes = _pass_spread(table, device, seconds) / total_s if takes_time else 0.0
    kinds = pace_kinds(graph) if takes_time and pace_spread else ()
    spreads = {}
    for alone, several in ((False, MODEL_SEVERAL), (True, MODEL_IN_TURN)):
        of_kinds = kind_spreads(pace_spread, 1 if alone else n_used, UNKNOWN_PACE)
        pace = network_pace(kinds, seconds, of_kinds) if kinds else UNKNOWN_PACE  # the kinds are slow together
        if takes_time and (table.source[range(table.n_ops), device] == Source.ESTIMATED).all():
            pace = 0.0  # the errors of estimates hold the paces of the machines in the fit
        model = several if n_used > 1 else MODEL_ONE
        spreads[alone] = Spread(hypot(pace, LEFT * passes), costs, model)
    return spreads


def operator_seconds(table: CostTable, placement: Placement) -> Floats:
    """Return [n_ops], seconds of each operator on its device, both passes together."""
    return (table.forward_s + table.backward_s)[range(table.n_ops), placement.device]


def _pass_spread(table: CostTable, device: Sequence[int], seconds: Floats) -> float:
    """Return the deviation of measured operators' seconds between passes; a host slows all of them down."""
    numbers = range(table.n_ops), device
    known = np.isin(table.source[numbers], SURE)
    return float((seconds * table.spread[numbers])[known].sum()) / QUARTILES


def _cost_spread(graph: Graph, table: CostTable, device: Sequence[int], seconds: Floats) -> float:
    """Return the standard deviation of the seconds of all operators that were not measured."""
    numbers = range(table.n_ops), device
    known = np.isin(table.source[numbers], SURE)
    together = np.isin(table.source[numbers], Source.ESTIMATED)  # spreads of estimates are those of whole networks
    deviations_s = np.where(known, 0.0, seconds * table.spread[numbers] / QUARTILES)
    of_kinds: dict[str, float] = {}
    for op, deviation_s, as_one in zip(graph.ops, deviations_s.tolist(), together.tolist(), strict=True):
        kind = "" if as_one else op.kind
        of_kinds[kind] = of_kinds.get(kind, 0.0) + deviation_s
    return hypot(*of_kinds.values())
