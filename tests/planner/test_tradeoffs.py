"""Schedules, devices and micro-batches against each other: all that is worth a look, and what is dominated."""

from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from costmodels.cluster import Cluster, Device, Link
from graphs.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from planner.tradeoffs import Asked, Choice, _searches, trade_offs, undominated
from simulator.placement import Placement


def pair(memory_bytes: float = 1e9) -> Cluster:
    devices = tuple(Device(f"dev{i}", "cpu", memory_bytes, {"float32": 1e9}, 1e18) for i in range(2))
    return Cluster("pair", devices, (Link("dev0", "dev1", 1e12), Link("dev1", "dev0", 1e12)))


@cache
def line(samples: int) -> Graph:
    layers = nn.Sequential(*(nn.Linear(100, 100, bias=False) for _ in range(4)))
    return program_from_module(layers, (torch.ones(samples, 100),)).graph


def choice(step_s: float, peak_bytes: float) -> Choice:
    return Choice("1f1b", ("a",), 1, 1, 1, step_s, (peak_bytes,), Placement((0,)))


def test_all_that_is_worth_a_look() -> None:
    # one device has one schedule; two devices have all, but interleaved needs a multiple of two micro-batches
    assert list(_searches(1, 6)) == [Asked("1f1b", 1, 1, 6), Asked("1f1b", 1, 2, 3)]
    found = list(_searches(2, 4))
    assert [(asked.n_devices, asked.micro_batches) for asked in found] == (
        [(1, 1), (1, 2), (1, 4)] + [(2, 1)] * 4 + [(2, 2)] * 5 + [(2, 4)] * 5
    )
    assert all(asked.samples * asked.micro_batches == 4 for asked in found)
    assert sorted({asked.n_devices for asked in _searches(12, 1)}) == [1, 2, 4, 8, 12]


def test_two_devices_are_faster_and_hold_less() -> None:
    found = trade_offs(line, pair(), batch=8, optimizer="adam", time_limit_s=1)
    assert {len(one.devices) for one in found} == {1, 2}
    assert all(earlier.step_s <= later.step_s for earlier, later in pairwise(found))
    best = undominated(found)
    assert best[0] is found[0]
    # 4 layers of 2 · 8 · 100 · 100 FLOP, thrice, at 1 GFLOP/s on one device; with m = 8 and p = 2: (8 + 1) / 8 of half
    (alone,) = (one.step_s for one in found if len(one.devices) == 1 and one.micro_batches == 1)
    assert 4 * 160e3 * 2 / 1e9 < alone <= 4 * 160e3 * 3 / 1e9
    together = min(one.step_s for one in found if one.schedule == "1f1b" and len(one.devices) == 2)
    assert alone / 2 < together < alone * 9 / 8 / 2 * 1.1
    assert len(best[0].devices) == 2
    assert best[-1].peak_bytes == min(one.peak_bytes for one in found)


def test_nothing_fits_into_too_little_memory() -> None:
    assert trade_offs(line, pair(1000.0), batch=2, time_limit_s=1) == ()


def test_a_batch_has_a_sample() -> None:
    with pytest.raises(InputError) as error:
        trade_offs(line, pair(), batch=0)
    assert str(error.value) == "the batch is 0; it must be 1 or more"


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
