"""Linear bounds: lower bounds from linear programs in which operators may be divided among devices."""

import numpy as np
from numpy.typing import NDArray

from graphs.common.arrays import Floats, Ints
from planner.problem.blocks import Blocks
from planner.problem.deadline import loading
from planner.problem.devices import alike

MOST_COLUMNS = 20_000  # of a linear program; with more, it is made for a sample of the blocks
_INFEASIBLE = 2  # scipy's status of an LP without a solution


def lp_bound(blocks: Blocks) -> float:
    """Return the least load of the busiest device if blocks could be divided: a linear program.

    ::

        min T    sum_d x[b, d] = 1                      for every block b
                 sum_b forward_s[b, d] * x[b, d] <= T    for every device d
                 sum_b n_bytes[b] * x[b, d] <= room[d]   for every device d
                 x >= 0, and x[b, d] = 0 where b does not fit on d

    Devices with the same numbers can share their part evenly, so each kind of device is one column of ``x``, with T and
    room for all of its devices; with a single kind the sum is all there is to solve.

    The answer is computed again from the prices (the duals) p, q >= 0, sum_d p[d] = 1, of the two families:
    ``sum_b min_d (p[d] * forward_s[b, d] + q[d] * n_bytes[b]) - sum_d q[d] * room[d]`` is a bound for any
    prices (weak duality), so no tolerance of the LP solver can make it wrong; and for a table that is too large,
    the prices of a sample of the blocks do. Infinite if the LP has no solution.
    """
    kinds = Kinds(blocks)
    if kinds.n == 1:
        if blocks.n_bytes.sum() > kinds.count[0] * max(0.0, float(kinds.room[0])):
            return float("inf")
        return kinds.price_bound(np.ones(1), np.zeros(1))
    every = -(-blocks.n * kinds.n // MOST_COLUMNS)
    prices = _prices(kinds, np.arange(0, blocks.n, every))
    if prices is None:  # of a sample that says nothing
        return float("inf") if every == 1 else kinds.price_bound(np.ones(kinds.n), np.zeros(kinds.n))
    return kinds.price_bound(*prices)


def time_prices(blocks: Blocks) -> Floats:
    """Return [n_devices], the price of a second on each device in `lp_bound`; prices add up to 1.

    For any such prices, the busiest device is busy at least for the sum of the least prices of all blocks.
    """
    kinds = Kinds(blocks)
    prices = _prices(kinds, np.arange(blocks.n)) if kinds.n > 1 and blocks.n * kinds.n <= MOST_COLUMNS else None
    each = np.ones(kinds.n) if prices is None or not prices[0].any() else prices[0]
    price = np.zeros(blocks.table.n_devices)
    for devices, one in zip(kinds.devices, each.tolist(), strict=True):
        price[list(devices)] = one
    return np.asarray(price / price.sum())


class Kinds:
    """The kinds of devices: devices that are alike are one kind."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks = blocks
        classes = alike(blocks.table)
        self.devices, self.n = classes, len(classes)
        self.first = np.asarray([devices[0] for devices in classes])  # [n], a device of each kind
        self.count = np.asarray([len(devices) for devices in classes])  # [n], how many devices
        self.forward_s, self.fits = blocks.forward_s[:, self.first], blocks.fits[:, self.first]  # [n_blocks, n]
        # [n], bytes of one device, at most the bytes of all blocks
        self.room = np.clip(blocks.room_bytes[self.first], 0.0, blocks.n_bytes.sum())

    def price_bound(self, time_price: Floats, byte_price: Floats, block_s: Floats | float = 0.0) -> float:
        """Return the least price of all blocks, minus the price of the devices' memory; see `lp_bound`.

        Args:
            time_price: [n], of a device's second; with ``block_s`` of the path's second too they must add up to 1.
            byte_price: [n], of a byte for a second.
            block_s: [n_blocks, n], further prices of a block, with prices that add up to 1; see `call_bound`.
        """
        pays = np.where(self.fits, self.forward_s, 0.0) * time_price
        pays += self.blocks.n_bytes[:, None] * byte_price
        pays += block_s
        pays[~self.fits] = np.inf
        earned = float((self.count * self.room * byte_price).sum())
        total = 1.0 if np.ndim(block_s) else float((self.count * time_price).sum())
        return max(0.0, float(pays.min(axis=1).sum()) - earned) / total if total > 0 else 0.0


def _prices(kinds: Kinds, sample: Ints) -> tuple[Floats, Floats] | None:
    """Return [n_kinds] twice, the prices of a second and a byte in `lp_bound` for some blocks; None if infeasible."""
    with loading():
        from scipy.optimize import linprog  # late: scipy takes a third of a second, and most commands never solve
        from scipy.sparse import csr_array, vstack

    fits, takes, n_bytes = kinds.fits[sample], kinds.forward_s[sample], kinds.blocks.n_bytes[sample]
    block, kind = np.nonzero(fits)
    scale = float(np.where(fits, takes, np.inf).min(axis=1).sum()) or 1.0
    part = float(n_bytes.sum()) / (float(kinds.blocks.n_bytes.sum()) or 1.0)  # of the sample
    room = kinds.room * (part if 0 < part < 1 else 1.0)
    unit = np.where(room > 0, room, 1.0)  # without room only blocks of 0 bytes fit
    shape = (kinds.n, len(block) + 1)
    column = np.arange(len(block))
    seconds = csr_array((takes[block, kind] / scale, (kind, column)), shape=shape)
    busiest = csr_array((-kinds.count.astype(float), (np.arange(kinds.n), np.full(kinds.n, len(block)))), shape=shape)
    held = csr_array((n_bytes[block] / unit[kind], (kind, column)), shape=shape)
    answer = linprog(
        c=np.append(np.zeros(len(block)), 1.0),
        A_ub=vstack([seconds + busiest, held]),
        b_ub=np.append(np.zeros(kinds.n), kinds.count),
        A_eq=csr_array((np.ones(len(block)), (block, column)), shape=(len(sample), len(block) + 1)),
        b_eq=np.ones(len(sample)),
        method="highs",
    )
    if answer.status == _INFEASIBLE:
        return None
    if answer.ineqlin.marginals is None:
        return np.zeros(kinds.n), np.zeros(kinds.n)
    time_price, byte_price = np.maximum(0.0, -answer.ineqlin.marginals).reshape(2, kinds.n)
    return time_price, byte_price * scale / unit


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
    offload = table.offload
    assert offload is not None
    host = offload.host[kinds.first]
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
    if answer.status == _INFEASIBLE:
        return None
    price = np.maximum(0.0, -answer.ineqlin.marginals) if answer.ineqlin.marginals is not None else np.zeros(n_rows)
    flow, end = price[: len(edges)], price[len(edges) : n_paths]
    entering = np.zeros(table.n_ops)
    leaving = end.copy()
    np.add.at(entering, edges[:, 1], flow)
    np.add.at(leaving, edges[:, 0], flow)
    share = flow / np.maximum(np.maximum(entering, leaving)[edges[:, 1]], 1e-300)
    return share, end, np.where(host, 0.0, price[n_paths:first_byte]), price[first_byte:] * scale / unit
