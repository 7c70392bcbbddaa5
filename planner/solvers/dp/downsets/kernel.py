"""Inner loops over downsets: listing them, which nets they cut, and the step from one to the next.

An downset is a set of elements that holds, with each element, everything before it. Plain functions of arrays, compiled
by numba; why they compute what they do is told in `planner.solvers.dp.downsets.lattice`.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodels.table import Floats, Ints
from planner.solvers.compiled import compiled

Bits: TypeAlias = NDArray[np.bool_]
Words: TypeAlias = NDArray[np.uint64]


class Pins(NamedTuple):
    """Nets, by the elements at their ends; or unordered blocks, by the elements that they are tied to."""

    writer: Ints  # [n_nets], elements; empty for unordered blocks
    start: Ints  # [n_nets + 1], where the readers of each net start in ``reader``
    reader: Ints  # [n_pins], elements


class Order(NamedTuple):
    """What comes before what."""

    start: Ints  # [n_elements + 1], where the elements right before each one start in ``before``
    before: Ints  # [n_relations], elements with smaller numbers
    pays: Floats  # [n_elements], 0 or more
    rest: Floats  # [n_elements + 1], what each element and all with larger numbers pay


class Listing(NamedTuple):
    """How far `list_downsets` has got."""

    at: Ints  # [2], the element that is decided next, -1 at the end; and how many downsets there were
    # [n_elements], how many choices have been tried: the first leaves an element out, the second takes it in
    tried: Ints
    paid: Floats  # [n_elements + 1], by what is taken in of everything before each element


class Parts(NamedTuple):
    """What each downset holds a part of, ascending."""

    start: Ints  # [n_downsets + 1], where the entries of each downset start
    what: Ints  # [n_entries], a net or an unordered block
    status: Floats  # [n_entries, 2], how much of it; see `open_nets` and `open_unordered`

    @property
    def of_downset(self) -> Ints:
        """[n_entries], the downset of each entry."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))


class Penalty(NamedTuple):
    """What intervals of downsets cost on each kind of device, in seconds."""

    compute_s: Floats  # [n_kinds, n_downsets], of everything in a downset
    # [n_kinds, n_downsets], of an interval that starts there, for all that the downset holds a part of
    starts_s: Floats
    ends_s: Floats  # [n_kinds, n_downsets], of an interval that ends there
    enter_s: Floats  # [n_kinds, n_nets], if it is written outside and read inside
    leave_s: Floats  # [n_kinds, n_nets], if it is written inside and read outside
    alone_s: Floats  # [n_kinds, n_unordered], of computing an unordered block
    near_s: Floats  # [n_kinds, n_unordered], if it is outside and all its neighbours are inside
    far_s: Floats  # [n_kinds, n_unordered], besides computing, if it is inside and all its neighbours are outside
    parts_s: Floats  # [n_kinds, n_entries, 2], of the unordered blocks in part; see `open_unordered`
    room_bytes: Floats  # [n_kinds], no interval may take more


class Reached(NamedTuple):
    """The best way to each downset with each count of devices, which is a state."""

    open: Bits  # [n_downsets, n_states], whether a state may have taken a downset
    busiest_s: Floats  # [n_downsets, n_states], the busiest device's seconds up to there
    came_from: NDArray[np.int32]  # [n_downsets, n_states], the downset where the last interval began, or -1
    by: NDArray[np.int16]  # [n_downsets, n_states], the kind of device that took it, or -1


class Field(NamedTuple):
    """What `extend` looks at."""

    words: Words  # [n_downsets, n_words], the elements of each downset, 64 bits a word
    n_bytes: Floats  # [n_downsets]
    nets: Parts  # in part, in each downset
    unordered: Parts  # blocks in part, in each downset
    penalty: Penalty  # what devices cost
    most_s: float  # no interval may cost more
    rank: Ints  # [n_kinds, n_downsets], the downsets by their seconds of computing, ascending
    ranked_s: Floats  # [n_kinds, n_downsets], these
    ranked: Words  # [n_kinds, n_words, n_downsets], the words
    within: Ints  # [n_downsets], places in a rank; to write on
    known_s: Floats  # [n_states], what is to be improved of a target; to write on
    stride: Ints  # [n_kinds], how far away the state with one device of a kind more is
    barred_s: Floats  # [n_kinds, n_states], infinite where there is no device of a kind left, else 0


