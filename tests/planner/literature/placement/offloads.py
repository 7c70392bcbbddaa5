"""Small problems with accelerators next to a host: a builder, and random ones for hypothesis."""

from collections.abc import Sequence
from dataclasses import fields
from math import inf
from typing import Any

import numpy as np
from hypothesis import strategies as st

from costmodels.table import CostTable
from planner.literature.placement.offload import Offload, OffloadTable
from planner.problem.problem import Goal, Problem
from tests.planner.problem.problems import Matrix, make_table, tables


def with_offload(table: CostTable, offload: Offload) -> OffloadTable:
    """A table whose devices exchange tensors through a host instead."""
    own = {field.name: getattr(table, field.name) for field in fields(table)}
    return OffloadTable(**own | {"overlap": False, "overhead_s": np.zeros(table.n_devices)}, offload=offload)


def make_offload(
    forward_s: Matrix,
    flows: Sequence[tuple[int, tuple[int, ...], float]] = (),
    hosts: Sequence[int] = (),
    **values: Any,
) -> OffloadTable:
    """A table in which a flow's number is what storing and fetching it takes, each, except on hosts."""
    table = make_table(forward_s, flows, **values)
    host = np.isin(np.arange(table.n_devices), hosts)
    seconds = np.where(host, 0.0, table.flow_bytes[:, None])
    return with_offload(table, Offload(seconds, seconds.copy(), host))


def offload_table(
    forward_s: Matrix,
    flows: Sequence[tuple[int, tuple[int, ...], float]] = (),
    n_hosts: int = 1,
    capacity_bytes: float = inf,
    **values: Any,
) -> OffloadTable:
    """The same where so many of the last devices are hosts, with any amount of memory; accelerators have that much."""
    k = len(forward_s[0])
    hosts = range(k - n_hosts, k)
    capacity = [inf if device in hosts else capacity_bytes for device in range(k)]
    return make_offload(forward_s, flows, hosts, capacity_bytes=capacity, **values)


@st.composite
def offloads(draw: st.DrawFn, max_ops: int = 6, readers: int = 3) -> OffloadTable:
    """Random tables in which devices exchange tensors through a host, every device at costs of its own or all alike."""
    table = draw(tables(max_ops=max_ops, uniform=True, readers=readers))
    shape = len(table.flows), table.n_devices
    host = np.asarray(draw(st.lists(st.booleans(), min_size=shape[1], max_size=shape[1])))
    ways = []
    for _ in range(2):
        width = draw(st.sampled_from([1, shape[1]]))
        numbers = draw(st.lists(st.integers(0, 6), min_size=shape[0] * width, max_size=shape[0] * width))
        seconds = np.broadcast_to(np.asarray(numbers, dtype=float).reshape(-1, width), shape)
        ways.append(np.where(host, 0.0, seconds))
    return with_offload(table, Offload(ways[0], ways[1], host))


@st.composite
def offload_tables(draw: st.DrawFn, max_ops: int = 6, max_devices: int = 3) -> OffloadTable:
    """Random tables with one host, memory that binds, operators that accelerators cannot run and groups."""
    n, k = draw(st.integers(1, max_ops)), draw(st.integers(1, max_devices))
    cost = st.integers(0, 9).map(float)
    rows = [[draw(cost | st.just(inf))] * (k - 1) + [draw(cost)] for _ in range(n)]
    flows = []
    for writer in range(n - 1):
        ends = st.sets(st.integers(writer + 1, n - 1), min_size=1, max_size=3).map(lambda found: tuple(sorted(found)))
        flows += [(writer, readers, draw(cost)) for readers in draw(st.lists(ends, max_size=2))]
    groups = st.sets(st.integers(0, n - 1), min_size=2, max_size=3).map(lambda found: tuple(sorted(found)))
    return offload_table(
        rows,
        flows,
        op_bytes=[draw(cost) for _ in range(n)],
        capacity_bytes=draw(st.integers(0, 20).map(float)),
        together=tuple(draw(st.lists(groups, max_size=1))) if n > 1 else (),
    )


@st.composite
def contiguous_problems(draw: st.DrawFn, of: st.SearchStrategy[CostTable]) -> Problem:
    """Problems of which all operators must be contiguous, or some."""
    table = draw(of)
    some = st.sets(st.integers(0, table.n_ops - 1), min_size=1)
    inside = draw(st.just(set(range(table.n_ops))) | some)
    return Problem(table, Goal.THROUGHPUT, frozenset(inside))
