"""Accelerators beside a host: loads and latency by hand, and against a judge that is as slow as the definition."""

from math import inf

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from planner.literature.placement.evaluate import call_seconds, offload_latency_s
from planner.literature.placement.offload import offload_of
from simulator.placement import Placement
from tests.planner.literature.placement.offloads import offload_table, offload_tables

HOST = 2


def diamond() -> CostTable:
    """::

    a ─x─► b ─y─► d        accelerators: 1 s each, the host: 5 s each
    └──x─► c ─z─► d        x takes 10 s to move, y 20 s, z 30 s
    """
    return offload_table([[1, 1, 5]] * 4, [(0, (1, 2), 10), (1, (3,), 20), (2, (3,), 30)])


class TestLoads:
    def test_a_flow_is_stored_once_and_fetched_once_by_each_reader(self) -> None:
        # accelerator 0: a 1 + store x 10; accelerator 1: b and d 2 + fetch x 10 + fetch z 30; host: c 5
        assert call_seconds(diamond(), Placement((0, 1, HOST, 1))).tolist() == [11, 42, 5]

    def test_two_readers_on_one_device_fetch_once(self) -> None:
        # accelerator 1: b and c 2 + fetch x 10 + store y 20 + store z 30
        assert call_seconds(diamond(), Placement((0, 1, 1, HOST))).tolist() == [11, 62, 5]

    def test_what_stays_costs_nothing(self) -> None:
        assert call_seconds(diamond(), Placement((0, 0, 0, 0))).tolist() == [4, 0, 0]


class TestLatency:
    def test_one_call_takes_its_load(self) -> None:
        assert offload_latency_s(diamond(), Placement((0, 0, 0, 0))) == 4

    def test_the_host_runs_everything_at_once(self) -> None:
        assert offload_latency_s(diamond(), Placement((HOST, HOST, HOST, HOST))) == 15  # a, then b and c, then d

    def test_a_call_waits_for_all_that_it_fetches(self) -> None:
        # a 5 on the host; accelerator 0 with b: fetch x 10 + 1 + store y 20 = 31 until 36; c 5 until 10; d 5 from 36
        assert offload_latency_s(diamond(), Placement((HOST, 0, HOST, HOST))) == 41

    def test_all_operators_of_a_call_finish_together(self) -> None:
        # one call of a and c: 2 + store x 10 + store z 30 = 42; only then can b start on the host, 5; then d, 5
        assert offload_latency_s(diamond(), Placement((0, HOST, 0, HOST))) == 52

    def test_calls_that_wait_for_each_other_never_finish(self) -> None:
        # a and d on accelerator 0 need b on accelerator 1, which needs a
        assert offload_latency_s(diamond(), Placement((0, 1, 0, 0))) == inf
        assert offload_latency_s(diamond(), Placement((0, HOST, 0, 0))) == inf

    def test_two_hosts_are_one(self) -> None:
        table = offload_table([[1, 5, 5]] * 3, [(0, (1,), 1), (1, (2,), 1)], n_hosts=2)
        assert offload_latency_s(table, Placement((1, 2, 1))) == 15


def slow_loads(table: CostTable, device: tuple[int, ...]) -> list[float]:
    """What each device does, one operator and one flow at a time."""
    offload, found = offload_of(table), []
    for d in range(table.n_devices):
        seconds = sum(table.forward_s[op, d] for op in range(table.n_ops) if device[op] == d)
        for number, flow in enumerate(table.flows):
            at_writer, at_readers = device[flow.writer], {device[reader] for reader in flow.readers}
            if at_writer == d and at_readers != {d}:
                seconds += offload.store_s[number, d]
            if at_writer != d and d in at_readers:
                seconds += offload.fetch_s[number, d]
        found.append(float(seconds))
    return found


def slow_latency(table: CostTable, device: tuple[int, ...]) -> float:
    """The longest path through what runs at once, if there is no circle."""
    host, loads = offload_of(table).host, slow_loads(table, device)
    units = networkx.DiGraph()
    unit = [(d, op) if host[d] else (d, -1) for op, d in enumerate(device)]
    for op, d in enumerate(device):
        units.add_node(unit[op], takes=float(table.forward_s[op, d]) if host[d] else loads[d])
    units.add_edges_from((unit[w], unit[r]) for w, r in table.edges if unit[w] != unit[r])
    if not networkx.is_directed_acyclic_graph(units):
        return inf
    finish: dict[tuple[int, int], float] = {}
    for one in networkx.topological_sort(units):
        start = max((finish[before] for before in units.predecessors(one)), default=0.0)
        finish[one] = start + units.nodes[one]["takes"]
    return max(finish.values())


@given(st.data())
def test_loads_and_latency_are_those_of_the_slow_judge(data: st.DataObject) -> None:
    table = data.draw(offload_tables())
    able = [np.flatnonzero(np.isfinite(table.forward_s[op])).tolist() for op in range(table.n_ops)]
    device = tuple(data.draw(st.sampled_from(devices)) for devices in able)
    assert call_seconds(table, Placement(device)).tolist() == pytest.approx(slow_loads(table, device))
    assert offload_latency_s(table, Placement(device)) == pytest.approx(slow_latency(table, device))
