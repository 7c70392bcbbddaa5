"""Single moves: the last step of a search moves blocks one by one to other devices in use, as long as that helps.

::

    a b c │ d e f     c over the cut, or d over it: the ends of cuts first, those that take longest before others;
        ─►│           then any other block to any other device in use, in any copy
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice

from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.evaluate import backward_edge
from planner.problem.problem import Problem
from planner.solvers.base import moves_within, objective_of
from simulator.placement import Placement

LEAST_GAIN = 1e-3  # relative; for less no operator goes elsewhere


def climbed(
    problem: Problem, placement: Placement, time_limit_s: float, helps: Callable[[Placement], bool] | None = None
) -> Placement:
    """Return the placement after moves of single operators that each reduce the objective, until none does.

    It ends earlier after as many evaluations as the usual machine makes in the time.

    Args:
        problem: whose objective counts.
        placement: a feasible one.
        time_limit_s: of the usual machine.
        helps: whether to make a move that makes the objective smaller. By default, if no micro-batch comes back to a
            device that it has left, unless one does already.
    """
    to_and_fro = is_scattered(problem, placement)
    helps = helps or (lambda moved: to_and_fro or not is_scattered(problem, moved))
    for found in islice(climbing(problem, placement, helps), moves_within(time_limit_s, problem)):
        placement = found
    return placement


def climbing(problem: Problem, placement: Placement, helps: Callable[[Placement], bool]) -> Iterator[Placement]:
    """Yield the best placement so far after each evaluation of a single move, until no move helps any more."""
    blocks, best_s, moved = merge_blocks(problem.table), objective_of(problem, placement), True
    while moved:
        moved = False
        for trial in single_moves(blocks, placement):
            trial_s = objective_of(problem, trial, best_s)
            moved = trial_s < best_s * (1 - LEAST_GAIN) and helps(trial)
            if moved:
                placement, best_s = trial, trial_s
            yield placement
            if moved:
                break


def single_moves(blocks: Blocks, placement: Placement) -> Iterator[Placement]:
    """Yield every placement with one block of one copy on another device in use, the ends of cuts first."""
    seen: set[tuple[int, int, int]] = set()
    for copy, block, device in chain(_over_cuts(blocks, placement), _anywhere(blocks, placement)):
        if (copy, block, device) not in seen and blocks.fits[block, device]:
            seen.add((copy, block, device))
            yield moved_to(placement, blocks.members[block], device, copy)


def moved_to(placement: Placement, ops: tuple[int, ...], device: int, copy: int = 0) -> Placement:
    """Return the placement with some operators of a copy on another device; the orders stay the same."""
    copies = list(placement.copies)
    home = list(copies[copy].device)
    for op in ops:
        home[op] = device
    copies[copy] = Placement(tuple(home), copies[copy].order)
    return replace(copies[0], others=tuple(copies[1:]))


def is_scattered(problem: Problem, placement: Placement) -> bool:
    """Return whether, in some copy, a micro-batch comes back to a device that it has left."""
    everywhere = replace(problem, contiguous=frozenset(range(problem.table.n_ops)))
    return any(backward_edge(everywhere, copy) for copy in placement.copies)


def _over_cuts(blocks: Blocks, placement: Placement) -> list[tuple[int, int, int]]:
    """(copy, block, device): the writer and the readers of each cut on the other side, the longest cuts first."""
    table, found = blocks.table, list[tuple[float, tuple[int, int, int]]]()
    for number, copy in enumerate(placement.copies):
        for flow, src, dst in copy.cuts(table):
            record, seconds = table.flows[flow], -table.send_s(flow, src, dst)
            found.append((seconds, (number, int(blocks.block[record.writer]), dst)))
            readers = {int(blocks.block[op]) for op in record.readers if copy.device[op] == dst}
            found += [(seconds, (number, block, src)) for block in sorted(readers)]
    return [move for _, move in sorted(found, key=lambda each: each[0])]


def _anywhere(blocks: Blocks, placement: Placement) -> Iterator[tuple[int, int, int]]:
    for number, copy in enumerate(placement.copies):
        for block, members in enumerate(blocks.members):
            for device in placement.used:
                if device != copy.device[members[0]]:
                    yield number, block, device
