"""Cost tables small enough to compute with by hand: one byte takes one second on every link."""

from collections.abc import Sequence
from string import ascii_lowercase

import numpy as np
from hypothesis import strategies as st

from costmodels.table import CostTable, Source
from graphs.ir import Flow
from simulator.placement import Placement

Sent = tuple[int, tuple[int, ...], float]
"""A flow: its writer, its readers, and the seconds that it takes on a link."""


def make_table(
    seconds: Sequence[float], sent: Sequence[Sent] = (), n_devices: int = 2, overlap: bool = True, shared: bool = False
) -> CostTable:
    """Operators a, b, ... that take the same time on each of the devices 0, 1, ...; a link for each pair of them.

    The flow that operator a writes is called a*. With ``shared``, all links are one channel.
    """
    n, k = len(seconds), n_devices
    between = ~np.eye(k, dtype=bool)
    numbers = np.zeros((k, k)) if shared else np.arange(k * k).reshape(k, k)
    return CostTable(
        ops=tuple(ascii_lowercase[:n]),
        devices=tuple(str(device) for device in range(k)),
        forward_s=np.repeat(np.asarray(seconds, dtype=float)[:, None], k, axis=1),
        op_bytes=np.zeros(n),
        working_bytes=0.0,
        flows=tuple(Flow(f"{ascii_lowercase[writer]}*", writer, readers) for writer, readers, _ in sent),
        flow_bytes=np.asarray([size for _, _, size in sent], dtype=float),
        link_class=np.where(between, 0, -1),
        link_s=np.asarray([[size] for _, _, size in sent], dtype=float).reshape(len(sent), 1),
        link_latency_s=np.zeros(1),
        channel=np.where(between, numbers, -1).astype(np.int64),
        capacity_bytes=np.ones(k),
        overlap=overlap,
        together=(),
        source=np.full((n, k), Source.GIVEN),
    )


def chain(seconds: Sequence[float], sent_s: float | Sequence[float] = 0.0) -> tuple[Sent, ...]:
    """Each operator feeds the next one; a number for each of the flows, or one for all."""
    sizes = [sent_s] * (len(seconds) - 1) if isinstance(sent_s, int | float) else sent_s
    return tuple((i, (i + 1,), size) for i, size in enumerate(sizes))


@st.composite
def tables(draw: st.DrawFn, n_devices: int = 3, shared: bool = False, overlap: bool | None = None) -> CostTable:
    """Up to 8 operators; each reads some of the earlier ones. Whole seconds, so that all sums are exact."""
    n_ops = draw(st.integers(1, 8))
    seconds = [draw(st.integers(0, 5)) for _ in range(n_ops)]
    readers: dict[int, list[int]] = {}
    for op in range(1, n_ops):
        for writer in draw(st.sets(st.integers(0, op - 1), max_size=3)):
            readers.setdefault(writer, []).append(op)
    sent = [(writer, tuple(who), draw(st.integers(0, 3))) for writer, who in sorted(readers.items())]
    return make_table(seconds, sent, n_devices, draw(st.booleans()) if overlap is None else overlap, shared)


@st.composite
def placements(draw: st.DrawFn, table: CostTable, contiguous: bool = False, copies: int = 1) -> Placement:
    """Any device for any operator in any topological order; or, contiguous, in the table's order without going back.

    With at most so many copies of the network.
    """
    device = [draw(st.integers(0, table.n_devices - 1)) for _ in table.ops]
    if contiguous:
        return Placement(tuple(sorted(device)))
    before: list[set[int]] = [set() for _ in table.ops]
    for writer, reader in table.edges:
        before[reader].add(writer)
    order: list[int] = []
    while len(order) < table.n_ops:
        ready = [op for op in range(table.n_ops) if op not in order and before[op] <= set(order)]
        order.append(draw(st.sampled_from(ready)))
    others = range(draw(st.integers(0, copies - 1)))
    return Placement(tuple(device), tuple(order), tuple(draw(placements(table)) for _ in others))
