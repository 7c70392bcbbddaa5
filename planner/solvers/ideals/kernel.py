"""Inner loops over ideals: listing them, which nets they cut, and the step from one to the next.

An ideal is a set of elements that holds, with each element, everything before it. Plain functions of arrays, compiled
by numba; why they compute what they do is told in `planner.solvers.ideals.lattice`.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodels.table import Floats, Ints
from planner.solvers.compiled import compiled

Bits: TypeAlias = NDArray[np.bool_]
Words: TypeAlias = NDArray[np.uint64]


class Pins(NamedTuple):
    """Nets, by the elements at their ends; or loose blocks, by the elements that they are tied to.

    Attributes:
        writer: [n_nets], elements; empty for loose blocks.
        start: [n_nets + 1], where the readers of each net start in ``reader``.
        reader: [n_pins], elements.
    """

    writer: Ints
    start: Ints
    reader: Ints


class Order(NamedTuple):
    """What comes before what.

    Attributes:
        start: [n_elements + 1], where the elements right before each one start in ``before``.
        before: [n_relations], elements with smaller numbers.
        pays: [n_elements], 0 or more.
        rest: [n_elements + 1], what each element and all with larger numbers pay.
    """

    start: Ints
    before: Ints
    pays: Floats
    rest: Floats


class Parts(NamedTuple):
    """What each ideal holds a part of, ascending.

    Attributes:
        start: [n_ideals + 1], where the entries of each ideal start.
        what: [n_entries], a net or a loose block.
        status: [n_entries, 2], how much of it; see `open_nets` and `open_loose`.
    """

    start: Ints
    what: Ints
    status: Floats

    @property
    def of_ideal(self) -> Ints:
        """[n_entries], the ideal of each entry."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))


class Toll(NamedTuple):
    """What intervals of ideals cost on one kind of device, in seconds.

    Attributes:
        compute_s: [n_ideals], of everything in an ideal.
        n_bytes: [n_ideals].
        starts_s: [n_ideals], of an interval that starts there, for all that the ideal holds a part of.
        ends_s: [n_ideals], of an interval that ends there.
        enter_s: [n_nets], if it is written outside and read inside.
        leave_s: [n_nets], if it is written inside and read outside.
        alone_s: [n_loose], of computing a loose block.
        near_s: [n_loose], if it is outside and all its neighbours are inside.
        far_s: [n_loose], besides computing, if it is inside and all its neighbours are outside.
        most_s: no interval may cost more.
        room_bytes: nor take more.
    """

    compute_s: Floats
    n_bytes: Floats
    starts_s: Floats
    ends_s: Floats
    enter_s: Floats
    leave_s: Floats
    alone_s: Floats
    near_s: Floats
    far_s: Floats
    most_s: float
    room_bytes: float


class Reached(NamedTuple):
    """Where devices can have got to, and the best way there.

    Attributes:
        ideal: [n_reached].
        busiest_s: [n_reached], the busiest device's seconds up to there.
        came_from: [n_reached], the ideal where the last interval began, or -1.
    """

    ideal: Ints
    busiest_s: Floats
    came_from: Ints


@compiled
def list_ideals(order: Order, spans: Floats, most: int, tried: Ints, paid: Floats, found: Bits) -> int:
    """How many ideals pay what lies within a span; and, if there is room, a row for each.

    Elements are decided in a topological order, first left out, then taken in if everything before them is in. So
    each ideal comes once, the empty one first and the full one last. What cannot end in a span is not pursued.

    Args:
        order: of the elements, and what they pay.
        spans: [n_spans, 2], lower and upper ends.
        most: steps to take at most.
        tried: [n_elements], zeros.
        paid: [n_elements + 1], zeros.
        found: [n_rows, n_elements], what each ideal holds; without rows, they are only counted.

    Returns:
        The number, or -1 if it took too many steps.
    """
    n = len(order.pays)
    count, here, steps = 0, 0, 0
    while here >= 0:
        steps += 1
        if steps > most:
            return -1
        if here == n or tried[here] == 0:
            hope = False
            for span in range(len(spans)):
                hope = hope or (spans[span, 0] <= paid[here] + order.rest[here] and paid[here] <= spans[span, 1])
            if here == n and hope:
                for element in range(n if len(found) > 0 else 0):
                    found[count, element] = tried[element] == 2
                count += 1
            if here == n or not hope:
                here -= 1
                continue
        can = tried[here] == 1
        for pin in range(order.start[here], order.start[here + 1]):
            can = can and tried[order.before[pin]] == 2
        if can or tried[here] == 0:
            paid[here + 1] = paid[here] + (order.pays[here] if can else 0.0)
            tried[here] += 1
            here += 1
        else:
            tried[here] = 0
            here -= 1
    return count


@compiled
def sum_up(ideals: Bits, values: Floats, total: Floats) -> None:
    """Add up the values of the elements of each ideal.

    Args:
        ideals: [n_ideals, n_elements].
        values: [n_elements, n_columns].
        total: [n_ideals, n_columns], zeros; filled.
    """
    for ideal in range(len(ideals)):
        for element in range(len(values)):
            if ideals[ideal, element]:
                for column in range(values.shape[1]):
                    total[ideal, column] += values[element, column]


