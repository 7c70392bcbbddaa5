"""Degrees of each stage: against all stages that there are, against rows of equal degrees, and worked out by hand."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, product

import pytest
import torch
from torch import nn

from costmodels.cluster import Cluster, Device
from costmodels.links import Level
from costmodels.workload import Workload
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from planner.planning.make_plan import Search
from planner.planning.schedule_sweep import ALL_OPEN, Tables, trade_offs
from planner.planning.stage_degrees import DegreeSearch, FoundStages, OwnStage
from planner.planning.training_shapes import Shape, searched_shapes
from planner.problem.deadline import Deadline
from planner.problem.hybrid_training.config import Demands, StageDegrees, StageLayers
from planner.problem.reporter import SILENT

TWO_LAYERS = nn.Sequential(nn.Linear(99, 100, bias=False), nn.Linear(100, 33, bias=False))
CONVOLUTIONS_FIRST = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(8)),
    *(nn.Flatten(), nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 8)),
)
SLOW, FAST = Level(2, 4e9, 1e-6), Level(2, 4e10, 1e-7)


def devices(number: int, *levels: Level, memory_bytes: float = 1e9) -> Cluster:
    each = (Device(f"d{n}", "gpu", memory_bytes, {"float32": 1e9}, 1e18) for n in range(number))
    return Cluster("alike", tuple(each), levels=levels)


@cache
def two_layers(samples: int) -> Graph:
    return program_from_module(TWO_LAYERS, (torch.ones(samples, 99),), training=True).graph


@cache
def convolutions_first(samples: int) -> Graph:
    return program_from_module(CONVOLUTIONS_FIRST, (torch.ones(samples, 3, 32, 32),), training=True).graph


def problems(cluster: Cluster, batch: int) -> Iterator[tuple[Shape, DegreeSearch]]:
    tables = Tables(convolutions_first, cluster, Workload("training", optimizer="adam"), ALL_OPEN, SILENT)
    shapes = searched_shapes(cluster, batch, ALL_OPEN)
    for shape in shapes:
        tables.of(shape)
    return tables.degree_problems(shapes)


def every(problem: DegreeSearch, roomy: DegreeSearch, n_devices: int) -> Iterator[FoundStages]:
    """All stages of the problem that fit, by brute force; on roomy devices, all stages that may be cut so."""
    n_blocks = len(problem.networks[1].units)
    for n_stages in range(2, min(n_blocks, n_devices) + 1):
        for cuts in combinations(range(1, n_blocks), n_stages - 1):
            ends = zip((0, *cuts), (*cuts, n_blocks), strict=True)
            borders = list(ends)
            for degrees in product(problem.costs, repeat=n_stages):
                stages = [OwnStage(*ends, own) for ends, own in zip(borders, degrees, strict=True)]
                if sum(own.devices for own in degrees) <= n_devices and len(set(degrees)) > 1 and roomy.allows(stages):
                    found = problem.simulated(stages)
                    if found is not None:
                        yield found


@pytest.mark.parametrize(
    "cluster",
    [
        devices(3, Level(3, 2e9, 1e-6)),
        devices(4, Level(4, 1e10, 1e-6), memory_bytes=7.2e7),
        devices(4, Level(2, 1e10, 1e-6), Level(4, 1e8, 1e-5)),
    ],
    ids=["three", "little memory", "two hosts"],
)
def test_no_stages_are_faster_than_what_is_found(cluster: Cluster) -> None:
    told = []
    roomy = devices(len(cluster.devices), *cluster.levels)
    for (_, problem), (_, same) in zip(problems(cluster, 4), problems(roomy, 4), strict=True):
        best, bound_s = problem.best(Deadline(60.0))
        times_s = [found.step_s for found in every(problem, same, len(cluster.devices))]
        assert (best.step_s if best else None) == pytest.approx(min(times_s, default=None))
        if best is not None:
            assert bound_s <= best.step_s * (1 + 1e-9)
            told.append(best)
    assert len(told) > 6
    assert len({found.stages for found in told}) > 1


def test_the_bound_of_a_search_that_was_cut_short_holds() -> None:
    for _, problem in problems(devices(3, Level(3, 2e9, 1e-6)), 4):
        _, bound_s = problem.best(Deadline(0.0))
        assert bound_s <= min((found.step_s for found in every(problem, problem, 3)), default=bound_s)


def test_stages_of_equal_degrees_take_as_much_as_the_row_of_these_degrees() -> None:
    cluster, two = devices(4, Level(4, 1e10, 1e-6)), StageDegrees(2, 1)
    (problem,) = (
        problem
        for shape, problem in problems(cluster, 4)
        if (shape.zero, shape.micro_batches, problem.step.recompute) == (1, 2, "none")
    )
    rows = trade_offs(convolutions_first, cluster, 4, "adam", Search(time_limit_s=60), Demands(data=2, zero=1)).choices
    (row,) = (row for row in rows if row.shape[:8] == ("1f1b", "none", 2, 2, 2, 2, 1, 1))
    last = len(problem.networks[1].units)
    found = problem.simulated([OwnStage(0, row.layers[0], two), OwnStage(row.layers[0], last, two)])
    assert found is not None
    assert found.step_s == pytest.approx(row.step_s)


def test_the_stage_with_twice_the_work_gets_two_devices() -> None:
    """Worked out by hand, in multiply-adds at two FLOP of 1 GFLOP/s.

    The first layer has 9,900 of a sample, forward and for its weights; the second one 3,300, and as many for each of
    its weights and its input. So with two samples a micro-batch and a sample of these on each of two devices, both
    stages take 19,800: 4 micro-batches take 5 times that, and two replicas on as many devices 6 times.
    """
    found = trade_offs(two_layers, devices(3, Level(3, 1e15, 0.0)), 8, "adam", Search(time_limit_s=60)).choices
    best = found[0]
    assert best.degrees == (StageDegrees(2, 1), StageDegrees(1, 1))
    assert (best.micro_batches, best.samples, best.layers, best.used) == (4, 2, (1, 1), 3)
    assert best.devices == ("d0", "d2")
    assert best.step_s == pytest.approx(5 * 19_800 * 2 / 1e9, rel=1e-4)
    assert best.samples_per_s == pytest.approx(8 / best.step_s)
    others = min(one.step_s for one in found if not one.degrees)
    assert others == pytest.approx(6 * 19_800 * 2 / 1e9, rel=1e-4)
    assert best.config is not None
    assert best.config.named == "2×1+1×1"
    uneven = replace(best, layers=(1, 2), recompute="full").config
    assert uneven is not None
    assert uneven.stages == (StageLayers(0, 0, 1), StageLayers(0, 0, 2))
