"""Small problems with accelerators beside a host: a builder, and random ones for hypothesis."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from costmodels.table import CostTable, Offload
from planner.problem import Goal, Problem
from tests.planner.problems import Matrix, make_table, tables


def make_offload(
    forward_s: Matrix,
    flows: Sequence[tuple[int, tuple[int, ...], float]] = (),
    hosts: Sequence[int] = (),
    **fields: Any,
) -> CostTable:
    """A table in which a flow's number is what storing and fetching it takes, each, except on hosts."""
    table = make_table(forward_s, flows, **fields)
    host = np.isin(np.arange(table.n_devices), hosts)
    seconds = np.where(host, 0.0, table.flow_bytes[:, None])
    return replace(table, offload=Offload(seconds, seconds.copy(), host))


@st.composite
def offloads(draw: st.DrawFn, max_ops: int = 6, readers: int = 3) -> CostTable:
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
    return replace(table, offload=Offload(ways[0], ways[1], host))


@st.composite
def contiguous_problems(draw: st.DrawFn, of: st.SearchStrategy[CostTable]) -> Problem:
    """Problems of which all operators must be contiguous, or some."""
    table = draw(of)
    some = st.sets(st.integers(0, table.n_ops - 1), min_size=1)
    inside = draw(st.just(set(range(table.n_ops))) | some)
    return Problem(table, Goal.THROUGHPUT, frozenset(inside))
