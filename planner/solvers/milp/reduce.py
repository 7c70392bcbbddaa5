"""reduce: operators beside a host that share their device in some best placement, found with minimum cuts.

::

    a ═══ b ─── c ═══ d        ═══ is dear to cut, ─── is cheap: what is left are the pieces [a b] and [c d]

An accelerator pays for every tensor that enters or leaves it, so its set of operators S costs ``work(S) + cut(S)``,
where cut(S) adds up the nets that have ends both inside and outside. Nets are hyperedges here: who writes is forgotten.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.table import CostTable, Floats, Ints, Offload
from planner.problem.blocks import Blocks, merge_blocks

MOST_BLOCKS = 1_000  # a cut tree takes one maximum flow for each block
TOTAL_CAPACITY = 2**28  # maximum flows are computed in 32-bit integers
UNLIMITED = 2**30
SAFETY = 1e-6  # relative; far more than all that is lost by rounding to integers


def reduce_blocks(table: CostTable, upper_s: float) -> Blocks:
    """Merge what needs not be parted: some placement of the blocks is as good as any that is better than ``upper_s``.

    The table must have an ``offload``. `bound_together` and `cohesive` take turns until nothing changes.
    """
    forced: list[tuple[int, int]] = []
    while True:
        blocks = merge_blocks(table, forced)
        if not 1 < blocks.n <= MOST_BLOCKS:
            return blocks
        view = Beside(blocks, upper_s)
        found = [*bound_together(view), *cohesive_sets(view)]
        if not found:
            return blocks
        forced += [(blocks.members[one][0], blocks.members[other][0]) for one, other in found]


@dataclass(frozen=True)
class Hypergraph:
    """Vertices and weighted sets of them, for minimum cuts."""

    n: int  # vertices are 0 .. n - 1.
    pins: tuple[tuple[int, ...], ...]  # the vertices of each set, ascending
    cost: Floats  # what it costs to have a set's vertices on both sides, [n_sets]

    @property
    def scale(self) -> float:
        """Integers for one unit of cost."""
        return TOTAL_CAPACITY / float(max(self.cost.sum(), 1e-300))

    @cached_property
    def arcs(self) -> tuple[list[int], list[int], list[int]]:
        """From, to, capacity: each set is an arc of its cost that all its vertices enter and leave without limit."""
        start, end, capacity = [], [], []
        for number, (pins, cost) in enumerate(zip(self.pins, self.cost.tolist(), strict=True)):
            enter, leave = self.n + 2 * number, self.n + 2 * number + 1
            start += [enter, *pins, *[leave] * len(pins)]
            end += [leave, *[enter] * len(pins), *pins]
            capacity += [int(cost * self.scale), *[UNLIMITED] * (2 * len(pins))]
        return start, end, capacity

    def min_cut(self, one: int, other: int) -> tuple[float, NDArray[np.bool_]]:
        """The least cost of parting two vertices, rounded down, and [n], which ones are then beside the first."""
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow  # late: see planner.problem.linear_bounds

        found = maximum_flow(self._network, one, other)
        rest = self._network - found.flow
        rest.eliminate_zeros()
        reached = breadth_first_order(rest, one, return_predecessors=False)
        side = np.zeros(self.n, dtype=bool)
        side[reached[reached < self.n]] = True
        return float(found.flow_value) / self.scale, side

    def cut_tree(self) -> Iterator[tuple[int, int, float]]:
        """Edges of a tree: two vertices' minimum cut is the least on the path between them (Gusfield, SIAM J. 1990)."""
        parent = np.zeros(self.n, dtype=np.int64)
        for vertex in range(1, self.n):
            value, side = self.min_cut(vertex, int(parent[vertex]))
            yield vertex, int(parent[vertex]), value
            later = np.arange(self.n) > vertex
            parent[later & side & (parent == parent[vertex])] = vertex

    def feeds(self, root: int, demand: Floats) -> bool:
        """Whether all demands, [n], can be met at once by a flow from the root through the sets."""
        demand = np.where(np.arange(self.n) == root, 0.0, demand)
        wanted = float(demand.sum())
        if wanted <= 0 or wanted > self.cost.sum():
            return wanted <= 0
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import maximum_flow

        need = np.ceil(demand * self.scale).astype(np.int64)
        start, end, capacity = self.arcs
        sink = self.n + 2 * len(self.pins)
        hungry = np.flatnonzero(need).tolist()
        ends = [*start, *hungry], [*end, *[sink] * len(hungry)]
        arcs = np.asarray([*capacity, *need[hungry].tolist()], dtype=np.int32)
        network = csr_array((arcs, ends), shape=(sink + 1, sink + 1))
        return bool(maximum_flow(network, root, sink).flow_value == need.sum())

    @cached_property
    def _network(self) -> Any:
        from scipy.sparse import csr_array

        start, end, capacity = self.arcs
        size = self.n + 2 * len(self.pins)
        return csr_array((np.asarray(capacity, dtype=np.int32), (start, end)), shape=(size, size))


