"""Recurrent scans: loops over time or chunks, which a trace unrolls, as one operator each.

::

    select x[0] ─► mul ─► add ─► select x[1] ─► mul ─► add ─► select x[2] ─► ... ─► stack        kinds repeat,
                    ▲      ╰───────── state ─────▲      ╰────── state ───────▲                   the index counts on

A scan is an interval of the trace, so no path leaves it and comes back; its operators run one after another as before,
and it costs as much as all of them. What is looked for are steps of the same kinds in one module, each of which reads
what the step before it has written, and another place of a tensor. Equal layers are none: they read no other place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from graphs.ir import Attr, Graph, Op
from graphs.operator_kinds import aten_kinds, changes, plain
from graphs.rewrites.fuse import SCAN

STEPS = 4  # at least; fewer may be parts of anything, such as queries, keys and values
LONGEST = 64  # operators of a step
INDEXING = aten_kinds("select slice narrow select_scatter slice_scatter")
COLLECTING = frozenset({"aten.stack", "aten.cat"})


class _Steps(NamedTuple):
    """Operators that repeat."""

    start: int
    stop: int
    period: int  # operators of a step


def find_scans(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Return the names of the operators of each scan, in their order."""
    found: list[tuple[str, ...]] = []
    caches = {name for pair in graph.caches for name in pair}

    def where(number: int) -> tuple[str, bool]:
        op = graph.ops[number]
        whole = changes(op) or op.members or not caches.isdisjoint((*op.inputs, *op.outputs))
        return op.module, bool(whole)

    for (_, whole), numbers in groupby(range(len(graph.ops)), where):
        interval = [*numbers]
        if not whole:
            for start, stop in _scans(graph, interval[0], interval[-1] + 1):
                found.append(tuple(op.name for op in graph.ops[start:stop]))
    return tuple(found)


def unrolled(graph: Graph) -> tuple[Graph, Sequence[int]]:
    """Return a graph with the operators of its scans in their place, and the first one's index of each operator."""
    starts, ops = list[int](), list[Op]()
    for op in graph.ops:
        starts.append(len(ops))
        ops.extend(op.members if op.kind == SCAN else (op,))
    return (graph if len(ops) == len(graph.ops) else replace(graph, ops=tuple(ops))), starts


def _scans(graph: Graph, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the scans in an interval, the one with the most operators first, then those before and after it."""
    kinds = [plain(op.kind) for op in graph.ops[start:stop]]
    runs = (_longest(kinds, period) for period in range(1, min(LONGEST, len(kinds) // STEPS) + 1))
    steps = (run._replace(start=start + run.start, stop=start + run.stop) for run in runs if run is not None)
    best = max(
        (each for each in steps if _counts_on(graph, each)), key=lambda each: each.stop - each.start, default=None
    )
    if best is None:
        return
    end = best.stop
    while end < stop and _collects(graph, best.start, end):
        end += 1
    yield from _scans(graph, start, best.start)
    yield best.start, end
    yield from _scans(graph, end, stop)


def _longest(kinds: Sequence[str], period: int) -> _Steps | None:
    """Return the longest interval of kinds that repeat with this period; None if there are few steps."""
    best, begun = _Steps(0, 0, period), 0
    for number in range(period, len(kinds) + 1):
        if number == len(kinds) or kinds[number] != kinds[number - period]:
            if number - begun > best.stop - best.start:
                best = _Steps(begun, number, period)
            begun = number - period + 1
    return best if best.stop - best.start >= STEPS * period else None


def _counts_on(graph: Graph, steps: _Steps) -> bool:
    """Return whether each step reads what the one before it has written, and some another place than that one."""
    linked = all(
        any(
            number - steps.period <= writer < number
            for reader in range(number, min(number + steps.period, steps.stop))
            for writer in (graph.writer.get(name, -1) for name in graph.ops[reader].inputs)
        )
        for number in range(steps.start + steps.period, steps.stop - steps.period + 1, steps.period)
    )
    places = [[_place(op) for op in graph.ops[first : steps.stop : steps.period]] for first in _step(steps)]
    return linked and any(None not in each and len(set(each)) == len(each) for each in places)


def _step(steps: _Steps) -> range:
    return range(steps.start, steps.start + steps.period)


def _place(op: Op) -> tuple[Attr, ...] | None:
    """Return where an operator reads or writes a tensor; None for one that takes all of it."""
    if plain(op.kind) not in INDEXING:
        return None
    return tuple(op.attrs.get(name) for name in ("index", "start", "end"))


def _collects(graph: Graph, start: int, number: int) -> bool:
    """Return whether an operator puts together what the operators before it, from ``start`` on, have written."""
    op = graph.ops[number]
    own = [name for name in op.inputs if start <= graph.writer.get(name, -1) < number]
    return plain(op.kind) in COLLECTING and len(own) >= STEPS
