"""Fewest cuts: of the placements along a line that are within a limit, the one that sends the fewest tensors.

::

    line      0    1    2    3    4    5         tensors that cross a place     1  3  3  1  1
              B0   B1   B2   B3   B4   B5        within the limit, d0 takes 2 to 4 blocks: it takes 4
              └── d0 ──┘·········└ d1 ─┘
"""

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import inf

import numpy as np

from graphs.common.arrays import Floats, Ints
from planner.problem.blocks import merge_blocks
from planner.problem.problem import Problem
from planner.solvers.dp.chains.chain import Chain, chains, crossing, over_places, with_places
from simulator.placement import Placement

MOST_PLACES = 1000  # of a line, where cuts are tried
MOST_PERMUTED = 3  # devices that are tried in any order


def fewest_cuts(problem: Problem, placement: Placement, most_s: float) -> Iterator[Placement]:
    """Yield a placement for each line and order of devices, with the fewest tensors and then the fewest bytes.

    ``F[k, j]`` is the least price of the cuts when the first k devices have taken the blocks before place j::

        F[0, 0] = 0     F[k, j] = min(F[k - 1, j], min over i < j of F[k - 1, i] + price(i))

    where the k-th device computes, hands over and holds [i, j) within the limits. Up to three devices are tried in any
    order, more in the order in which they follow one another in the given placement and in the reverse one. A device
    that gets no block is spared. Traffic is charged as that of neighbours, so a placement has to be evaluated.

    Args:
        problem: the costs, of inference.
        placement: of one copy.
        most_s: seconds that a device may take for a micro-batch.
    """
    for line in chains(merge_blocks(problem.table)):
        chain = with_places(line, MOST_PLACES)
        for order in _orders(chain, placement):
            ends = _cheapest_ends(chain, order, most_s)
            if ends is not None:
                home = np.empty(chain.blocks.n, dtype=np.int64)
                home[chain.line] = np.repeat(order, np.diff(ends))
                yield chain.blocks.spread(home)


def _orders(chain: Chain, placement: Placement) -> list[tuple[int, ...]]:
    """Return orders of the devices in use, first by the mean position of their blocks on the line."""
    device = chain.blocks.devices_of(placement)[chain.line]
    mean = {number: float(np.flatnonzero(device == number).mean()) for number in sorted(set(device.tolist()))}
    first = tuple(sorted(mean, key=lambda number: mean[number]))
    return list(permutations(first)) if len(first) <= MOST_PERMUTED else [first, first[::-1]]


def _cheapest_ends(chain: Chain, order: Sequence[int], most_s: float) -> Ints | None:
    """Return [1 + n_order], the places between the devices' intervals; None if no division is within the limits."""
    n, table = chain.blocks.n, chain.blocks.table
    sent = crossing(chain)
    price = _prices(chain, sent[:, 0])
    best = np.full((1 + len(order), n + 1), inf)
    came_from = np.zeros((1 + len(order), n + 1), dtype=np.int64)
    best[0, 0] = 0.0
    for turn, device in enumerate(order):
        seconds = chain.seconds[:, device]
        earliest = chain.earliest(device, most_s)
        enters, leaves = (
            _seconds_at(chain, sent, device, order[turn + way]) if 0 <= turn + way < len(order) else np.zeros(n + 1)
            for way in (-1, 1)
        )
        hands_s = sent[:, 0] * table.overhead_s[device]
        comes_s, goes_s = (hands_s, hands_s) if table.overlap else (hands_s + enters, hands_s + leaves)
        before = best[turn] + np.where(enters <= most_s, price, inf)
        best[turn + 1], came_from[turn + 1] = best[turn], np.arange(n + 1)
        for end in range(1, n + 1):
            start = int(earliest[end])
            if start >= end or leaves[end] > most_s:
                continue
            busy_s = seconds[end] - seconds[start:end] + comes_s[start:end] + goes_s[end]
            cost = np.where(busy_s <= most_s, before[start:end], inf)
            chosen = int(cost.argmin())
            if cost[chosen] < best[turn + 1, end]:
                best[turn + 1, end], came_from[turn + 1, end] = cost[chosen], start + chosen
    if not best[-1, n] < inf:
        return None
    ends = [n]
    for turn in range(len(order), 0, -1):
        ends.append(int(came_from[turn, ends[-1]]))
    return np.asarray(ends[::-1])


def _prices(chain: Chain, messages: Floats) -> Floats:
    """Return [n_blocks + 1], the price of a cut: its tensors, and a fraction of one for their bytes; 0 at the ends."""
    crossing_bytes = over_places(chain, chain.blocks.table.flow_bytes[:, None])[:, 0]
    all_bytes = float(crossing_bytes.max(initial=0.0)) * chain.blocks.table.n_devices
    return np.asarray(messages + crossing_bytes / (1.0 + all_bytes))


def _seconds_at(chain: Chain, sent: Floats, device: int, other: int) -> Floats:
    """Return [n_blocks + 1], seconds of all that crosses a place between two devices; infinite without a link."""
    number = int(chain.blocks.table.link_class[device, other])
    return np.asarray(sent[:, 1 + number]) if number >= 0 else np.full(len(sent), inf)
