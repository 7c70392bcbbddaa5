"""Retrace: the best placement that a sweep lets through, if a device pays for a tensor once for each device it goes to.

::

    a ─┬─► b        a, b and c on three devices: a's tensor leaves twice. A sweep goes from a to c and does not know yet
       └─► c        where b and c will be when it charges a; on the way back from c to a they have their devices

A sweep charges an interval once for a tensor that leaves it. The way back begins at the full downset. Its labels say
how many devices beyond a downset read each of some tensors that are written in the downset, so that the device of the
writer is charged for all of them. What the sweep knows of the way that is left excludes most labels.
"""

from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphs.common.arrays import Floats, Ints
from planner.solvers.compiled import compiled, inner, zeros
from planner.solvers.dp.downsets.kernel import (
    BITS,
    CHUNK,
    Field,
    Reaching,
    Sources,
    find_sources,
    interval_s,
    note_parts,
)
from planner.solvers.dp.downsets.listing import Bits

Interval: TypeAlias = tuple[int, int, int]
"""A kind of device, and the downsets between which a device of the kind takes the difference."""

Small: TypeAlias = NDArray[np.int32]

MOST_LABELS = 2_000_000  # with more, a sweep's bound stays as it is
LOOK = 2_000_000  # pairs of downsets, and of labels, between two looks at the clock


class Tracked(NamedTuple):
    """The nets whose readers are counted."""

    of_net: Ints  # [n_nets], the number of a tracked net, else -1
    written: Bits  # [n_downsets, n_tracked], whether a downset holds the writer of a net
    leave_s: Floats  # [n_kinds, n_tracked], for each device that reads a net


class Labels(NamedTuple):
    """Ways back from the full downset, as lists for each downset."""

    size: Annotated[Ints, 1]  # the number of labels
    first: Annotated[Small, "n_downsets"]  # the first label of a downset, or -1
    next: Annotated[Small, "n_labels"]  # the next label of the same downset, or -1
    downset: Annotated[Small, "n_labels"]
    state: Annotated[Small, "n_labels"]  # the devices that are left for the downset
    busiest_s: Annotated[Floats, "n_labels"]  # of the devices beyond the downset, and at least of those for it
    readers: Annotated[NDArray[np.uint8], "n_labels", "n_tracked"]  # devices beyond the downset that read a net
    came_from: Annotated[Small, "n_labels"]  # the label of the downset where the last interval ends, or -1
    by: Annotated[Small, "n_labels"]  # the kind of device of the last interval, or -1
    open: Annotated[Ints, 1]  # the number of tracked nets that leave the present downset
    leaving: Annotated[Ints, "n_tracked"]  # these
    left_s: Floats  # [n_downsets, n_states], the least seconds of the busiest device of those for a downset


@inner
def _extra_s(tracked: Tracked, labels: Labels, source: int, label: int, kind: int) -> float:
    """Return seconds of an interval, beyond those of a sweep, for readers of tracked nets that are written in it."""
    seconds = 0.0
    for place in range(labels.open[0]):
        net = labels.leaving[place]
        if not tracked.written[source, net] and labels.readers[label, net] > 1:
            seconds += (labels.readers[label, net] - 1) * tracked.leave_s[kind, net]
    return seconds


@inner
def _count_readers(field: Field, tracked: Tracked, scratch: Reaching, labels: Labels, source: int, label: int) -> None:
    """Write down the readers beyond a source in the next free label, from those beyond the target of a label."""
    new, nets = labels.size[0], field.nets
    for net in range(labels.readers.shape[1]):
        labels.readers[new, net] = 0
    for i in range(nets.start[source], nets.start[source + 1]):
        net = tracked.of_net[nets.item[i]]
        if net >= 0 and nets.status[i, 1] > 0:
            j = scratch.net[nets.item[i]]
            if j < 0:
                labels.readers[new, net] = 1
            else:
                labels.readers[new, net] = labels.readers[label, net] + (nets.status[i, 0] != nets.status[j, 0])


@inner
def _is_worse(field: Field, labels: Labels, one: int, other: int) -> bool:
    """Return whether a label is nowhere better than another one."""
    if labels.busiest_s[one] < labels.busiest_s[other]:
        return False
    if not field.above[labels.state[one], labels.state[other]]:
        return False
    for net in range(labels.readers.shape[1]):  # noqa: SIM110  # numba compiles no generator
        if labels.readers[one, net] < labels.readers[other, net]:
            return False
    return True


@inner
def _enter(field: Field, labels: Labels, source: int) -> None:
    """Enter the next free label among those of a source, instead of the worse ones, unless it is worse than one."""
    new, label = labels.size[0], labels.first[source]
    while label >= 0:
        if _is_worse(field, labels, new, label):
            return
        label = labels.next[label]
    label, last = labels.first[source], -1
    while label >= 0:
        after = labels.next[label]
        if not _is_worse(field, labels, label, new):
            last = label
        elif last < 0:
            labels.first[source] = after
        else:
            labels.next[last] = after
        label = after
    labels.next[new] = labels.first[source]
    labels.first[source] = new
    labels.size[0] += 1


