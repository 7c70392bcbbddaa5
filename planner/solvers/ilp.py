"""ILP: the best placement of all, contiguous or not, by integer programming with PuLP and HiGHS."""

from dataclasses import dataclass
from math import inf

import numpy as np

from costmodels.table import CostTable
from planner.bounds import load_bound
from planner.problem import Goal, Problem
from planner.solvers.base import Answer, Budget
from planner.solvers.blocks import Blocks, merge_blocks
from planner.solvers.devices import uniform_links
from planner.solvers.ilp_latency import LatencyModel, longest_paths
from planner.solvers.ilp_model import PlacementModel
from planner.solvers.incumbent import Incumbent

SAFETY = 1e-6  # relative; HiGHS keeps constraints within 1e-7 and 1e-6 of quantities that are about 1
MOST_COLUMNS = 20_000  # with more, HiGHS spends minutes on the first relaxation


@dataclass(frozen=True)
class ILP:
    """Integer programming: `PlacementModel` for throughput, `LatencyModel` for latency.

    Operators that must share a device are one variable; so are those that share it in every placement that is better
    than the incumbent (see `merge_forced`). The search ends after a number of steps (see `milp.minimise`).

    Source: the throughput program follows Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph
    Operators, NeurIPS 2020, with transfers for each pair of devices.
    """

    name: str = "ilp"
    goals: frozenset[Goal] = frozenset({Goal.THROUGHPUT, Goal.LATENCY})

    def refuses(self, problem: Problem) -> str:
        """The programs have neither offloading nor contiguity."""
        if problem.table.offload:
            return "accelerators beside a host"
        return "contiguous operators" if problem.contiguous else ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Look for the best placement and prove a bound; the incumbent alone if the model is too large."""
        best = Incumbent(problem, budget, self.name)
        upper_s = min(best.objective_s, _worst_case(problem.table)) or 1.0
        blocks = merge_forced(problem, upper_s)
        if not blocks.fits.any(axis=1).all():
            return Answer(best.placement, upper_s, complete=True)
        lower_s = min(upper_s, max(budget.bound_s, load_bound(blocks)))
        if count_columns(problem, blocks) > MOST_COLUMNS:
            return Answer(best.placement, lower_s)
        kind = LatencyModel if problem.goal is Goal.LATENCY else PlacementModel
        model = kind(blocks, lower_s, upper_s)
        if not model.build(budget):
            return Answer(best.placement, lower_s)
        bound_s = model.minimise(budget, best.placement, best.offer)
        if bound_s == inf and best.placement is None:
            return Answer(None, complete=True)
        return Answer(best.placement, min(upper_s, max(lower_s, bound_s * (1 - SAFETY))))


def merge_forced(problem: Problem, upper_s: float) -> Blocks:
    """Merge the ends of every net that no placement better than ``upper_s`` cuts.

    Throughput: cutting it makes a device or a channel that busy, by the transfer and, without overlap, the block at
    its end. Latency: the longest path through the cut takes that long. Merged blocks weigh more, so it is repeated.
    """
    forced: list[tuple[int, int]] = []
    while True:
        blocks = merge_blocks(problem.table, forced)
        before = len(forced)
        cut = _cut_latency if problem.goal is Goal.LATENCY else _cut_load
        forced += cut(blocks, upper_s)
        if len(forced) == before:
            return blocks


def count_columns(problem: Problem, blocks: Blocks) -> int:
    """About how many variables the model has."""
    k = problem.table.n_devices
    columns = blocks.n * k + sum(2 * k if uniform_links(problem.table) else k * k for _ in blocks.nets)
    if problem.goal is Goal.LATENCY:
        columns += sum(len(net.readers) for net in blocks.nets) * k * k + problem.table.n_ops**2
    return columns


def _cut_load(blocks: Blocks, upper_s: float) -> list[tuple[int, int]]:
    busy = np.where(blocks.fits, blocks.forward_s, inf)
    forced = []
    for net in blocks.nets:
        seconds = net.seconds(blocks.table)
        np.fill_diagonal(seconds, inf)
        for reader in net.readers:
            ends = np.maximum(busy[net.writer][:, None], busy[reader])
            if (np.maximum(seconds, ends) if blocks.table.overlap else seconds + ends).min() >= upper_s:
                forced.append((blocks.members[net.writer][0], blocks.members[reader][0]))
    return forced


def _cut_latency(blocks: Blocks, upper_s: float) -> list[tuple[int, int]]:
    table, block = blocks.table, blocks.block
    takes = np.where(blocks.fits[block], table.forward_s, inf)
    head_s, tail_s = longest_paths(table)
    behind_s = tail_s - table.forward_s.min(axis=1)
    forced = []
    for flow, seconds in zip(table.flows, table.transfer_s, strict=True):
        between = np.where(np.eye(table.n_devices, dtype=bool), inf, seconds)
        for reader in flow.readers:
            if block[reader] != block[flow.writer]:
                path = (takes[flow.writer][:, None] + between + takes[reader]).min()
                if head_s[flow.writer] + path + behind_s[reader] >= upper_s:
                    forced.append((flow.writer, reader))
    return forced


def _worst_case(table: CostTable) -> float:
    """Everything one after the other, each where it takes longest, and every flow handed over everywhere."""
    computes = np.where(np.isfinite(table.forward_s), table.forward_s, 0.0).max(axis=1).sum()
    sends = table.wire_s.max(axis=1, initial=0.0).sum()
    hands_over = 2 * len(table.flows) * table.handover_s.max()
    return float(computes + (sends + hands_over) * table.n_devices)