@compiled
def open_nets(ideals: Bits, pins: Pins, parts: Parts) -> None:
    """Find the nets with some ends in an ideal, not all. Status: how many readers are inside, and writers.

    Args:
        ideals: [n_ideals, n_elements].
        pins: of the nets.
        parts: filled; without room for entries, only the starts.
    """
    count = 0
    for ideal in range(len(ideals)):
        for net in range(len(pins.writer)):
            readers, writers = 0, int(ideals[ideal, pins.writer[net]])
            for pin in range(pins.start[net], pins.start[net + 1]):
                readers += ideals[ideal, pins.reader[pin]]
            if 0 < readers + writers < pins.start[net + 1] - pins.start[net] + 1:
                if len(parts.what) > 0:
                    parts.what[count] = net
                    parts.status[count, 0] = readers
                    parts.status[count, 1] = writers
                count += 1
        parts.start[ideal + 1] = count


@compiled
def open_loose(ideals: Bits, pins: Pins, near_s: Floats, far_s: Floats, closed: Bits, parts: Parts) -> None:
    """Find the loose blocks with some neighbours in an ideal, not all.

    Status: seconds of the neighbours inside if the block is elsewhere, and what it saves by them if it is with them.

    Args:
        ideals: [n_ideals, n_elements].
        pins: of the loose blocks.
        near_s: [n_pins], seconds of a neighbour if the block is elsewhere.
        far_s: [n_pins], seconds of the block if the neighbour is elsewhere.
        closed: [n_ideals, n_loose], filled: whether a block has neighbours, all in the ideal.
        parts: filled; without room for entries, only the starts.
    """
    count = 0
    for ideal in range(len(ideals)):
        for block in range(len(pins.start) - 1):
            inside, near, far = 0, 0.0, 0.0
            for pin in range(pins.start[block], pins.start[block + 1]):
                if ideals[ideal, pins.reader[pin]]:
                    inside += 1
                    near += near_s[pin]
                    far += far_s[pin]
            closed[ideal, block] = 0 < inside == pins.start[block + 1] - pins.start[block]
            if 0 < inside < pins.start[block + 1] - pins.start[block]:
                if len(parts.what) > 0:
                    parts.what[count] = block
                    parts.status[count, 0] = near
                    parts.status[count, 1] = far
                count += 1
        parts.start[ideal + 1] = count


@compiled
def _twice_s(first: int, last: int, nets: Parts, toll: Toll) -> float:
    """Seconds of nets that ``starts_s`` of one ideal and ``ends_s`` of another count, but no interval between pays."""
    here, there = nets.start[first], nets.start[last]
    seconds = 0.0
    while here < nets.start[first + 1] and there < nets.start[last + 1]:
        one, other = nets.what[here], nets.what[there]
        if one == other:
            seconds += toll.leave_s[one]
            if nets.status[here, 0] == nets.status[there, 0] and nets.status[here, 1] == nets.status[there, 1]:
                seconds += toll.enter_s[one]
        here += int(one <= other)
        there += int(other <= one)
    return seconds


@compiled
def _twice_loose_s(first: int, last: int, loose: Parts, toll: Toll) -> float:
    """As `_twice_s`, for loose blocks with neighbours in the first ideal and outside the last."""
    here, there = loose.start[first], loose.start[last]
    seconds = 0.0
    while here < loose.start[first + 1] and there < loose.start[last + 1]:
        one, other = loose.what[here], loose.what[there]
        if one == other:
            near, far, alone = toll.near_s[one], toll.far_s[one], toll.alone_s[one]
            near_first, far_first = loose.status[here, 0], loose.status[here, 1]
            near_last, far_last = loose.status[there, 0], loose.status[there, 1]
            seconds += min(near - near_first, alone + far_first) + min(near_last, alone + far - far_last)
            seconds -= min(near, alone) + min(near_last - near_first, alone + far - far_last + far_first)
        here += int(one <= other)
        there += int(other <= one)
    return seconds


@compiled
def extend(sources: Reached, targets: Reached, words: Words, nets: Parts, loose: Parts, toll: Toll) -> None:
    """Let a device take an interval from a source to a target, for every target in the best way, if that is better.

    Args:
        sources: by their seconds of computing, ascending.
        targets: improved in place.
        words: [n_ideals, n_words], the elements of each ideal, 64 bits a word.
        nets: in part, in each ideal.
        loose: blocks in part, in each ideal.
        toll: what the device costs.
    """
    for place in range(len(targets.ideal)):
        target = targets.ideal[place]
        done_s = toll.compute_s[target]
        low, high = 0, len(sources.ideal)
        while low < high:
            middle = (low + high) // 2
            if toll.compute_s[sources.ideal[middle]] < done_s - toll.most_s:
                low = middle + 1
            else:
                high = middle
        for origin in range(low, len(sources.ideal)):
            source = sources.ideal[origin]
            compute_s = done_s - toll.compute_s[source]
            if compute_s < -1e-9 * toll.most_s:
                break
            if sources.busiest_s[origin] >= targets.busiest_s[place] or compute_s >= targets.busiest_s[place]:
                continue
            if source == target or toll.n_bytes[target] - toll.n_bytes[source] > toll.room_bytes:
                continue
            within = True
            for word in range(words.shape[1]):
                if words[source, word] & ~words[target, word]:
                    within = False
                    break
            if not within:
                continue
            load_s = compute_s + toll.starts_s[source] + toll.ends_s[target]
            load_s -= _twice_s(source, target, nets, toll) + _twice_loose_s(source, target, loose, toll)
            busiest_s = max(sources.busiest_s[origin], load_s)
            if load_s <= toll.most_s and busiest_s < targets.busiest_s[place]:
                targets.busiest_s[place] = busiest_s
                targets.came_from[place] = source
