"""reduce_blocks: merges operators that share a device in some best placement with a host, by minimum cuts.

::

    a ═══ b ─── c ═══ d        ═══ is expensive to cut, ─── is cheap: cutting the cheap edge leaves [a b] and [c d]

An accelerator pays for every tensor that enters or leaves it, so its set of operators S costs ``work(S) + cut(S)``,
where cut(S) adds up the nets that have ends both inside and outside. Nets are hyperedges here; which end writes does
not matter.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.table import CostTable
from graphs.common.arrays import Floats, Ints
from planner.literature.placement.offload import offload_of
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.deadline import loading

MOST_BLOCKS = 1_000  # a cut tree takes one maximum flow for each block
TOTAL_CAPACITY = 2**28  # maximum flows are computed in 32-bit integers
UNLIMITED = 2**30
SAFETY = 1e-6  # relative; far more than all that is lost by rounding to integers


def reduce_blocks(table: CostTable, upper_s: float) -> Blocks:
    """Merge operators such that some placement of the blocks is as good as any that is better than ``upper_s``.

    The table must be an `OffloadTable`. `bound_together` and `cohesive_sets` repeat until nothing changes.
    """
    forced: list[tuple[int, int]] = []
    while True:
        blocks = merge_blocks(table, forced)
        if not 1 < blocks.n <= MOST_BLOCKS:
            return blocks
        view = AcceleratorCosts(blocks, upper_s)
        pairs = [*bound_together(view), *cohesive_sets(view)]
        if not pairs:
            return blocks
        forced += [(blocks.members[first][0], blocks.members[second][0]) for first, second in pairs]


@dataclass(frozen=True)
class Hypergraph:
    """Vertices and weighted sets of vertices, for minimum cuts."""

    n: int  # vertices are 0 .. n - 1
    pins: tuple[tuple[int, ...], ...]  # the vertices of each set, ascending
    cost: Floats  # [n_sets], the cost of a cut through each set

    @property
    def scale(self) -> float:
        """Integer units of capacity for one unit of cost."""
        return TOTAL_CAPACITY / float(max(self.cost.sum(), 1e-300))

    @cached_property
    def arcs(self) -> tuple[list[int], list[int], list[int]]:
        """Start, end and capacity of arcs: a set is an arc of its cost, which its vertices enter and leave freely."""
        start, end, capacity = [], [], []
        for number, (pins, cost) in enumerate(zip(self.pins, self.cost.tolist(), strict=True)):
            enter, leave = self.n + 2 * number, self.n + 2 * number + 1
            start += [enter, *pins, *[leave] * len(pins)]
            end += [leave, *[enter] * len(pins), *pins]
            capacity += [int(cost * self.scale), *[UNLIMITED] * (2 * len(pins))]
        return start, end, capacity

    def min_cut(self, source: int, sink: int) -> tuple[float, NDArray[np.bool_]]:
        """Return the cost of a minimum cut between two vertices, rounded down, and [n], the first one's side."""
        with loading():
            from scipy.sparse.csgraph import breadth_first_order, maximum_flow  # late: see `linear_bounds`

        flow = maximum_flow(self._network, source, sink)
        residual = self._network - flow.flow
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, source, return_predecessors=False)
        side = np.zeros(self.n, dtype=bool)
        side[reached[reached < self.n]] = True
        return float(flow.flow_value) / self.scale, side

    def cut_tree(self) -> Iterator[tuple[int, int, float]]:
        """Yield the edges of an equivalent flow tree and their cuts (Gusfield, SIAM Journal on Computing 19(1), 1990).

        The minimum cut between two vertices is the least on the path between them.
        """
        parent = np.zeros(self.n, dtype=np.int64)
        for vertex in range(1, self.n):
            value, side = self.min_cut(vertex, int(parent[vertex]))
            yield vertex, int(parent[vertex]), value
            later = np.arange(self.n) > vertex
            parent[later & side & (parent == parent[vertex])] = vertex

    def feeds(self, root: int, demand: Floats) -> bool:
        """Return whether one flow from the root through the sets meets the demands of all vertices, [n]."""
        demand = np.where(np.arange(self.n) == root, 0.0, demand)
        wanted = float(demand.sum())
        if wanted <= 0 or wanted > self.cost.sum():
            return wanted <= 0
        with loading():
            from scipy.sparse import csr_array
            from scipy.sparse.csgraph import maximum_flow

        need = np.ceil(demand * self.scale).astype(np.int64)
        start, end, capacity = self.arcs
        sink = self.n + 2 * len(self.pins)
        needy = np.flatnonzero(need).tolist()
        ends = [*start, *needy], [*end, *[sink] * len(needy)]
        arcs = np.asarray([*capacity, *need[needy].tolist()], dtype=np.int32)
        network = csr_array((arcs, ends), shape=(sink + 1, sink + 1))
        return bool(maximum_flow(network, root, sink).flow_value == need.sum())

    @cached_property
    def _network(self) -> Any:
        with loading():
            from scipy.sparse import csr_array

        start, end, capacity = self.arcs
        size = self.n + 2 * len(self.pins)
        return csr_array((np.asarray(capacity, dtype=np.int32), (start, end)), shape=(size, size))


