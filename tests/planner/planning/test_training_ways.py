"""Ways to train in turns: more time gives no slower plan, and what the planner chooses is what options would ask for.

Limits are those of users, on a machine that counts 400 times as many seconds for the same work.
"""

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.workload import TRAINING_SCHEDULES, Workload
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from graphs.rewrites.batch_sizes import SizedGraphs
from planner.planning.make_plan import Search, make_plan
from planner.planning.question import OpenWorkload
from planner.planning.training_ways import WaysInTurns, ways_to_train
from planner.plans.plan import Plan
from planner.problem.deadline import Deadline
from planner.problem.problem import Goal
from planner.problem.reporter import Reporter
from planner.problem.result import Interrupted, NoPlanError

SLOWER = 400.0
LIMITS_S = (5.0, 20.0, 60.0)
ALWAYS = Deadline(1e9)
ROUNDING = 1e-9


class Branches(nn.Module):
    """Two branches of unlike lengths between a first and a last layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, width), nn.Linear(width, 8)
        self.long = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.short = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        last: torch.Tensor = self.last(self.long(first) + self.short(first))
        return last


def devices(flops: list[float], memory_bytes: float = 1e9, bytes_per_s: float = 1e9) -> Cluster:
    """Devices of these speeds, all of which reach each other."""
    each = tuple(Device(f"d{i}", f"kind {f:g}", memory_bytes, {"float32": f}, 10 * f) for i, f in enumerate(flops))
    links = tuple(Link(a.name, b.name, bytes_per_s, 1e-5) for a in each for b in each if a is not b)
    return Cluster("some", each, links)


def layers(seed: int, n: int) -> nn.Module:
    """Layers of random widths."""
    widths = [32, *np.random.default_rng(seed).integers(8, 200, n).tolist()]
    return nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(widths)))


PROBLEMS: dict[str, tuple[nn.Module, Cluster]] = {
    "three operators": (layers(0, 3), devices([1e9] * 2)),
    "one operator": (layers(1, 1), devices([1e9] * 2)),
    "a device that is best alone": (layers(2, 3), devices([1e9, 1e9, 1e11], bytes_per_s=1e6)),
    "little memory": (layers(3, 6), devices([1e9] * 3, memory_bytes=4e5)),
    "unlike devices": (Branches(64), devices([1e9, 2e9, 5e8])),
    "four alike": (layers(5, 5), devices([1e9] * 4, bytes_per_s=1e12)),
}


@cache
def sized(name: str) -> SizedGraphs:
    """The network of a problem for any number of samples."""
    module, _ = PROBLEMS[name]

    def graph(samples: int) -> Graph:
        return program_from_module(module, (torch.ones(samples, 32),), training=True).graph

    return SizedGraphs(graph)


def planned(name: str, limit_s: float) -> Plan:
    """The best way that is found in the time, after the default one took as much."""
    _, cluster = PROBLEMS[name]
    graphs, search = sized(name), Search(time_limit_s=limit_s)
    work = OpenWorkload().closed(batch=1, n_devices=len(cluster.devices), training=True)
    first = make_plan(graphs(1), cluster, Goal.TRAINING, work, (), search)
    batch = work.batch * work.micro_batches
    return WaysInTurns(first, ways_to_train(cluster, graphs, batch, work.optimizer, ALWAYS), search).run(ALWAYS)


@pytest.fixture
def _only_work_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.problem.deadline.BRAKE", 1e6)


@pytest.mark.usefixtures("_only_work_counts")
@pytest.mark.parametrize("name", PROBLEMS)
def test_more_time_gives_no_slower_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for figure, seconds in {"JUDGED_S": 3e-4, "ITEM_S": 1.5e-6, "PASS_S": 3e-6}.items():
        monkeypatch.setattr(f"planner.solvers.base.{figure}", SLOWER * seconds)
    for less, more in pairwise(planned(name, limit_s).samples_per_s for limit_s in LIMITS_S):
        assert more >= less


@pytest.mark.usefixtures("_only_work_counts")
@pytest.mark.parametrize("name", ["three operators", "a device that is best alone", "little memory"])
def test_no_schedule_on_any_number_of_devices_is_faster_than_the_way_that_is_chosen(name: str) -> None:
    _, cluster = PROBLEMS[name]
    chosen, asked = planned(name, 60.0), dict[tuple[str, int], float]()
    for schedule in TRAINING_SCHEDULES:
        for n_devices in range(1, len(cluster.devices) + 1):
            part = cluster.first(n_devices)
            work = OpenWorkload(schedule=schedule).closed(batch=1, n_devices=n_devices, training=True)
            try:
                plan = make_plan(sized(name)(1), part, Goal.TRAINING, work, (), Search(time_limit_s=60.0))
            except NoPlanError:  # not every schedule divides so few micro-batches, or fits
                continue
            asked[schedule, n_devices] = plan.samples_per_s
    assert len(asked) > len(cluster.devices)
    assert chosen.samples_per_s >= max(asked.values()) * (1 - ROUNDING)


def test_the_best_plan_so_far_is_kept_on_ctrl_c() -> None:
    class Stop(Reporter):
        def on_placement(self, placement: Any) -> None:  # noqa: ARG002 (as it is called)
            raise KeyboardInterrupt

    _, cluster = PROBLEMS["unlike devices"]
    graphs, work = sized("unlike devices"), Workload("training", batch=8, micro_batches=1)
    first = make_plan(graphs(8), cluster, Goal.TRAINING, work, (), Search())
    search = WaysInTurns(first, ways_to_train(cluster, graphs, 8, "sgd", ALWAYS), Search(reporter=Stop()))
    with pytest.raises(Interrupted) as stopped:
        search.run(ALWAYS)
    assert stopped.value.best.objective_s <= first.objective_s
