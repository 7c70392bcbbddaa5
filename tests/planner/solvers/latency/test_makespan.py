"""The compiled makespan against the simulator."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from planner.problem.blocks import by_priority
from simulator.placement import Placement
from simulator.simulate import simulate
from tests.planner.problem.problems import tables
from tests.planner.solvers.latency.makespans import Makespan


@st.composite
def placements(draw: st.DrawFn, table: CostTable) -> Placement:
    """Any devices, any topological order."""
    n = table.n_ops
    device = draw(st.lists(st.integers(0, table.n_devices - 1), min_size=n, max_size=n))
    priority = draw(st.lists(st.integers(0, 9).map(float), min_size=n, max_size=n))
    return Placement(tuple(device), tuple(by_priority(priority, table.edges)))


@given(st.data(), tables(max_ops=14, readers=4, sharings=("fifo", "unlimited")))
def test_it_is_what_the_simulator_says(data: st.DataObject, table: CostTable) -> None:
    makespan = Makespan(table)
    for _ in range(3):  # the room is used again
        placement = data.draw(placements(table))
        try:
            truth = simulate(table, placement).makespan_s
        except ValueError:  # a link is missing, or an operator cannot run there
            truth = inf
        assert makespan(placement) == truth


@given(st.data(), tables(max_ops=14, readers=4, sharings=("fifo", "unlimited")))
def test_the_steps_of_the_critical_path_add_up(data: st.DataObject, table: CostTable) -> None:
    makespan = Makespan(table)
    seconds = makespan(data.draw(placements(table)))
    if 0 < seconds < inf:
        work, step, sum_s = makespan.work, int(makespan.work.clock[1]), 0.0
        while step >= 0:
            sum_s += work.step_s[step]
            step = int(work.cause[step])
        assert sum_s == pytest.approx(seconds)
