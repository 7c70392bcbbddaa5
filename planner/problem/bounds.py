"""Lower bounds of the objective over all placements.

Every bound is for one micro-batch in seconds, and leaves transfers out, so it holds for any cluster.
"""

from dataclasses import replace
from functools import singledispatch
from math import inf

import numpy as np

from costmodels.table import CostTable
from graphs.common.arrays import Floats
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.devices import alike
from planner.problem.evaluate import MEMORY_TOLERANCE
from planner.problem.linear_bounds import lp_bound
from planner.problem.problem import Goal, Problem
from planner.problem.schedule_bounds import memory_bound
from simulator.training import INPUT_SHARE, SPLIT_BACKWARD

BOUND = "lower bound"  # kept with a problem
ONE_STAGE_EACH = "1f1b"  # the schedule under which no device has several stages


def lower_bound(problem: Problem) -> float:
    """Return seconds that no placement can beat; infinite if not even a fractional placement fits the memory.

    Throughput: `load_bound`. Latency: `latency_bound`. Cost: `cost_bound`. Training: `training_bound`. These bounds
    hold for devices that all compute all the time. Streaming devices may pause, see `streaming_bound`. For the other
    goals, a single device that does everything has no contention, so the bound is at most that of the fastest one. The
    bound is kept with the problem.
    """
    if BOUND not in problem.worked_out:
        problem.worked_out[BOUND] = _lower_bound(problem)
    return float(problem.worked_out[BOUND])


def _lower_bound(problem: Problem) -> float:
    table, bound_s = problem.table, _contended_bound(problem.contended)
    if bound_s == inf or not (table.contention and table.contention.slows):
        return bound_s
    if problem.goal is Goal.THROUGHPUT:
        quickest = replace(table, forward_s=np.minimum(table.forward_s, table.contended.forward_s))
        bound_s = max(load_bound(merge_blocks(quickest), problem.copies), streaming_bound(table, bound_s))
        return min(bound_s, copies_bound(table)) if problem.copies else bound_s
    return min(bound_s, float(one_device_bounds(problem).min(initial=inf)))


def one_device_bounds(problem: Problem) -> Floats:
    """Return [n_devices], the least seconds of the network on one device, others idle; infinite if it does not fit.

    They equal the evaluator's objective up to rounding, except for training and for devices that run several operators
    at once.
    """
    table = problem.table
    bound_s = alone_s(table, problem)
    room_bytes = table.capacity_bytes * (1 + 2 * MEMORY_TOLERANCE) - table.working_bytes
    bound_s[table.placed_bytes.sum() > room_bytes] = inf
    return np.asarray(bound_s)


@singledispatch
def alone_s(table: CostTable, problem: Problem) -> Floats:  # noqa: ARG001  # kinds of tables dispatch on it
    """Return [n_devices], the least seconds of the network on one device, whatever memory it needs."""
    return np.asarray(problem.work_s.sum(axis=0))


def copies_bound(table: CostTable) -> float:
    """Return the least seconds of a micro-batch with a copy of the network on each device of a contention group."""
    whole_s = table.in_copies.forward_s.sum(axis=0) / (1 + table.contends.sum(axis=1))
    return float(whole_s.min(initial=inf))


def streaming_bound(table: CostTable, contended_s: float) -> float:
    """Return a lower bound of the period, from the bound ``contended_s`` for devices that all compute all the time."""
    return with_pauses(table, contended_s, cost_bound(merge_blocks(table.contended)))


def _contended_bound(problem: Problem) -> float:
    """Return the bound of a problem without slowdown."""
    blocks = merge_blocks(problem.table)
    match problem.goal:
        case Goal.THROUGHPUT:
            return load_bound(blocks, problem.copies)
        case Goal.COST:
            return cost_bound(blocks)
        case Goal.TRAINING:
            return training_bound(problem)
        case _:
            return float(latency_bound(problem.table))


@singledispatch
def latency_bound(table: CostTable) -> float:
    """Return seconds of latency that no placement can beat: each device finishes its load, each path its operators."""
    return max(load_bound(merge_blocks(table)), path_bound(table))


def path_bound(table: CostTable) -> float:
    """Return the seconds of the longest path through the graph, with every operator on its fastest device."""
    return float((longest_paths(table)[0] + table.forward_s.min(axis=1)).max(initial=0.0))


def longest_paths(table: CostTable) -> tuple[Floats, Floats]:
    """Return the seconds of the longest paths to an operator's start and from there to the end, [n_ops] each.

    Every operator is on its fastest device; transfers are left out.
    """
    fastest = table.forward_s.min(axis=1).tolist()
    head, tail = [0.0] * table.n_ops, list(fastest)
    for writer, reader in table.edges:  # sorted by writer, so the writer's head is final
        head[reader] = max(head[reader], head[writer] + fastest[writer])
    for writer, reader in reversed(table.edges):
        tail[writer] = max(tail[writer], fastest[writer] + tail[reader])
    return np.asarray(head, dtype=float), np.asarray(tail, dtype=float)


