"""Linear bounds: lower bounds from linear programs in which operators may be divided among devices."""

import numpy as np

from graphs.common.arrays import Floats, Ints
from planner.problem.blocks import Blocks
from planner.problem.deadline import loading
from planner.problem.devices import alike

MOST_COLUMNS = 20_000  # of a linear program; with more, it is made for a sample of the blocks
MOST_RATIO = 1e9  # of seconds to the least of all blocks; HiGHS takes a program with 1e15 for infeasible
PRICES = "prices"  # kept with blocks
INFEASIBLE = 2  # scipy's status of an LP without a solution


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
    prices = _prices_of(kinds)
    return float("inf") if prices is None else kinds.price_bound(*prices)


def time_prices(blocks: Blocks) -> Floats:
    """Return [n_devices], the price of a second on each device in `lp_bound`; prices add up to 1.

    For any such prices, the busiest device is busy at least for the sum of the least prices of all blocks.
    """
    kinds = Kinds(blocks)
    prices = _prices_of(kinds)
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
            time_price: [n], of a device's second; with ``block_s`` they must add up to 1 together with its prices.
            byte_price: [n], of a byte for a second.
            block_s: [n_blocks, n], further prices of a block, as for the paths that it is on.
        """
        pays = np.where(self.fits, self.forward_s, 0.0) * time_price
        pays += self.blocks.n_bytes[:, None] * byte_price
        pays += block_s
        pays[~self.fits] = np.inf
        earned = float((self.count * self.room * byte_price).sum())
        total = 1.0 if np.ndim(block_s) else float((self.count * time_price).sum())
        return max(0.0, float(pays.min(axis=1).sum()) - earned) / total if total > 0 else 0.0


def _prices_of(kinds: Kinds) -> tuple[Floats, Floats] | None:
    """Return [n_kinds] twice, the prices of a second and a byte in `lp_bound`; None if it is infinite.

    They are kept with the blocks, since several bounds begin with them.
    """
    known = kinds.blocks.worked_out
    if PRICES not in known:
        even = np.ones(kinds.n), np.zeros(kinds.n)
        every = -(-kinds.blocks.n * kinds.n // MOST_COLUMNS)
        if kinds.n == 1:
            fits = kinds.blocks.n_bytes.sum() <= kinds.count[0] * max(0.0, float(kinds.room[0]))
            known[PRICES] = even if fits else None
        else:
            prices = _prices(kinds, np.arange(0, kinds.blocks.n, every))
            known[PRICES] = even if prices is None and every > 1 else prices  # of a sample that says nothing
    prices_of: tuple[Floats, Floats] | None = known[PRICES]
    return prices_of


def _prices(kinds: Kinds, sample: Ints) -> tuple[Floats, Floats] | None:
    """Return [n_kinds] twice, the prices of a second and a byte in `lp_bound` for some blocks; None if infeasible."""
    with loading():
        from scipy.optimize import linprog  # late: scipy takes a third of a second, and most commands never solve
        from scipy.sparse import csr_array, vstack

    fits, takes, n_bytes = kinds.fits[sample], kinds.forward_s[sample], kinds.blocks.n_bytes[sample]
    block, kind = np.nonzero(fits)
    scale = float(np.where(fits, takes, np.inf).min(axis=1).sum()) or 1.0
    takes = np.minimum(takes, MOST_RATIO * scale)  # the prices hold whatever they are made of
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
    if answer.status == INFEASIBLE:
        return None
    if answer.ineqlin.marginals is None:
        return np.zeros(kinds.n), np.zeros(kinds.n)
    time_price, byte_price = np.maximum(0.0, -answer.ineqlin.marginals).reshape(2, kinds.n)
    return time_price, byte_price * scale / unit