class AcceleratorCosts:
    """The costs of blocks on the accelerators of a host, each the least over all accelerators."""

    def __init__(self, blocks: Blocks, upper_s: float) -> None:
        self.blocks, self.upper_s = blocks, upper_s  # every device is to stay below it
        offload = offload_of(blocks.table)
        # [n_devices], devices that pay for no transfer: the hosts
        self.free = ~(offload.store_s.any(axis=0) | offload.fetch_s.any(axis=0))
        seconds = np.where(blocks.fits, blocks.forward_s, np.inf)
        inside, outside = seconds[:, ~self.free], seconds[:, self.free]
        self.runs = np.isfinite(inside).all(axis=1) & (inside.shape[1] > 0)
        # [n_blocks], seconds on an accelerator; 0 for a block that no accelerator can run
        self.work_s = np.where(np.isfinite(inside), inside, np.inf).min(axis=1, initial=np.inf)
        self.work_s[np.isinf(self.work_s)] = 0.0
        self.host_s = outside.min(axis=1, initial=np.inf)
        self.never_free = self.host_s > upper_s  # [n_blocks], whether a block takes too long on every host
        store_s, fetch_s = offload.store_s[:, ~self.free], offload.fetch_s[:, ~self.free]
        least = np.minimum(store_s.min(axis=1, initial=np.inf), fetch_s.min(axis=1, initial=np.inf))
        self.graph = self._nets(least if inside.shape[1] else np.zeros(len(least)))
        room = blocks.room_bytes[~self.free].min(initial=np.inf)
        # whether accelerators are all the same, pay the same to store as to fetch, and have room for everything
        self.alike = bool(
            (blocks.forward_s[:, ~self.free] == blocks.forward_s[:, ~self.free][:, :1]).all()
            and (store_s == fetch_s).all()
            and (store_s == store_s[:, :1]).all()
            and blocks.n_bytes.sum() <= room
        )

    def _nets(self, flow_s: Floats) -> Hypergraph:
        cost: dict[tuple[int, ...], float] = {}
        for net in self.blocks.nets:
            pins = tuple(sorted((net.writer, *net.readers)))
            cost[pins] = cost.get(pins, 0.0) + float(flow_s[list(net.flows)].sum())
        paid = {pins: seconds for pins, seconds in cost.items() if seconds > 0}
        return Hypergraph(self.blocks.n, tuple(paid), np.asarray(list(paid.values())))

    @cached_property
    def slack_s(self) -> float:
        """The seconds that all accelerators together can spend on transfers, if each stays below ``upper_s``.

        ::

            sum_d work(S_d) + cut(S_d) <= accelerators * upper_s
            sum_d work(S_d)            >= work of everything - work that hosts can take over
        """
        k = int((~self.free).sum())
        return max(0.0, k * self.upper_s - float(self.work_s.sum()) + self._relief_s) * (1 + SAFETY)

    @property
    def _relief_s(self) -> float:
        """The most work that hosts can take over, by a fractional knapsack: the most work for a host's second first."""
        able = np.flatnonzero(~self.never_free & (self.work_s > 0))
        order = able[np.argsort(-self.work_s[able] / np.maximum(self.host_s[able], 1e-300), kind="stable")]
        before = np.cumsum(self.host_s[order]) - self.host_s[order]
        left = float(self.free.sum()) * self.upper_s - before
        share = np.clip(left / np.maximum(self.host_s[order], 1e-300), 0.0, 1.0)
        share[self.host_s[order] <= 0] = 1.0
        return float((share * self.work_s[order]).sum())

    @cached_property
    def pieces(self) -> tuple[Ints, Ints]:
        """[n_blocks] each, the pieces that remain after all cuts of up to half the slack, and of up to the slack."""
        half, whole = np.arange(self.blocks.n), np.arange(self.blocks.n)
        for vertex, parent, value in self.graph.cut_tree():
            for piece, most in ((half, self.slack_s / 2), (whole, self.slack_s)):
                if value > most:
                    piece[piece == piece[vertex]] = piece[parent]
        return half, whole