@inner
def _begin(field: Field, tracked: Tracked, scratch: Reaching, labels: Labels, target: int) -> None:
    """Fill the scratch arrays for a target."""
    for word in range(len(scratch.outside)):
        scratch.outside[word] = ~field.words[target, word]
    for word in range(len(scratch.missing)):
        scratch.missing[word] = 0
    label = labels.first[target]
    while label >= 0:
        for state in range(len(field.above)):
            if field.above[state, labels.state[label]]:
                scratch.missing[state // BITS] |= np.uint64(1) << np.uint64(state % BITS)
        label = labels.next[label]
    note_parts(field.nets, target, scratch.net, True)
    note_parts(field.unordered, target, scratch.block, True)
    labels.open[0] = 0
    for i in range(field.nets.start[target], field.nets.start[target + 1]):
        net = tracked.of_net[field.nets.item[i]]
        if net >= 0 and field.nets.status[i, 1] > 0:
            labels.leaving[labels.open[0]] = net
            labels.open[0] += 1


@inner
def _go_back(
    field: Field, tracked: Tracked, scratch: Reaching, labels: Labels, ends: tuple[int, int, int, float]
) -> int:
    """Extend all labels of a target by one interval on a kind of device; return their number, or -1 without room."""
    kind, source, target, load_s = ends
    count, label = 0, labels.first[target]
    while label >= 0:
        state, new = labels.state[label], labels.size[0]
        count += 1
        if new == len(labels.next):
            return -1
        if field.above[field.stride[kind], state]:
            state -= field.stride[kind]
            seconds = load_s + _extra_s(tracked, labels, source, label, kind)
            busiest_s = max(labels.busiest_s[label], seconds, labels.left_s[source, state])
            if busiest_s <= field.most_s:
                labels.downset[new], labels.state[new], labels.busiest_s[new] = source, state, busiest_s
                labels.came_from[new], labels.by[new] = label, kind
                _count_readers(field, tracked, scratch, labels, source, label)
                _enter(field, labels, source)
        label = labels.next[label]
    return count


@compiled
def retrace(field: Field, sources: Sources, scratch: Reaching, tracked: Tracked, labels: Labels, last: int) -> int:
    """Go back from the downset ``last``, for `LOOK` pairs or so; return the next downset, -1 without room."""
    looked, target = 0, last
    while target > 0 and looked < LOOK:
        if labels.first[target] >= 0:
            _begin(field, tracked, scratch, labels, target)
            stop = np.searchsorted(sources.downset[: sources.size[0]], target)
            for kind in range(len(field.stride)):
                at = np.searchsorted(sources.paid[:stop], field.paid[target] - field.worth[kind])
                looked += stop - at
                while at < stop:
                    for number in range(find_sources(sources, scratch, kind, at, min(at + CHUNK, stop))):
                        source = sources.downset[scratch.within[number]]
                        load_s = interval_s(field, scratch, kind, source, target)
                        if load_s < np.inf:
                            count = _go_back(field, tracked, scratch, labels, (kind, source, target, load_s))
                            if count < 0:
                                return -1
                            looked += count
                    at += CHUNK
            note_parts(field.nets, target, scratch.net, False)
            note_parts(field.unordered, target, scratch.block, False)
        target -= 1
        looked += 1
    return target


class WayBack:
    """The labels of a way back through the downsets of a sweep, with the best placement at its end.

    ``left_s``, [n_downsets, n_states], are the least seconds of the busiest device of those for a downset.
    """

    def __init__(self, field: Field, sources: Sources, scratch: Reaching, left_s: Floats, tracked: Tracked) -> None:
        self._arrays = field, sources, scratch, tracked
        n_downsets, n_states = left_s.shape
        sizes = {"n_downsets": n_downsets, "n_labels": MOST_LABELS, "n_tracked": tracked.written.shape[1]}
        self._labels = zeros(Labels, sizes, first=np.full(n_downsets, -1, dtype=np.int32), left_s=left_s)
        labels = self._labels
        labels.first[-1] = 0
        labels.next[0] = labels.came_from[0] = labels.by[0] = -1
        labels.downset[0], labels.state[0], labels.busiest_s[0] = n_downsets - 1, n_states - 1, field.floor_s
        labels.size[0] = 1

    def go_on(self, last: int) -> int:
        """Go back from a downset for a while; return where it stops, 0 at the end, -1 if there are too many labels."""
        field, sources, scratch, tracked = self._arrays
        return int(retrace(field, sources, scratch, tracked, self._labels, last))

    @property
    def best(self) -> list[tuple[float, list[Interval]]]:
        """The seconds of the best placement's busiest device with its intervals, first one first; empty without one."""
        labels, label = self._labels, int(self._labels.first[0])
        if label < 0:
            return []
        found = []
        while label >= 0:
            found.append(label)
            label = int(labels.next[label])
        label = min(found, key=labels.busiest_s.__getitem__)
        busiest_s, intervals = float(labels.busiest_s[label]), []
        while (before := int(labels.came_from[label])) >= 0:
            intervals.append((int(labels.by[label]), int(labels.downset[label]), int(labels.downset[before])))
            label = before
        return [(busiest_s, intervals)]
