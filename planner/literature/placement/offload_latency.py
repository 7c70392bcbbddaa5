"""Offload latency: annealing for a host with accelerators, each of which is called once.

A call starts when all tensors that it fetches are there, and ends for all of its operators at once. So a good placement
has a few compact regions, one on each accelerator, and the rest on the host. A move takes a region from one device to
another. If accelerators then wait for each other in a circle, the latency is infinite and the move is rejected.

The first part of the steps anneals the whole problem. The other steps anneal windows: from the best placement on, they
move only the blocks of one stretch of the topological order. Networks are mostly long and narrow, so the best placement
of a stretch depends little on the others (a large neighbourhood search: Shaw, CP 1998).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodels.table import CostTable
from graphs.common.arrays import Ints
from planner.literature.placement.offload import OffloadTable, offload_of
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.bounds import longest_paths
from planner.problem.deadline import loading
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget, Incumbent

if TYPE_CHECKING:
    from planner.literature.placement.kernel import OffloadCosts

STEP_S = 1e-7  # of a step of the kernel, measured on one core of 2.5 GHz
STEP_S_PER_ITEM = 1e-9  # of a step besides, for each item: an operator is one, an edge is two
ROUND_STEPS = 25_000  # between two looks at the clock
SHARE = 0.5  # of the time limit that the rounds take there; the rest is for slower cores
MOST_ROUNDS = 1_000_000
WHOLE = 0.25  # share of the rounds for the whole problem
WINDOW_ROUNDS = 4  # for each window
HOT, COLD = 0.03, 1e-4  # first and last temperature, as shares of the latency


@dataclass(frozen=True)
class OffloadLatency:
    """Finds short latencies for accelerators that are called once; it proves no bound."""

    name: str = "offload-latency"
    goals: frozenset[Goal] = frozenset({Goal.LATENCY})

    def refuses(self, problem: Problem) -> str:
        """Refuse problems without a host, with contiguity, or with devices that have no link."""
        if not isinstance(problem.table, OffloadTable):
            return "devices that exchange tensors without a host between them"
        if problem.contiguous:
            return "operators that must be contiguous"
        return "" if problem.table.linked.all() else "devices without a link"

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Anneal the whole problem, then windows of it.

        It stops after a number of steps that depends on the time limit and the size of the problem, so that the same
        input gives the same answer; the clock stops it only on a machine that needs twice the usual time.
        """
        with loading():
            from planner.literature.placement import kernel as kernel  # late: numba takes a moment to load
            from planner.solvers.compiled import seed_of

        incumbent = Incumbent(problem, budget, self.name)
        blocks = merge_blocks(problem.table)
        if incumbent.placement is None:
            for start in _starts(blocks):
                incumbent.offer(blocks.spread(start))
        if incumbent.placement is None or not blocks.n:
            return Answer(incumbent.placement)
        costs = kernel_costs(blocks)
        work = kernel.workplace(costs)
        work.state.seed[:] = seed_of(budget.seed)
        for window, n_rounds in _plan(blocks, budget):
            kernel.place(costs, blocks.devices_of(incumbent.placement), work.state)
            heat_s = incumbent.objective_s * HOT * (COLD / HOT) ** np.linspace(0, 1, n_rounds * ROUND_STEPS)
            for heat in np.split(heat_s, n_rounds):
                if budget.brake_s <= 0 or incumbent.objective_s * (1 - budget.gap) <= budget.bound_s:
                    return Answer(incumbent.placement, spent=SHARE)
                kernel.anneal_offload(costs, window, heat, work)
                incumbent.offer(blocks.spread(work.state.best))
        return Answer(incumbent.placement, spent=SHARE)


def step_s(table: CostTable) -> float:
    """Return the seconds of a step of the kernel."""
    return STEP_S + (table.n_ops + 2 * sum(len(flow.readers) for flow in table.flows)) * STEP_S_PER_ITEM


def _plan(blocks: Blocks, budget: Budget) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield the windows to anneal, as first block and the one after the last, each with its number of rounds."""
    rounds = min(MOST_ROUNDS, max(2, int(SHARE * budget.time_limit_s / (ROUND_STEPS * step_s(blocks.table)))))
    whole = max(1, int(WHOLE * rounds))
    yield (0, blocks.n), whole
    random = np.random.default_rng(budget.seed)
    for _ in range(0, rounds - whole, WINDOW_ROUNDS):
        size = min(blocks.n, 1 + int(blocks.n * random.uniform(0.15, 0.55)))
        first = int(random.integers(blocks.n - size + 1))
        yield (first, first + size), WINDOW_ROUNDS


def _starts(blocks: Blocks) -> Iterator[Ints]:
    """Yield placements, [n_blocks] each, of everything on one device, then one that fills device after device."""
    for device in range(blocks.table.n_devices):
        yield np.full(blocks.n, device)
    home, device, used_bytes = np.zeros(blocks.n, dtype=np.int64), 0, 0.0
    for block, n_bytes in enumerate(blocks.n_bytes.tolist()):
        while device < blocks.table.n_devices and (
            used_bytes + n_bytes > blocks.room_bytes[device] or not blocks.fits[block, device]
        ):
            device, used_bytes = device + 1, 0.0
        if device == blocks.table.n_devices:
            return
        home[block] = device
        used_bytes += n_bytes
    yield home


def kernel_costs(blocks: Blocks) -> "OffloadCosts":
    """Return the flat arrays of the kernel."""
    with loading():
        from planner.literature.placement.kernel import OffloadCosts
        from planner.solvers.compiled import flat

    table, offload = blocks.table, offload_of(blocks.table)
    flows = sorted(range(len(table.flows)), key=lambda flow: table.flows[flow].writer)
    flows_of: list[list[int]] = [[] for _ in table.ops]
    for flow in flows:
        flows_of[table.flows[flow].writer].append(flow)
    before: list[set[int]] = [set() for _ in range(blocks.n)]
    after: list[set[int]] = [set() for _ in range(blocks.n)]
    for net in blocks.nets:
        after[net.writer].update(net.readers)
        for reader in net.readers:
            before[reader].add(net.writer)
    near_start, near = flat([[*sorted(b), *sorted(a)] for b, a in zip(before, after, strict=True)])
    flow_start, _ = flat(flows_of)
    edge_start, readers = flat([table.flows[flow].readers for flow in flows])
    member_start, members = flat(blocks.members)
    return OffloadCosts(
        forward_s=_dense(table.forward_s),
        store_s=_dense(offload.store_s[flows]),
        fetch_s=_dense(offload.fetch_s[flows]),
        host=offload.host.copy(),
        flow_start=flow_start,
        edge_start=edge_start,
        readers=readers,
        block=blocks.block.copy(),
        member_start=member_start,
        members=members,
        n_bytes=blocks.n_bytes.copy(),
        room_bytes=blocks.room_bytes.copy(),
        fits=_dense(blocks.fits),
        near_start=near_start,
        near_after=near_start[:-1] + np.asarray([len(b) for b in before], dtype=np.int64),
        near=near,
        chain=_chains(before, after),
        tail_s=longest_paths(table)[1],
    )


def _chains(before: Sequence[set[int]], after: Sequence[set[int]]) -> Ints:
    """Return [n_blocks], the chain of each block: that of its only writer, if it is the writer's only reader."""
    chain = np.arange(len(before))
    for block, writers in enumerate(before):
        for writer in writers:
            if len(writers) == len(after[writer]) == 1:
                chain[block] = chain[writer]
    return chain


def _dense(values: Any) -> Any:
    """Return a copy with the memory layout that the kernel is compiled for."""
    return np.ascontiguousarray(values).copy()
