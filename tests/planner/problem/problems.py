"""Small problems: a builder with sensible defaults, random ones for hypothesis, and what brute force says of them."""

from collections.abc import Sequence
from itertools import combinations, permutations
from math import inf
from typing import Any

import numpy as np
from hypothesis import strategies as st

from costmodels.cluster.cluster import SHARINGS, Sharing
from costmodels.table import CostTable, Source
from graphs.common.arrays import Floats
from graphs.ir import Flow
from planner.problem.problem import Problem
from planner.solvers.base import objective_of
from simulator.placement import Placement
from tests.costmodels.parts import SLOWER, TRAINED, table_with
from tests.planner.solvers.law.truth import Truth

Matrix = Sequence[Sequence[float]]

value = objective_of
"""The objective of a placement, infinite if it is not feasible."""


def make_table(
    forward_s: Matrix | Floats,
    flows: Sequence[tuple[int, tuple[int, ...], float]] = (),
    link_s: float | Matrix = 0.0,
    per_byte: float | Matrix = 1.0,
    **fields: object,
) -> CostTable:
    """A table from plain lists.

    Args:
        forward_s: [n_ops, n_devices].
        flows: (writer, readers, bytes) each.
        link_s: one number for all pairs, or [n_devices, n_devices] with infinity for a missing link.
        per_byte: the same.
        **fields: other fields of the table and its parts; ``channel="bus"`` is one channel for all links, else each has
            its own.
    """
    seconds = np.asarray(forward_s, dtype=float)
    n_ops, k = seconds.shape
    links = np.broadcast_to(np.asarray(link_s, dtype=float), (k, k)).copy()
    slopes = np.broadcast_to(np.asarray(per_byte, dtype=float), (k, k)).copy()
    np.fill_diagonal(links, 0.0)
    np.fill_diagonal(slopes, 0.0)
    there = np.isfinite(links) & ~np.eye(k, dtype=bool)
    channel = np.full((k, k), -1, dtype=np.int64)
    channel[there] = 0 if fields.pop("channel", "pair") == "bus" else np.arange(int(there.sum()))
    apart = {name: fields.pop(name) for name in (*SLOWER, *TRAINED) if name in fields}
    if "slowdown" in apart:
        apart.setdefault("copies_slowdown", apart["slowdown"])
    known: dict[str, object] = {"op_bytes": np.zeros(n_ops), "capacity_bytes": np.full(k, 1e9), "working_bytes": 0.0}
    known |= {"overlap": True, "together": ()} | fields
    for name in {"op_bytes", "capacity_bytes", "overhead_s"} & known.keys():
        known[name] = np.asarray(known[name], dtype=float)
    table = CostTable(
        ops=tuple(f"op{i}" for i in range(n_ops)),
        devices=tuple(f"dev{i}" for i in range(k)),
        forward_s=seconds,
        flows=tuple(Flow(f"t{i}", writer, tuple(readers)) for i, (writer, readers, _) in enumerate(flows)),
        flow_bytes=np.asarray([n_bytes for _, _, n_bytes in flows], dtype=float),
        **wires(links, slopes, [n_bytes for _, _, n_bytes in flows]),
        channel=channel,
        source=np.full((n_ops, k), str(Source.GIVEN)),
        **known,  # type: ignore[arg-type]  # named above and in the tests; the table checks them
    )
    return table_with(table, **apart)


def wires(links: Floats, slopes: Floats, flow_bytes: Sequence[float]) -> dict[str, Any]:
    """The kinds of link among [n_devices, n_devices] latencies (infinite without a link) and seconds per byte."""
    kinds: dict[tuple[float, float], int] = {}
    link_class = np.full(links.shape, -1, dtype=np.int64)
    for src, dst in np.argwhere(np.isfinite(links) & ~np.eye(len(links), dtype=bool)).tolist():
        link_class[src, dst] = kinds.setdefault((links[src, dst], slopes[src, dst]), len(kinds))
    latency_s, per_byte = np.asarray(list(kinds), dtype=float).reshape(-1, 2).T
    seconds = latency_s + np.outer(np.asarray(flow_bytes, dtype=float), per_byte)
    return {"link_class": link_class, "link_s": seconds, "link_latency_s": latency_s}


@st.composite
def tables(
    draw: st.DrawFn,
    max_ops: int = 6,
    uniform: bool = False,
    readers: int = 3,
    overlap: bool | None = None,
    sharings: Sequence[Sharing] = SHARINGS,
) -> CostTable:
    """Random tables with everything that makes placing hard.

    Args:
        draw: given by hypothesis.
        max_ops: at most so many operators.
        uniform: all links are there and alike.
        readers: at most so many of each flow; 0 for no flows.
        overlap: as in the table; None for either.
        sharings: one of them is drawn.
    """
    n, k = draw(st.integers(1, max_ops)), draw(st.integers(1, 3))
    cost = st.integers(0, 9).map(float)
    row = st.lists(cost, min_size=k, max_size=k) | cost.map(lambda c: [c] * k)
    rows = draw(st.lists(row, min_size=n, max_size=n))
    for op, device in draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, k - 1)), max_size=2)):
        rows[op] = [inf if d == device and k > 1 else c for d, c in enumerate(rows[op])]
        if not np.isfinite(rows[op]).any():
            rows[op] = [1.0] * k
    flows = []
    for writer in range(n - 1 if readers else 0):
        ends = st.sets(st.integers(writer + 1, n - 1), min_size=1, max_size=readers)
        flows += [(writer, tuple(sorted(r)), float(draw(st.integers(0, 5)))) for r in draw(st.lists(ends, max_size=2))]
    link = cost if uniform else st.sampled_from([0.0, 0.0, 1.0, 2.0, inf])
    links = draw(link) if uniform else [[draw(link) for _ in range(k)] for _ in range(k)]
    slopes = draw(cost) if uniform else [[draw(cost) for _ in range(k)] for _ in range(k)]
    groups = st.sets(st.integers(0, n - 1), min_size=2, max_size=3).map(lambda g: tuple(sorted(g)))
    return make_table(
        rows,
        flows,
        links,
        slopes,
        op_bytes=draw(st.lists(cost, min_size=n, max_size=n)),
        capacity_bytes=draw(st.lists(st.integers(5, 60).map(float), min_size=k, max_size=k)),
        working_bytes=float(draw(st.integers(0, 3))),
        overlap=draw(st.booleans()) if overlap is None else overlap,
        overhead_s=draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.0]), min_size=k, max_size=k)),
        together=tuple(draw(st.lists(groups, max_size=1))) if n > 1 else (),
        channel=draw(st.sampled_from(["pair", "bus"])),
        sharing=draw(st.sampled_from(sharings)),
    )


def brute_force(problem: Problem) -> float:
    """The best objective of all placements and, for latency, orders; infinite if none is feasible."""
    return Truth(problem).least_s


def contiguous(n_ops: int, n_devices: int) -> list[Placement]:
    """Every way to cut the operators into runs, each on a device of its own."""
    found = []
    for parts in range(1, min(n_ops, n_devices) + 1):
        for cuts in combinations(range(1, n_ops), parts - 1):
            sizes = np.diff([0, *cuts, n_ops])
            for chosen in permutations(range(n_devices), parts):
                found.append(Placement(tuple(np.repeat(chosen, sizes).tolist())))
    return found
