"""What is occupied the longest: devices, links and shared channels, for one micro-batch, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.step_update import StepUpdate
from costmodels.table import CostTable
from planner.problem.bottleneck import Busiest, busiest
from planner.problem.evaluate import loads
from planner.problem.problem import Goal, Problem
from simulator.placement import Placement
from simulator.training import TrainingStep
from tests.costmodels.parts import table_with
from tests.planner.problem.problems import make_table, tables


def of(table_goal: Problem, *device: int) -> Busiest:
    return busiest(table_goal, Placement(device))


def test_a_device_or_a_link() -> None:
    # a(2) ─x─► b(3) ─y─► c(1): with a and c on device 0, x and y go there and back
    table = make_table([[2, 2], [3, 3], [1, 1]], [(0, (1,), 4.0), (1, (2,), 2.0)])
    assert of(Problem(table, Goal.THROUGHPUT), 0, 0, 0) == Busiest(0, (), 6.0)
    assert of(Problem(table, Goal.THROUGHPUT), 0, 1, 1) == Busiest(1, (), 4.0)  # as long as the link: the device
    found = of(Problem(replace(table, forward_s=table.forward_s / 2), Goal.LATENCY), 0, 1, 0)
    assert found == Busiest(None, ((0, 1),), 4.0)
    assert found.name(table.devices) == "dev0 → dev1"


def test_links_that_share_a_channel_add_up() -> None:
    table = make_table([[2, 2], [3, 3], [1, 1]], [(0, (1,), 4.0), (1, (2,), 2.0)], channel="bus")
    found = of(Problem(table, Goal.THROUGHPUT), 0, 1, 0)
    assert found == Busiest(None, ((0, 1), (1, 0)), 6.0)
    assert found.name(table.devices) == "dev0 → dev1, dev1 → dev0"
    free = replace(table, sharing="unlimited")
    assert of(Problem(free, Goal.THROUGHPUT), 0, 1, 0) == Busiest(0, (), 3.0)


@pytest.mark.parametrize("overlap", [True, False])
def test_training_goes_there_and_back(overlap: bool) -> None:
    # F 2 and 3, B twice as much; 7 s ahead on one link, 7 s back on the other, or on the same bus
    table = make_table([[2, 2], [3, 3]], [(0, (1,), 7.0)], overlap=overlap)
    table = table_with(table, backward_s=2 * table.forward_s, gradient=np.ones(1, dtype=bool))
    step = TrainingStep("1f1b", 4)
    assert of(Problem(table, Goal.TRAINING, step=step), 0, 1) == Busiest(1, (), 9.0 if overlap else 9.0 + 14)
    again = replace(step, recompute="full")
    assert of(Problem(table, Goal.TRAINING, step=again), 0, 1) == Busiest(1, (), 12.0 if overlap else 12.0 + 14)
    bus = replace(table, channel=np.where(table.channel >= 0, 0, -1))
    expected = Busiest(None, ((0, 1), (1, 0)), 14.0) if overlap else Busiest(1, (), 23.0)
    assert of(Problem(bus, Goal.TRAINING, step=step), 0, 1) == expected


def test_the_way_to_the_replicas_counts_for_every_micro_batch() -> None:
    # F 2 and 3, B twice as much; 8 bytes of gradients at 6 s a byte, once for 4 micro-batches: 12 s for each
    table = make_table([[2, 2], [3, 3]], [(0, (1,), 7.0)])
    update = StepUpdate(np.array([8.0, 2.0]), np.zeros(2), np.full(2, 6.0), np.zeros(2))
    table = table_with(table, backward_s=2 * table.forward_s, update=update)
    found = of(Problem(table, Goal.TRAINING, step=TrainingStep("1f1b", 4)), 0, 1)
    assert found.seconds == 12
    assert found.name(table.devices) == "dev0 → replicas"
    assert of(Problem(table, Goal.TRAINING, step=TrainingStep("1f1b", 6)), 0, 1) == Busiest(1, (), 9.0)
    one_uplink = table_with(table, update=replace(update, uplink=np.zeros(2, dtype=np.int64)))
    found = of(Problem(one_uplink, Goal.TRAINING, step=TrainingStep("1f1b", 4)), 0, 1)
    assert (found.seconds, found.name(table.devices)) == (15, "dev0 → replicas, dev1 → replicas")


@given(tables(max_ops=5), st.data())
def test_nothing_is_busier(table: CostTable, data: st.DataObject) -> None:
    device = tuple(data.draw(st.integers(0, table.n_devices - 1)) for _ in table.ops)
    placement = Placement(device)
    if any(not table.linked[src, dst] for _, src, dst in placement.cuts(table)):
        return
    if not np.isfinite(table.forward_s[np.arange(table.n_ops), list(device)]).all():
        return
    load_s, channel_s = loads(table, placement)
    assert busiest(Problem(table, Goal.THROUGHPUT), placement).seconds == pytest.approx(
        max(load_s.max(), channel_s.max(initial=0.0))
    )