class Beside:
    """Blocks as the accelerators beside a host see them, each number the least over all accelerators.

    Attributes:
        blocks: whose numbers they are.
        upper_s: only placements that keep every device below it are of interest.
        free: [n_devices], devices that pay for no transfer: the hosts.
        work_s: [n_blocks], seconds on an accelerator; 0 for what runs on none.
        never_free: [n_blocks], whether a block takes longer than ``upper_s`` on every host.
        graph: the nets' ends and costs.
        alike: whether accelerators are all the same, pay the same to store as to fetch, and have room for everything.
    """

    def __init__(self, blocks: Blocks, upper_s: float) -> None:
        assert blocks.table.offload is not None
        self.blocks, self.upper_s = blocks, upper_s
        offload: Offload = blocks.table.offload
        self.free = ~(offload.store_s.any(axis=0) | offload.fetch_s.any(axis=0))
        seconds = np.where(blocks.fits, blocks.forward_s, np.inf)
        inside, outside = seconds[:, ~self.free], seconds[:, self.free]
        self.runs = np.isfinite(inside).all(axis=1) & (inside.shape[1] > 0)
        self.work_s = np.where(np.isfinite(inside), inside, np.inf).min(axis=1, initial=np.inf)
        self.work_s[np.isinf(self.work_s)] = 0.0
        self.host_s = outside.min(axis=1, initial=np.inf)
        self.never_free = self.host_s > upper_s
        store_s, fetch_s = offload.store_s[:, ~self.free], offload.fetch_s[:, ~self.free]
        least = np.minimum(store_s.min(axis=1, initial=np.inf), fetch_s.min(axis=1, initial=np.inf))
        self.graph = self._nets(least if inside.shape[1] else np.zeros(len(least)))
        room = blocks.room_bytes[~self.free].min(initial=np.inf)
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
        dear = {pins: seconds for pins, seconds in cost.items() if seconds > 0}
        return Hypergraph(self.blocks.n, tuple(dear), np.asarray(list(dear.values())))

    @cached_property
    def slack_s(self) -> float:
        """What all accelerators together can spend on transfers, if each stays below ``upper_s``.

        ::

            sum_d work(S_d) + cut(S_d) <= accelerators * upper_s
            sum_d work(S_d)            >= work of everything - what hosts can take over
        """
        k = int((~self.free).sum())
        return max(0.0, k * self.upper_s - float(self.work_s.sum()) + self._relief_s) * (1 + SAFETY)

    @property
    def _relief_s(self) -> float:
        """The most work that hosts can take over: those blocks first that save most for a host's second."""
        able = np.flatnonzero(~self.never_free & (self.work_s > 0))
        order = able[np.argsort(-self.work_s[able] / np.maximum(self.host_s[able], 1e-300), kind="stable")]
        before = np.cumsum(self.host_s[order]) - self.host_s[order]
        left = float(self.free.sum()) * self.upper_s - before
        share = np.clip(left / np.maximum(self.host_s[order], 1e-300), 0.0, 1.0)
        share[self.host_s[order] <= 0] = 1.0
        return float((share * self.work_s[order]).sum())

    @cached_property
    def pieces(self) -> tuple[Ints, Ints]:
        """[n_blocks] twice: the pieces that remain if all cuts up to half the slack, or all of it, are made."""
        half, whole = np.arange(self.blocks.n), np.arange(self.blocks.n)
        for one, other, value in self.graph.cut_tree():
            for piece, most in ((half, self.slack_s / 2), (whole, self.slack_s)):
                if value > most:
                    piece[piece == piece[one]] = piece[other]
        return half, whole


