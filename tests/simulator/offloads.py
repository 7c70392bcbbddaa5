"""Small tables of accelerators beside a host: a builder, and random ones for hypothesis."""

from collections.abc import Sequence
from math import inf

import numpy as np
from hypothesis import strategies as st

from costmodels.table import CostTable, Offload, Source
from graphs.ir import Flow

Matrix = Sequence[Sequence[float]]


def offload_table(
    forward_s: Matrix,
    flows: Sequence[tuple[int, tuple[int, ...], float]] = (),
    n_hosts: int = 1,
    op_bytes: Sequence[float] | None = None,
    capacity_bytes: float = inf,
    together: tuple[tuple[int, ...], ...] = (),
) -> CostTable:
    """A table from plain lists.

    Args:
        forward_s: [n_ops, n_devices].
        flows: (writer, readers, seconds to store it or to fetch it) each.
        n_hosts: so many of the last devices are hosts; they take no time for transfers and have any amount of memory.
        op_bytes: [n_ops]; zeros if left out.
        capacity_bytes: of each accelerator.
        together: as in the table.
    """
    seconds = np.asarray(forward_s, dtype=float)
    n_ops, k = seconds.shape
    host = np.arange(k) >= k - n_hosts
    moved_s = np.where(host, 0.0, np.asarray([moved for _, _, moved in flows], dtype=float).reshape(-1, 1))
    away = np.where(np.eye(k, dtype=bool), -1, 0)
    return CostTable(
        ops=tuple(f"op{i}" for i in range(n_ops)),
        devices=tuple(f"dev{i}" for i in range(k)),
        forward_s=seconds,
        op_bytes=np.zeros(n_ops) if op_bytes is None else np.asarray(op_bytes, dtype=float),
        working_bytes=0.0,
        flows=tuple(Flow(f"t{i}", writer, readers) for i, (writer, readers, _) in enumerate(flows)),
        flow_bytes=np.zeros(len(flows)),
        wire=away,
        wire_s=np.zeros((len(flows), 1)),
        wire_latency_s=np.zeros(1),
        channel=away,
        capacity_bytes=np.where(host, inf, capacity_bytes),
        overlap=False,
        together=together,
        source=np.full((n_ops, k), str(Source.GIVEN)),
        offload=Offload(store_s=moved_s, fetch_s=moved_s, host=host),
    )


@st.composite
def offload_tables(draw: st.DrawFn, max_ops: int = 6, max_devices: int = 3) -> CostTable:
    """Random ones with one host, memory that binds, operators that accelerators cannot run and groups."""
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