def bound_together(view: AcceleratorCosts) -> Iterator[tuple[int, int]]:
    """Pairs of blocks that cost too much to separate.

    If two blocks are on different accelerators, both accelerators pay at least the minimum cut between them. If one
    block is on a host, only the other device pays; if they are on two hosts, neither pays. So ``2 * cut > slack`` binds
    blocks that no host can run, and ``cut > slack`` binds all blocks of a piece if there is one host at most, or if no
    host can run one of them.
    """
    half, whole = view.pieces
    yield from _pairs(np.flatnonzero(view.never_free), half)
    bound = np.isin(whole, whole[view.never_free]) | (view.free.sum() <= 1)
    yield from _pairs(np.flatnonzero(bound), whole)


def cohesive_sets(view: AcceleratorCosts) -> Iterator[tuple[int, int]]:
    """Return pairs of blocks that merge whole pieces, or the two ends of a net, if `cohesive` allows it."""
    if not view.alike:
        return
    half, _ = view.pieces
    merged = False
    for piece in np.unique(half).tolist():
        members = np.flatnonzero(half == piece).tolist()
        if len(members) > 1 and cohesive(view, members):
            merged = True
            yield from ((members[0], other) for other in members[1:])
    used: set[int] = set()
    for pins in view.graph.pins if not merged else ():
        if len(pins) == 2 and used.isdisjoint(pins) and cohesive(view, pins):
            used |= set(pins)
            yield pins[0], pins[1]


def cohesive(view: AcceleratorCosts, members: Sequence[int]) -> bool:
    """Return whether some best placement has a set of blocks C on one device.

    It does if for every part Y of C, ``cut inside C between Y and the rest >= work(Y) + nets from Y out of C``: to move
    Y to the accelerator of the rest then relieves both devices. This holds for all Y without a root r exactly if a flow
    from r inside C meets the right side as a demand of every block. The root is a block of C that no host can run. If C
    has no such block, the condition must hold for every root (C as a whole may still be on the host); with several
    hosts, no root proves it (C may be divided among them).
    """
    if not view.runs[list(members)].all():
        return False
    number = {block: position for position, block in enumerate(members)}
    demand = view.work_s[list(members)].copy()
    inner: list[tuple[tuple[int, ...], float]] = []
    for pins, cost in zip(view.graph.pins, view.graph.cost.tolist(), strict=True):
        inside = tuple(number[pin] for pin in pins if pin in number)
        if len(inside) == len(pins):
            inner.append((inside, cost))
        else:
            demand[list(inside)] += cost
    graph = Hypergraph(len(members), tuple(pins for pins, _ in inner), np.asarray([cost for _, cost in inner]))
    anchors = [position for block, position in number.items() if view.never_free[block]]
    if not anchors and view.free.sum() > 1:
        return False
    roots: Iterable[int] = anchors[:1] or range(len(members))
    return all(graph.feeds(root, demand) for root in roots)


def _pairs(chosen: Ints, piece: Ints) -> Iterator[tuple[int, int]]:
    """Yield each chosen block with the first one of its piece."""
    first: dict[int, int] = {}
    for block in chosen.tolist():
        leader = first.setdefault(int(piece[block]), block)
        if leader != block:
            yield leader, block