def training_bound(problem: Problem) -> float:
    """Return a lower bound of a step: the work of the busiest device, and the path of a micro-batch forward and back.

    Recomputed forward passes count twice, on the path as well. If a schedule splits the backward pass, only the
    gradients of inputs are on the path: the gradients of weights are computed at the same time.

    With one stage on each device, a device's first forward pass waits for those of the stages before it, and these
    have their last backward passes still to do when the device has done its own. So a step S has ``S >= m T[r] + sum
    of T[q] for q < r`` for the times T of the stages. Their sum is all the work, and the largest sum that S allows is
    ``S (1 - (1 - 1/m)^p)``. And before a device's first backward pass, a micro-batch goes forward through all stages
    and back through those after it; after its last one, back through those before it. So ``S >= sum of T + (m - 1)
    B[r]`` for its backward passes B, and the same for its forward passes.

    Holds if ``held`` is at most the number of micro-batches that each device holds under the schedule, at least 1.
    """
    table, m = problem.table, problem.step.micro_batches
    both = replace(table, forward_s=problem.both_s)
    share = INPUT_SHARE if problem.step.schedule in SPLIT_BACKWARD else 1.0
    training = table.training and replace(table.training, backward_s=share * table.backward_s)
    way = replace(both, forward_s=replace(problem, table=replace(table, training=training)).both_s)
    busy_s = load_bound(merge_blocks(replace(table, forward_s=problem.work_s)))
    bound_s = max(busy_s, path_bound(way), memory_bound(problem))
    if problem.step.schedule == ONE_STAGE_EACH:
        alone_s = cost_bound(merge_blocks(both))
        back_s = table.backward_s + table.again_s(problem.step.recompute)
        pass_s = max(load_bound(merge_blocks(replace(table, forward_s=each_s))) for each_s in (table.forward_s, back_s))
        bound_s = max(bound_s, alone_s / (1 - (1 - 1 / m) ** table.n_devices), alone_s + (m - 1) * pass_s)
    return bound_s


def cost_bound(blocks: Blocks) -> float:
    """Return the sum of all blocks' least times; infinite if a block fits on no device."""
    return float(np.where(blocks.fits, blocks.forward_s, np.inf).min(axis=1, initial=np.inf).sum())


def load_bound(blocks: Blocks, copies: bool = False) -> float:
    """Return the least load of the busiest device, without transfers: the larger of `packing_bound` and `lp_bound`.

    Copies of the network divide the work of a block among devices, which only `lp_bound` allows.
    """
    if not blocks.n:
        return 0.0
    if not blocks.fits.any(axis=1).all():
        return float("inf")
    return lp_bound(blocks) if copies else max(packing_bound(blocks), lp_bound(blocks))


def packing_bound(blocks: Blocks) -> float:
    """Return a bound from whole blocks: of any ``m * k + 1`` blocks, one of the k devices has at least ``m + 1``.

    With the fastest times sorted descending, the busiest device has at least the ``m + 1`` smallest of the first
    ``m * k + 1``, for every m (Martello and Toth's pigeonhole bound for identical machines; fastest times make
    it hold for different ones).
    """
    usable = int(blocks.fits.any(axis=0).sum())
    fastest = np.where(blocks.fits, blocks.forward_s, np.inf).min(axis=1, initial=np.inf)
    sums = np.concatenate(([0.0], np.cumsum(-np.sort(-fastest))))
    last = np.arange(1, len(sums), max(usable, 1))  # m * k + 1
    return float((sums[last] - sums[last - 1 - np.arange(len(last))]).max(initial=0.0))


def with_pauses(table: CostTable, contended_s: float, total_s: float) -> float:
    """Return a lower bound of the period, from a bound for devices that all compute all the time.

    The evaluator counts contention only while other devices compute (see `Placement.costs`), so its times are the
    shorter, the less balanced a placement is::

        device 0   ████████████████████████   M seconds if contended all the time, a share s due to contention
        device 1   ██████████████             m seconds
                                 ├─ M-m ──┤   device 0 is isolated here, so it takes M - s (M - m) in truth

    Let the busiest of n devices take M seconds if all compute all the time, ``contended_s`` at least. The k - 1 others
    of its group compute for m seconds on average: no device for more than M, and all for ``total_s`` at least, so
    ``(k - 1) m >= total_s - (n - k + 1) M``. The share s is at most that of the operators with the largest shares that
    fill ``contended_s`` seconds. With these, ``M - s (M - m)`` is linear in M where m is 0 and where it is more, so it
    is least at ``contended_s`` or where m becomes 0. ``contended_s`` is a lower bound of the period if all devices
    compute all the time, and ``total_s`` one of the summed contended seconds of all devices, for any placement.

    Returns:
        Seconds, at most ``contended_s``.
    """
    bound_s = contended_s
    if contended_s in (0.0, np.inf):
        return contended_s
    size, seconds = 1 + table.contends.sum(axis=1), table.contended.forward_s
    for device, *_ in alike(table, size):
        share, others = _largest_share(seconds[:, device], table.slowdown[:, device], contended_s), size[device] - 1
        outside = table.n_devices - others
        for busiest_s in (contended_s, max(contended_s, total_s / outside)):
            others_s = max(0.0, total_s - outside * busiest_s) / max(1, others)
            bound_s = min(bound_s, busiest_s - share * (busiest_s - others_s))
    return float(bound_s)


def _largest_share(seconds: Floats, slowdown: Floats, busy_s: float) -> float:
    """Return the largest share due to contention of operators that fill ``busy_s`` seconds, or of all operators."""
    share = slowdown / (1 + slowdown)
    order = np.argsort(-share, kind="stable")
    order = order[np.isfinite(seconds[order]) & (share[order] > 0)]
    taken_s = np.minimum(np.cumsum(seconds[order]), busy_s)
    return float((np.diff(taken_s, prepend=0.0) * share[order]).sum() / busy_s)
