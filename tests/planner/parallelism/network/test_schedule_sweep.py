"""Schedules, devices and micro-batches against each other: all that is worth a look, and what is dominated."""

import time
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.workload import RECOMPUTE_MODES, Workload
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from planner.parallelism.closed_form.prices import StepPrice
from planner.parallelism.network.schedule_sweep import SCHEDULES, trade_offs
from planner.parallelism.network.training_rows import Choice, TradeOffs, undominated
from planner.parallelism.network.training_shapes import Shape, _shapes
from planner.planning.make_plan import Search, make_plan
from planner.problem.problem import Goal
from planner.problem.reporter import Reporter
from planner.problem.result import Interrupted
from simulator.placement import Placement
from simulator.training import most_micro_batches


def pair(memory_bytes: float = 1e9) -> Cluster:
    devices = tuple(Device(f"dev{i}", "cpu", memory_bytes, {"float32": 1e9}, 1e18) for i in range(2))
    return Cluster("pair", devices, (Link("dev0", "dev1", 1e12), Link("dev1", "dev0", 1e12)))


@cache
def line(samples: int) -> Graph:
    layers = nn.Sequential(*(nn.Linear(100, 100, bias=False) for _ in range(4)))
    return program_from_module(layers, (torch.ones(samples, 100),)).graph


def choice(step_s: float, peak_bytes: float) -> Choice:
    price = StepPrice(step_s, step_s, 0.0, 0.0, 0.0, (peak_bytes,))
    return Choice("1f1b", ("a",), 1, 1, 1, 1, "none", price, Placement((0,)))


