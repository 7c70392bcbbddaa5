"""Exhaustive: tries every placement; it is the reference for all other solvers, and the proof for tiny problems."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from costmodels.table import CostTable
from planner.problem.blocks import Blocks, input_flows, merge_blocks, successors
from planner.problem.evaluate import PlacementCosts, costs_of_placement, loads
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget, Incumbent
from simulator.placement import Placement
from simulator.training import IN_TURNS, TURNS_BACK

UNTIMED = 2_000  # placements that are tried whatever the clock says, in less than a second


@dataclass(frozen=True)
class Exhaustive:
    """Tries every device for every block; for latency also every topological order.

    It skips devices without room or link, and for latency the orders of a placement that is too slow in any order.
    """

    name: str = "exhaustive"
    goals: frozenset[Goal] = frozenset(Goal)

    def refuses(self, problem: Problem) -> str:  # noqa: ARG002  # the form of a solver
        """Nothing: it needs the evaluator alone."""
        return ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Try every placement until time runs out, `UNTIMED` in any case; among equals the first one stays."""
        best, tried = Incumbent(problem, budget, self.name), 0
        for placement in _placements(merge_blocks(problem.table)):
            floor_s = _floor(problem, placement)
            for ordered in _orders(problem, placement):
                tried += 1
                if tried > UNTIMED and budget.left_s <= 0:
                    return Answer(best.placement, by_clock=True)
                if floor_s >= best.objective_s:
                    break
                best.offer(ordered)
        if not tries_everything(problem):
            return Answer(best.placement)
        return Answer(best.placement, best.objective_s, complete=True)


def tries_everything(problem: Problem) -> bool:
    """Return whether the exhaustive search leaves nothing out.

    Under a schedule that gives a device several stages, the order says where these begin, and it tries one order only.
    """
    return problem.goal is not Goal.TRAINING or problem.step.schedule not in IN_TURNS | TURNS_BACK


def count_placements(problem: Problem, most: int) -> int:
    """Return the number of placements, for latency times that of their orders; or ``most`` if there are more."""
    blocks = merge_blocks(problem.table)
    count = 1
    for able in blocks.fits.sum(axis=1).tolist():
        count = min(most, count * able)
    if not _ordered(problem) or count in (0, most):
        return count
    n_orders = 0
    for _ in _topological_orders(problem.table):
        n_orders += 1
        if n_orders * count >= most:
            return most
    return n_orders * count


def _placements(blocks: Blocks) -> Iterator[Placement]:
    """Yield every placement within memory and links, in the order of numbers with one digit for each block."""
    linked = blocks.table.linked
    before: list[list[tuple[int, bool]]] = [[] for _ in range(blocks.n)]  # earlier neighbours, and whether they write
    for net in blocks.nets:
        for reader in net.readers:
            before[max(net.writer, reader)].append((min(net.writer, reader), net.writer < reader))
    device = [-1] * blocks.n
    free = blocks.room_bytes.copy()
    block = 0
    while block >= 0:
        if block == blocks.n:
            yield blocks.spread(device)
            block -= 1
            continue
        if device[block] >= 0:
            free[device[block]] += blocks.n_bytes[block]
        device[block] += 1
        chosen = device[block]
        if chosen == blocks.table.n_devices:
            device[block] = -1
            block -= 1
            continue
        free[chosen] -= blocks.n_bytes[block]
        reached = all(linked[(device[b], chosen) if writes else (chosen, device[b])] for b, writes in before[block])
        if blocks.fits[block, chosen] and free[chosen] >= 0 and reached:
            block += 1


def _orders(problem: Problem, placement: Placement) -> Iterator[Placement]:
    """Yield the placement with every order of its operators, if the order matters."""
    if not _ordered(problem):
        yield placement
    else:
        for order in _topological_orders(problem.table):
            yield replace(placement, order=order)


def _ordered(problem: Problem) -> bool:
    """Return whether the order of the operators matters."""
    return problem.goal is Goal.LATENCY and problem.table.in_order


def _floor(problem: Problem, placement: Placement) -> float:
    """Return a lower bound of a placement over all orders: its objective, or the longest of its devices and paths."""
    table = problem.costs(placement)
    if problem.goal is Goal.TRAINING:  # whose stages send to their neighbours alone, unlike `loads`
        return float(placement.busy_s(table).max())
    if not _ordered(problem):
        found: PlacementCosts = costs_of_placement(table, placement, problem.goal)
        return found.objective_s
    load_s, channel_s = loads(table, placement)
    if table.sharing == "fair":
        channel_s = channel_s[:0]  # the latencies of several tensors overlap
    floor_s = float(max(load_s.max(initial=0.0), channel_s.max(initial=0.0)))
    finish_s: list[float] = []
    for op, flows in enumerate(input_flows(table)):
        device, ready_s = placement.device[op], 0.0
        for flow in flows:
            writer = table.flows[flow].writer
            ready_s = max(ready_s, finish_s[writer] + table.send_s(flow, placement.device[writer], device))
        finish_s.append(ready_s + float(table.forward_s[op, device]))
    return max([floor_s, *finish_s])


def _topological_orders(table: CostTable) -> Iterator[tuple[int, ...]]:
    """Yield every topological order of the operators, in lexicographic order (depth first, with an explicit stack)."""
    readers, missing = successors(table.n_ops, table.edges)
    order: list[int] = []
    ready = [[op for op in range(table.n_ops) if not missing[op]]]
    untried = [iter(ready[0])]
    while untried:
        op = next(untried[-1], None)
        if op is None:
            untried.pop()
            ready.pop()
            for reader in readers[order.pop()] if order else ():
                missing[reader] += 1
            continue
        order.append(op)
        for reader in readers[op]:
            missing[reader] -= 1
        freed = [reader for reader in readers[op] if not missing[reader]]
        ready.append(sorted([*(other for other in ready[-1] if other != op), *freed]))
        untried.append(iter(ready[-1]))
        if len(order) == table.n_ops:
            yield tuple(order)
