"""Degrees of each stage: against all stages that there are, against rows of equal degrees, and worked out by hand."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, combinations, product
from math import inf

import pytest
import torch
from torch import nn

from costmodels.cluster.cluster import Cluster, Device
from costmodels.cluster.links import Level
from costmodels.workload import RECOMPUTE_MODES, RecomputeMode, Workload
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from planner.parallelism.best_first import best_first
from planner.parallelism.closed_form.config import Demands, StageDegrees, StageLayers
from planner.parallelism.network.schedule_sweep import ALL_OPEN, trade_offs
from planner.parallelism.network.shape_tables import Tables
from planner.parallelism.network.training_rows import Choice
from planner.parallelism.network.training_shapes import searched_shapes
from planner.parallelism.stages.own_degrees import OwnDegrees
from planner.parallelism.stages.own_stages import StageProblem, StageSolution, StageSpec
from planner.parallelism.stages.stage_degrees import MOST_STEPS, SimulatedStages
from planner.planning.make_plan import Search
from planner.problem.deadline import Deadline
from planner.problem.reporter import SILENT

TWO_LAYERS = nn.Sequential(nn.Linear(99, 100, bias=False), nn.Linear(100, 33, bias=False))
CONVOLUTIONS_FIRST = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(8)),
    *(nn.Flatten(), nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 8)),
)
SLOW, FAST = Level(2, 4e9, 1e-6), Level(2, 4e10, 1e-7)


def devices(number: int, *levels: Level, memory_bytes: float = 1e9, slow: int = 0) -> Cluster:
    """Devices in a row, of which the last ones take twice as long."""
    kinds = {False: ("gpu", 1e9), True: ("slow", 5e8)}
    each = [(f"d{n}", *kinds[n >= number - slow]) for n in range(number)]
    return Cluster(
        "devices",
        tuple(Device(name, kind, memory_bytes, {"float32": peak}, 1e18) for name, kind, peak in each),
        levels=levels,
    )


@cache
def two_layers(samples: int) -> Graph:
    return program_from_module(TWO_LAYERS, (torch.ones(samples, 99),), training=True).graph


@cache
def convolutions_first(samples: int) -> Graph:
    return program_from_module(CONVOLUTIONS_FIRST, (torch.ones(samples, 3, 32, 32),), training=True).graph


def problems(cluster: Cluster, batch: int) -> Iterator[StageProblem]:
    tables = Tables(convolutions_first, cluster, Workload("training", optimizer="adam"), ALL_OPEN, SILENT)
    shapes = searched_shapes(cluster, batch, ALL_OPEN)
    return OwnDegrees(tables, cluster, ALL_OPEN, SILENT).problems(shapes, Deadline(60.0))


def may_be_cut(problem: StageProblem, stages: Sequence[StageSpec]) -> bool:
    """Return whether the network can be cut into these stages, on consecutive devices; memory is not checked."""
    firsts = accumulate((stage.degrees.devices for stage in stages), initial=0)
    return all(
        at in problem.fabric.places(stage.degrees.devices) and problem.may_be(stage.start, stage.degrees)[stage.stop]
        for at, stage in zip(firsts, stages, strict=False)
    )


def every(problem: StageProblem, most_bytes: float = inf) -> Iterator[StageSolution]:
    """All stages of the problem that fit, by brute force."""
    n_devices, n_blocks = len(problem.fabric.devices), problem.n_blocks
    ways = list(product(problem.costs, problem.recomputes))
    for n_stages in range(2, min(n_blocks, n_devices) + 1):
        for cuts in combinations(range(1, n_blocks), n_stages - 1):
            borders = list(zip((0, *cuts), (*cuts, n_blocks), strict=True))
            for each in product(ways, repeat=n_stages):
                stages = [StageSpec(*ends, *own) for ends, own in zip(borders, each, strict=True)]
                if sum(own.degrees.devices for own in stages) <= n_devices:
                    found = problem.simulated(stages, most_bytes) if may_be_cut(problem, stages) else None
                    if found is not None:
                        yield found


@pytest.mark.parametrize(
    ("cluster", "recomputes"),
    [
        (devices(3, Level(3, 2e9, 1e-6)), ("none", "full")),
        (devices(3, Level(3, 1e10, 1e-6), memory_bytes=7.2e7), ("none", "full")),
        (devices(4, Level(2, 1e10, 1e-6), Level(4, 1e8, 1e-5)), ("full",)),
        (devices(3, Level(3, 1e9, 1e-6), slow=2), ("none", "full")),
    ],
    ids=["three", "little memory", "two hosts", "unlike devices"],
)
def test_no_stages_are_faster_than_what_is_found(cluster: Cluster, recomputes: tuple[RecomputeMode, ...]) -> None:
    """Degrees, ZeRO and recomputation of every stage; then again with less memory."""
    told = []
    for problem in problems(cluster, 2):
        costs = {degrees: costs for degrees, costs in problem.costs.items() if degrees.zero != 1}
        few, most_bytes = replace(problem, recomputes=recomputes, costs=costs), inf
        for _ in range(2):
            best, bound_s = best_first(SimulatedStages(few, most_bytes), inf, MOST_STEPS, Deadline(60.0))
            times_s = [found.step_s for found in every(few, most_bytes)]
            assert (best.step_s if best else None) == pytest.approx(min(times_s, default=None))
            if best is None:
                break
            assert bound_s <= best.step_s * (1 + 1e-9)
            told.append(best)
            most_bytes = 0.8 * best.peak_bytes
    assert any(not found.alike for found in told)


def test_the_bound_of_a_search_that_was_cut_short_holds() -> None:
    for problem in problems(devices(3, Level(3, 2e9, 1e-6)), 2):
        few = replace(problem, recomputes=("none",))
        _, bound_s = best_first(SimulatedStages(few), inf, MOST_STEPS, Deadline(0.0))
        assert bound_s <= min((found.step_s for found in every(few)), default=bound_s)


@pytest.mark.parametrize("recompute", RECOMPUTE_MODES)
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_stages_of_equal_degrees_take_as_much_as_the_row_of_these_degrees(zero: int, recompute: RecomputeMode) -> None:
    """In time and memory, though the row's recomputation is the simulator's own."""
    problem, rows = of_equal_degrees()
    two = StageDegrees(2, 1, zero)
    (row,) = (row for row in rows if row.shape[:8] == ("1f1b", recompute, 2, 2, 2, 2, 1, zero))
    first, last = row.layers[0].total, problem.n_blocks
    found = problem.simulated([StageSpec(0, first, two, recompute), StageSpec(first, last, two, recompute)])
    assert found is not None
    assert found.step_s == pytest.approx(row.step_s)
    assert found.peak_bytes == pytest.approx(row.peak_bytes, abs=4)


@cache
def of_equal_degrees() -> tuple[StageProblem, tuple[Choice, ...]]:
    cluster = devices(4, Level(4, 1e10, 1e-6))
    (problem,) = (problem for problem in problems(cluster, 4) if problem.micro_batches == 2)
    return problem, trade_offs(convolutions_first, cluster, 4, Search(time_limit_s=60), "adam", Demands(data=2)).choices


def test_the_stage_with_twice_the_work_gets_two_devices() -> None:
    """Worked out by hand, in multiply-adds at two FLOP of 1 GFLOP/s.

    The first layer has 9,900 of a sample, forward and for its weights; the second one 3,300, and as many for each of
    its weights and its input. So with two samples a micro-batch and a sample of these on each of two devices, both
    stages take 19,800: 4 micro-batches take 5 times that, and two replicas on as many devices 6 times.
    """
    three, whole = devices(3, Level(3, 1e15, 0.0)), Demands(zero=0)  # ZeRO divides the optimizer, too
    found = trade_offs(two_layers, three, 8, Search(time_limit_s=60), "adam", whole).choices
    best = found[0]
    assert best.degrees == (StageDegrees(2, 1), StageDegrees(1, 1))
    assert (best.micro_batches, best.samples, best.layers, best.used) == (4, 2, (StageLayers(1, 0, 0),) * 2, 3)
    assert best.devices == ("d0", "d2")
    assert best.step_s == pytest.approx(5 * 19_800 * 2 / 1e9, rel=1e-4)
    assert best.samples_per_s == pytest.approx(8 / best.step_s)
    others = min(one.step_s for one in found if not one.degrees)
    assert others == pytest.approx(6 * 19_800 * 2 / 1e9, rel=1e-4)
    assert best.config is not None
    assert best.config.named == "2×1+1×1"
    assert best.config.stages == best.layers


def test_without_time_for_stages_of_one_device_there_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, left_s = devices(3, Level(3, 2e9, 1e-6)), iter([60.0])
    monkeypatch.setattr(Deadline, "left_s", property(lambda _: next(left_s, 0.0)))
    assert list(problems(cluster, 2)) == []