def bound_together(view: Beside) -> Iterator[tuple[int, int]]:
    """Pairs of blocks that cost too much to part.

    Two blocks on different accelerators: both pay at least the minimum cut between them. If one of them is on a
    host, only the other one pays; on two different hosts, nobody pays. So ``2 * cut > slack`` binds blocks that no host
    can run, and ``cut > slack`` all blocks of a piece if there is one host at most, or if no host can run one of them.
    """
    half, whole = view.pieces
    yield from _pairs(np.flatnonzero(view.never_free), half)
    bound = np.isin(whole, whole[view.never_free]) | (view.free.sum() <= 1)
    yield from _pairs(np.flatnonzero(bound), whole)


def cohesive_sets(view: Beside) -> Iterator[tuple[int, int]]:
    """Pairs that make the pieces, or else the two ends of a net, one block where `cohesive` allows it."""
    if not view.alike:
        return
    half, _ = view.pieces
    found = False
    for piece in np.unique(half).tolist():
        members = np.flatnonzero(half == piece).tolist()
        if len(members) > 1 and cohesive(view, members):
            found = True
            yield from ((members[0], other) for other in members[1:])
    used: set[int] = set()
    for pins in view.graph.pins if not found else ():
        if len(pins) == 2 and used.isdisjoint(pins) and cohesive(view, pins):
            used |= set(pins)
            yield pins[0], pins[1]


def cohesive(view: Beside, members: Sequence[int]) -> bool:
    """Whether a set of blocks C may as well be on one device.

    It may if for every part Y of C, ``cut inside C between Y and the rest >= work(Y) + nets from Y out of C``:
    moving Y to the rest's accelerator then relieves both ends. That holds for all Y without a root r exactly if the
    right side, as a demand of every block, can be met by a flow from r inside C. If C has a block that no host can run,
    that is the root, else every block has to do (C as a whole may still be on the host), and with several hosts none
    does (C may be divided among them).
    """
    if not view.runs[list(members)].all():
        return False
    number = {block: position for position, block in enumerate(members)}
    demand = view.work_s[list(members)].copy()
    inner: list[tuple[tuple[int, ...], float]] = []
    for pins, cost in zip(view.graph.pins, view.graph.cost.tolist(), strict=True):
        here = tuple(number[pin] for pin in pins if pin in number)
        if len(here) == len(pins):
            inner.append((here, cost))
        else:
            demand[list(here)] += cost
    graph = Hypergraph(len(members), tuple(pins for pins, _ in inner), np.asarray([cost for _, cost in inner]))
    anchors = [position for block, position in number.items() if view.never_free[block]]
    if not anchors and view.free.sum() > 1:
        return False
    roots: Iterable[int] = anchors[:1] or range(len(members))
    return all(graph.feeds(root, demand) for root in roots)


def _pairs(chosen: Ints, piece: Ints) -> Iterator[tuple[int, int]]:
    """Each block with the first one of its piece."""
    first: dict[int, int] = {}
    for block in chosen.tolist():
        known = first.setdefault(int(piece[block]), block)
        if known != block:
            yield known, block
