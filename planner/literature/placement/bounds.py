"""Lower bounds of the latency of a host with accelerators."""

import numpy as np
from numpy.typing import NDArray

from graphs.common.arrays import Floats
from planner.literature.placement.call_paths import call_path_bound
from planner.literature.placement.offload import OffloadTable, offload_of
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.bounds import alone_s, latency_bound, path_bound
from planner.problem.deadline import loading
from planner.problem.linear_bounds import INFEASIBLE, MOST_COLUMNS, Kinds
from planner.problem.problem import Goal, Problem


@latency_bound.register
def latency_bound_of_calls(table: OffloadTable) -> float:
    """Return seconds of latency that no placement can beat; the host runs any number of operators at once."""
    return max(call_bound(merge_blocks(table)), path_bound(table), call_path_bound(table))


@alone_s.register
def alone_on_each(table: OffloadTable, problem: Problem) -> Floats:
    """Return [n_devices], the least seconds of the network on one device; a host runs operators all at once."""
    seconds, host = problem.work_s.sum(axis=0), table.offload.host
    if problem.goal is Goal.LATENCY:
        seconds[host] = problem.work_s[:, host].max(axis=0, initial=0.0)
    return np.asarray(seconds)


def call_bound(blocks: Blocks) -> float:
    """Return the least latency of a host with accelerators if blocks could be divided: a linear program.

    A call of an accelerator lasts for the sum of its operators, operators on a host only wait for their inputs, and
    blocks that do not fit on the accelerators have to be on a host, however slow. With block(i) the block of operator
    i, and the kinds of devices k, of which there are m[k]::

        min T    sum_k x[b, k] = 1
                 start[i] + sum_k forward_s[i, k] * x[block(i), k] <= start[j]    for every edge i, j   (price f)
                 start[i] + sum_k forward_s[i, k] * x[block(i), k] <= T           for every operator i  (price e)
                 sum_b forward_s[b, k] * x[b, k] <= m[k] * T                      unless k is a host     (price p)
                 sum_b n_bytes[b] * x[b, k] <= m[k] * room[k]                                          (price q)

    The prices f and e are a flow from the operators along paths to the end. As in `lp_bound`, the answer is computed
    from them: the flow g[i] = e[i] + f out of i is the price of the time of operator i, so for any prices with
    sum e + sum m * p = 1::

        T >= sum_b min_k (sum_{i in b} g[i] * forward_s[i, k] + p[k] * forward_s[b, k] + q[k] * n_bytes[b])
             - sum_k m[k] * q[k] * room[k]

    where f is first made a flow, in which everything that enters an operator leaves it. Infinite if the blocks do not
    fit, 0 for a table too large for the linear program.
    """
    kinds, table = Kinds(blocks), blocks.table
    if not blocks.fits.any(axis=1).all():
        return float("inf")
    if blocks.n * kinds.n + len(table.edges) > MOST_COLUMNS:
        return 0.0
    host = offload_of(table).host[kinds.first]
    prices = _call_prices(kinds, host)
    if prices is None:
        return float("inf")
    flow, end, time_price, byte_price = prices
    through = end.copy()
    for edge, (writer, reader) in reversed(list(enumerate(table.edges))):
        through[writer] += flow[edge] * through[reader]  # sorted by writer: the flow after a reader is final
    total = float(end.sum() + (kinds.count * time_price).sum())
    if total <= 0:
        return 0.0
    passes = np.zeros((blocks.n, kinds.n))
    takes = np.where(np.isfinite(table.forward_s), table.forward_s, 0.0)[:, kinds.first]
    np.add.at(passes, blocks.block, through[:, None] * takes / total)
    return kinds.price_bound(time_price / total, byte_price / total, passes)


def _call_prices(kinds: Kinds, host: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats, Floats] | None:
    """Return the prices of `call_bound`: each edge's share of its reader's flow, [n_edges], e, p and q; or None."""
    with loading():
        from scipy.optimize import linprog
        from scipy.sparse import coo_array

    blocks, table = kinds.blocks, kinds.blocks.table
    block, kind = np.nonzero(kinds.fits)
    column = np.full(kinds.fits.shape, -1)
    column[block, kind] = np.arange(len(block))
    first_start, busiest = len(block), len(block) + table.n_ops
    scale = float(np.where(kinds.fits, kinds.forward_s, np.inf).min(axis=1).sum()) or 1.0
    unit = np.where(kinds.room > 0, kinds.room, 1.0)
    edges = np.asarray(table.edges, dtype=np.int64).reshape(-1, 2)
    before = np.append(edges[:, 0], np.arange(table.n_ops))  # every edge, then every operator's end
    after = np.append(first_start + edges[:, 1], np.full(table.n_ops, busiest))
    row, on_kind = np.nonzero(kinds.fits[blocks.block[before]])
    n_paths, first_byte = len(before), len(before) + kinds.n
    working = ~host[kind]
    entries = [
        (row, column[blocks.block[before[row]], on_kind], table.forward_s[before[row], kinds.first[on_kind]] / scale),
        (np.arange(n_paths), first_start + before, np.ones(n_paths)),
        (np.arange(n_paths), after, -np.ones(n_paths)),
        (n_paths + kind[working], np.flatnonzero(working), kinds.forward_s[block, kind][working] / scale),
        (n_paths + np.arange(kinds.n), np.full(kinds.n, busiest), -kinds.count.astype(float)),
        (first_byte + kind, np.arange(len(block)), blocks.n_bytes[block] / unit[kind]),
    ]
    rows, columns, values = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    n_rows = first_byte + kinds.n
    answer = linprog(
        c=np.append(np.zeros(busiest), 1.0),
        A_ub=coo_array((values, (rows, columns)), shape=(n_rows, busiest + 1)).tocsr(),
        b_ub=np.append(np.zeros(first_byte), kinds.count),
        A_eq=coo_array((np.ones(len(block)), (block, np.arange(len(block)))), shape=(blocks.n, busiest + 1)).tocsr(),
        b_eq=np.ones(blocks.n),
        method="highs",
    )
    if answer.status == INFEASIBLE:
        return None
    price = np.maximum(0.0, -answer.ineqlin.marginals) if answer.ineqlin.marginals is not None else np.zeros(n_rows)
    flow, end = price[: len(edges)], price[len(edges) : n_paths]
    entering = np.zeros(table.n_ops)
    leaving = end.copy()
    np.add.at(entering, edges[:, 1], flow)
    np.add.at(leaving, edges[:, 0], flow)
    share = flow / np.maximum(np.maximum(entering, leaving)[edges[:, 1]], 1e-300)
    return share, end, np.where(host, 0.0, price[n_paths:first_byte]), price[first_byte:] * scale / unit