def test_all_that_is_worth_a_look() -> None:
    assert list(_shapes(pair().first(1), 6)) == [Shape(1, 1, m, 6 // m) for m in (1, 2, 3, 6)]
    every = list(_shapes(pair(), 4))
    shapes = [one for one in every if one.plain]
    assert {(one.replicas, one.tensor, one.zero) for one in every if not one.plain} == {
        *((1, 2, 0), (2, 1, 1), (2, 1, 2), (2, 1, 3)),
    }
    assert [(one.n_devices, one.replicas, one.micro_batches) for one in shapes] == [
        *((1, 1, 1), (1, 1, 2), (1, 1, 4), (2, 1, 1), (2, 1, 2), (2, 1, 4)),
        *((2, 2, 1), (2, 2, 2)),
    ]
    assert all(one.samples * one.micro_batches * one.replicas == 4 for one in shapes)
    assert {one.replicas for one in _shapes(pair(), 3)} == {1}  # 3 samples are not shared by two
    unequal = replace(pair(), devices=(pair().devices[0], replace(pair().devices[1], memory_bytes=5.0)))
    assert {one.replicas for one in _shapes(unequal, 4)} == {1}
    many = [replace(pair().devices[0], name=f"dev{i}") for i in range(12)]
    assert sorted({one.n_devices for one in _shapes(Cluster("dozen", tuple(many)), 1)}) == [1, 2, 4, 8, 12]
    # 24 has divisors enough; of 720, those that are powers of two and single samples
    sizes = [one.micro_batches for one in _shapes(pair().first(1), 720)]
    assert [one.micro_batches for one in _shapes(pair().first(1), 24)] == [1, 2, 3, 4, 6, 8, 12, 24]
    assert sizes == [1, 2, 4, 8, 16, 720]


def test_every_schedule_is_tried_with_and_without_recomputing() -> None:
    found = trade_offs(line, pair(), batch=8, optimizer="adam", search=Search(time_limit_s=60)).choices
    apart = {(one.schedule, one.recompute) for one in found if len(one.devices) == 2 and one.micro_batches == 4}
    assert apart == {(schedule, recompute) for schedule in SCHEDULES for recompute in RECOMPUTE_MODES}
    assert len({one.shape for one in found}) == len(found)
    for one in found:
        if one.recompute == "full":
            (twin,) = (other for other in found if other.shape == (one.schedule, "none", *one.shape[2:]))
            assert twin.step_s < one.step_s


@cache
def uneven(samples: int) -> Graph:
    widths = (32, *np.random.default_rng(0).integers(8, 200, 3).tolist())
    layers = nn.Sequential(*(nn.Linear(*each) for each in pairwise(widths)))
    return program_from_module(layers, (torch.ones(samples, 32),), training=True).graph


def test_stages_are_cut_for_each_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.problem.deadline.BRAKE", 1e6)  # only work counts
    devices = tuple(Device(f"dev{i}", "cpu", 1e9, {"float32": 1e9}, 1e10) for i in range(2))
    two = Cluster("two", devices, (Link("dev0", "dev1", 1e9, 1e-5), Link("dev1", "dev0", 1e9, 1e-5)))
    found = trade_offs(uneven, two, batch=8, search=Search(time_limit_s=60)).choices
    apart = [one for one in found if (one.schedule, one.recompute, len(one.devices)) == ("zb-h1", "none", 2)]
    assert {one.micro_batches for one in apart if one.config is None} == {1, 2, 4, 8}
    for one in (one for one in apart if one.config is None):
        work = Workload("training", one.samples, micro_batches=one.micro_batches, schedule=one.schedule)
        alone = make_plan(uneven(one.samples), two, Goal.TRAINING, work, (), Search(time_limit_s=0.3))
        assert one.step_s <= alone.latency_s * (1 + 1e-9)


def test_replicas_share_the_batch_and_add_up_their_gradients() -> None:
    # each of two does 4 samples on its own, 4 layers of 2 · 4 · 100 · 100 FLOP, and Adam's 18 passes over 160 kB, which
    # takes nothing here; the gradients go round at 1 TB/s
    found = trade_offs(line, pair(), batch=8, optimizer="adam", search=Search(time_limit_s=60)).choices
    whole = [one for one in found if (one.tensor, one.zero) == (1, 0)]
    (both,) = (one for one in whole if one.replicas == 2 and one.micro_batches == 1)
    (alone,) = (one for one in whole if len(one.devices) == 1 and one.replicas == 1 and one.micro_batches == 1)
    assert (both.devices, both.samples) == (("dev0",), 4)
    assert both.step_s == pytest.approx(alone.step_s / 2, rel=1e-3)
    assert both.step_s > alone.step_s / 2
    assert both.samples_per_s == pytest.approx(8 / both.step_s)


def test_two_devices_are_faster_and_hold_less() -> None:
    found = trade_offs(line, pair(), batch=8, optimizer="adam", search=Search(time_limit_s=60)).choices
    assert {len(one.devices) for one in found} == {1, 2}
    assert all(earlier.step_s <= later.step_s for earlier, later in pairwise(found))
    best = undominated(found)
    assert best[0] is found[0]
    # 4 layers of 2 · 8 · 100 · 100 FLOP, thrice, at 1 GFLOP/s on one device; with m = 8 and p = 2: (8 + 1) / 8 of half
    single = [one for one in found if len(one.devices) == 1 and one.replicas == one.tensor == 1]
    (alone,) = (one.step_s for one in single if one.micro_batches == 1)
    assert 4 * 160e3 * 2 / 1e9 < alone <= 4 * 160e3 * 3 / 1e9
    together = min(one.step_s for one in found if one.schedule == "1f1b" and len(one.devices) == 2)
    assert alone / 2 < together < alone * 9 / 8 / 2 * 1.1
    assert len(best[0].devices) * best[0].replicas * best[0].tensor == 2
    assert best[-1].peak_bytes == min(one.peak_bytes for one in found)


def test_a_size_that_the_network_cannot_be_trained_with_is_left_out() -> None:
    module = nn.Sequential(nn.Linear(100, 100), nn.BatchNorm1d(100))

    def normalised(samples: int) -> Graph:
        return program_from_module(module, (torch.ones(samples, 100),), training=True).graph

    found = trade_offs(normalised, pair(), batch=4, search=Search(time_limit_s=60)).choices
    assert {one.samples for one in found} == {2, 4}  # of one sample nothing can be normalised
    with pytest.raises(InputError, match="Expected more than 1 value per channel when training"):
        trade_offs(normalised, pair(), batch=1, search=Search(time_limit_s=60))


def test_nothing_fits_into_too_little_memory() -> None:
    assert trade_offs(line, pair(1000.0), batch=2, search=Search(time_limit_s=60)) == TradeOffs((), 0)


@pytest.mark.attack("process")
def test_the_time_limit_holds_for_everything() -> None:
    """Of many devices and ways to divide a batch, those that there is no time for are left out and counted."""
    many = tuple(replace(pair().devices[0], name=f"dev{i}") for i in range(16))
    links = tuple(Link(a.name, b.name, 1e12) for a in many for b in many if a is not b)
    asked: list[int] = []

    def counted(samples: int) -> Graph:
        asked.append(samples)
        return line(8)  # its times do not matter

    found = trade_offs(counted, Cluster("many", many, links), batch=8, search=Search(time_limit_s=1e-6))
    assert len(found.choices) == 1  # however short it is
    assert found.unsearched == len(list(_shapes(Cluster("many", many, links), 8))) - 1 > 30
    assert asked == [1]
    start_s = time.perf_counter()
    found = trade_offs(counted, Cluster("many", many, links), batch=8, search=Search(time_limit_s=1.0))
    assert found.choices
    assert time.perf_counter() - start_s < 10  # a search of its own for each way took a minute


@pytest.mark.attack("process")
def test_an_import_that_would_end_after_the_time_limit_is_not_begun() -> None:
    asked: list[int] = []

    def slow(samples: int) -> Graph:
        asked.append(samples)
        time.sleep(0.6)
        return line(samples)

    line(4)
    found = trade_offs(slow, pair(), batch=4, search=Search(time_limit_s=1.0))
    assert asked == [1]
    assert {one.samples for one in found.choices} == {1}
    assert found.unsearched >= sum(shape.samples != 1 for shape in _shapes(pair(), 4))


@pytest.mark.attack("process")
def test_what_was_found_before_ctrl_c_is_kept() -> None:
    class Stop(Reporter):
        def on_step(self, name: str, done: int, total: int) -> None:  # noqa: ARG002 (as it is called)
            if done == 2:
                raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        trade_offs(line, pair(), batch=8, search=Search(reporter=Stop()))
    assert stopped.value.best.choices
    assert stopped.value.best.unsearched == len(list(_shapes(pair(), 8))) - 2


@pytest.mark.attack("process")
def test_a_batch_of_a_million_million_is_divided_at_once() -> None:
    sizes = {shape.micro_batches for shape in _shapes(pair(), 10**12)}
    assert max(sizes) <= most_micro_batches(1)


def test_a_batch_has_a_sample() -> None:
    with pytest.raises(InputError) as error:
        trade_offs(line, pair(), batch=0, search=Search())
    assert str(error.value) == "the global batch is 0; give a whole number of 1 or more"


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=12))
def test_what_is_kept_is_dominated_by_nothing_and_dominates_the_rest(pairs: list[tuple[int, int]]) -> None:
    choices = [choice(*pair) for pair in pairs]
    kept = undominated(choices)

    def better(one: Choice, other: Choice) -> bool:
        mine, theirs = (one.step_s, one.peak_bytes), (other.step_s, other.peak_bytes)
        return mine != theirs and mine[0] <= theirs[0] and mine[1] <= theirs[1]

    assert not any(better(one, other) for one in choices for other in kept)
    for left in choices:
        assert any(better(one, left) or (one.step_s, one.peak_bytes) == (left.step_s, left.peak_bytes) for one in kept)