@compiled
def list_downsets(order: Order, spans: Floats, most: int, listing: Listing, found: Bits) -> bool:
    """Go on with the downsets that pay what lies within a span: count them and, if there is room, write a row for each.

    Elements are decided in a topological order, first left out, then taken in if everything before them is in. So
    each downset comes once, behind all that it holds, the empty one first and the full one last. What cannot end in a
    span is not pursued.

    Args:
        order: of the elements, and what they pay.
        spans: [n_spans, 2], lower and upper ends.
        most: steps to take at most.
        listing: from zeros on; moved on.
        found: [n_rows, n_elements], what each downset holds; without rows, they are only counted.

    Returns:
        Whether it has come to the end.
    """
    n, here, tried, paid = len(order.pays), listing.at[0], listing.tried, listing.paid
    for _ in range(most):
        if here < 0:
            break
        if here == n or tried[here] == 0:
            hope = False
            for span in range(len(spans)):
                hope = hope or (spans[span, 0] <= paid[here] + order.rest[here] and paid[here] <= spans[span, 1])
            if here == n and hope:
                for element in range(n if len(found) > 0 else 0):
                    found[listing.at[1], element] = tried[element] == 2
                listing.at[1] += 1
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
    listing.at[0] = here
    return bool(here < 0)


@compiled
def sum_up(downsets: Bits, values: Floats, total: Floats) -> None:
    """Add up the values of the elements of each downset.

    Args:
        downsets: [n_downsets, n_elements].
        values: [n_elements, n_columns].
        total: [n_downsets, n_columns], zeros; filled.
    """
    for downset in range(len(downsets)):
        for element in range(len(values)):
            if downsets[downset, element]:
                for column in range(values.shape[1]):
                    total[downset, column] += values[element, column]


@compiled
def open_nets(downsets: Bits, pins: Pins, parts: Parts) -> None:
    """Find the nets with some ends in a downset, not all. Status: how many readers are inside, and writers.

    Args:
        downsets: [n_downsets, n_elements].
        pins: of the nets.
        parts: filled; without room for entries, only the starts.
    """
    count = 0
    for downset in range(len(downsets)):
        for net in range(len(pins.writer)):
            readers, writers = 0, int(downsets[downset, pins.writer[net]])
            for pin in range(pins.start[net], pins.start[net + 1]):
                readers += downsets[downset, pins.reader[pin]]
            if 0 < readers + writers < pins.start[net + 1] - pins.start[net] + 1:
                if len(parts.what) > 0:
                    parts.what[count] = net
                    parts.status[count, 0] = readers
                    parts.status[count, 1] = writers
                count += 1
        parts.start[downset + 1] = count


@compiled
def open_unordered(downsets: Bits, pins: Pins, near_s: Floats, far_s: Floats, closed: Bits, parts: Parts) -> None:
    """Find the unordered blocks with some neighbours in a downset, not all.

    Status: seconds of the neighbours inside if the block is elsewhere, and what it saves by them if it is with them.

    Args:
        downsets: [n_downsets, n_elements].
        pins: of the unordered blocks.
        near_s: [n_pins], seconds of a neighbour if the block is elsewhere.
        far_s: [n_pins], seconds of the block if the neighbour is elsewhere.
        closed: [n_downsets, n_unordered], filled: whether a block has neighbours, all in the downset.
        parts: filled; without room for entries, only the starts.
    """
    count = 0
    for downset in range(len(downsets)):
        for block in range(len(pins.start) - 1):
            inside, near, far = 0, 0.0, 0.0
            for pin in range(pins.start[block], pins.start[block + 1]):
                if downsets[downset, pins.reader[pin]]:
                    inside += 1
                    near += near_s[pin]
                    far += far_s[pin]
            closed[downset, block] = 0 < inside == pins.start[block + 1] - pins.start[block]
            if 0 < inside < pins.start[block + 1] - pins.start[block]:
                if len(parts.what) > 0:
                    parts.what[count] = block
                    parts.status[count, 0] = near
                    parts.status[count, 1] = far
                count += 1
        parts.start[downset + 1] = count


@compiled
def _twice_s(field: Field, kind: int, first: int, last: int) -> float:
    """Seconds of nets that ``starts_s`` of a downset and ``ends_s`` of another count, but no interval between pays."""
    nets, penalty = field.nets, field.penalty
    here, there = nets.start[first], nets.start[last]
    seconds = 0.0
    while here < nets.start[first + 1] and there < nets.start[last + 1]:
        one, other = nets.what[here], nets.what[there]
        if one == other:
            seconds += penalty.leave_s[kind, one]
            if nets.status[here, 0] == nets.status[there, 0] and nets.status[here, 1] == nets.status[there, 1]:
                seconds += penalty.enter_s[kind, one]
        here += int(one <= other)
        there += int(other <= one)
    return seconds


@compiled
def _twice_unordered_s(field: Field, kind: int, first: int, last: int) -> float:
    """As `_twice_s`, for unordered blocks with neighbours in the first downset and outside the last."""
    unordered, penalty = field.unordered, field.penalty
    here, there = unordered.start[first], unordered.start[last]
    seconds = 0.0
    while here < unordered.start[first + 1] and there < unordered.start[last + 1]:
        one, other = unordered.what[here], unordered.what[there]
        if one == other:
            near, far, alone = penalty.near_s[kind, one], penalty.far_s[kind, one], penalty.alone_s[kind, one]
            near_first, far_first = penalty.parts_s[kind, here, 0], penalty.parts_s[kind, here, 1]
            near_last, far_last = penalty.parts_s[kind, there, 0], penalty.parts_s[kind, there, 1]
            seconds += min(near - near_first, alone + far_first) + min(near_last, alone + far - far_last)
            seconds -= min(near, alone) + min(near_last - near_first, alone + far - far_last + far_first)
        here += int(one <= other)
        there += int(other <= one)
    return seconds


@compiled
def _load_s(field: Field, kind: int, source: int, target: int, compute_s: float) -> float:
    """Seconds of a device that takes the interval from a source to a target; infinite where it cannot."""
    if source == target or field.n_bytes[target] - field.n_bytes[source] > field.penalty.room_bytes[kind]:
        return np.inf
    load_s = compute_s + field.penalty.starts_s[kind, source] + field.penalty.ends_s[kind, target]
    load_s -= _twice_s(field, kind, source, target) + _twice_unordered_s(field, kind, source, target)
    return float(load_s if load_s <= field.most_s else np.inf)


@compiled
def _find_within(field: Field, kind: int, target: int, first: int, last: int) -> int:
    """Write down which places of a rank hold a downset within the target; return how many.

    The loop does without a branch, which would be guessed wrong for every other downset.
    """
    n_words, count = field.words.shape[1], 0
    if n_words == 1:
        outside = ~field.words[target, 0]
        for place in range(first, last):
            field.within[count] = place
            count += (field.ranked[kind, 0, place] & outside) == 0
        return count
    outside, other = ~field.words[target, 0], ~field.words[target, 1]
    for place in range(first, last):
        field.within[count] = place
        count += ((field.ranked[kind, 0, place] & outside) | (field.ranked[kind, 1, place] & other)) == 0
    for word in range(2, n_words):
        outside, found, count = ~field.words[target, word], count, 0
        for number in range(found):
            place = field.within[number]
            field.within[count] = place
            count += (field.ranked[kind, word, place] & outside) == 0
    return count


@compiled
def _helps(field: Field, reached: Reached, kind: int, source: int, load_s: float) -> bool:
    """Whether a way from a source with one device more and such a load is better for any state."""
    before_s, barred_s = reached.busiest_s[source], field.barred_s[kind]
    known_s, helps = field.known_s[field.stride[kind] :], False
    for state in range(len(known_s)):
        helps |= max(before_s[state] + barred_s[state], load_s) < known_s[state]
    return helps


@compiled
def _reach(field: Field, reached: Reached, kind: int, target: int) -> int:
    """Let a kind of device take the last interval of a target, from every source; return how many there may be."""
    done_s, ranked_s, stride = field.penalty.compute_s[kind, target], field.ranked_s[kind], field.stride[kind]
    first = np.searchsorted(ranked_s, done_s - field.most_s)
    last = np.searchsorted(ranked_s, done_s + 1e-9 * field.most_s, side="right")
    for number in range(_find_within(field, kind, target, first, last)):
        place = field.within[number]
        source, compute_s = field.rank[kind, place], done_s - ranked_s[place]
        if not _helps(field, reached, kind, source, compute_s):
            continue
        load_s = _load_s(field, kind, source, target, compute_s)
        for state in range(field.known_s.shape[0] - stride if load_s < np.inf else 0):
            busiest_s = max(reached.busiest_s[source, state] + field.barred_s[kind, state], load_s)
            if busiest_s < field.known_s[state + stride]:
                field.known_s[state + stride] = busiest_s
                reached.came_from[target, state + stride] = source
                reached.by[target, state + stride] = kind
    return int(1 + last - first)


@compiled
def extend(field: Field, reached: Reached, first: int, most: int) -> int:
    """Find the best way to each downset from the first one on; return the one after the last that it has got to.

    Args:
        field: what there is; a downset comes behind all that it holds.
        reached: all before the first downset is; filled in.
        first: the downset to begin with.
        most: pairs of downsets after which it goes on to no further one.
    """
    pairs, target = 0, first
    while target < len(reached.open) and pairs < most:
        for state in range(reached.open.shape[1]):
            is_open = reached.open[target, state]
            field.known_s[state] = reached.busiest_s[target, state] if is_open else -np.inf
        for kind in range(len(field.stride)):
            pairs += _reach(field, reached, kind, target)
        for state in range(reached.open.shape[1]):
            if reached.open[target, state]:
                reached.busiest_s[target, state] = field.known_s[state]
        target += 1
    return target
