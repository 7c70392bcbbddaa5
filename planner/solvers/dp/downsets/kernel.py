"""Inner loops over downsets: listing them, finding the nets that they cut, and the recurrence; compiled.

A downset is a set of elements that contains, with each element, everything before it. The formulas are explained in
`planner.solvers.dp.downsets.lattice`.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphs.common.arrays import Floats, Ints
from planner.solvers.compiled import compiled, inner

Bits: TypeAlias = NDArray[np.bool_]
Words: TypeAlias = NDArray[np.uint64]


class Pins(NamedTuple):
    """Nets with the elements at their ends, or unordered blocks with their neighbours among the elements."""

    start: Ints  # [n + 1], where the pins of each net or block start
    element: Ints  # [n_pins], for nets the writer, then the readers


class Order(NamedTuple):
    """The order of the elements, and what each of them pays."""

    start: Ints  # [n_elements + 1], where the elements right before each one start in ``before``
    before: Ints  # [n_relations], elements with smaller numbers
    pays: Floats  # [n_elements], 0 or more
    rest: Floats  # [n_elements + 1], the sum that each element and all later ones pay


class Listing(NamedTuple):
    """The state of `list_downsets`."""

    at: Ints  # [2], the element to decide next, -1 at the end; and the number of downsets so far
    tried: Ints  # [n_elements], choices tried: the first leaves an element out, the second takes it in
    paid: Floats  # [n_elements + 1], the sum that the elements taken in before each one pay


class Parts(NamedTuple):
    """The nets, or the unordered blocks, of which each downset holds a part."""

    start: Ints  # [n_downsets + 1], where the entries of each downset start
    item: Ints  # [n_entries], nets or unordered blocks, ascending for each downset
    status: Floats  # [n_entries, 2], the weights of the pins inside, see `open_parts`

    @property
    def of_downset(self) -> Ints:
        """[n_entries], the downset of each entry."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))


class Penalty(NamedTuple):
    """The cost of intervals between downsets on each kind of device, in seconds; see `Lattice.penalties`."""

    compute_s: Floats  # [n_kinds, n_downsets], computing everything in a downset
    starts_s: Floats  # [n_kinds, n_downsets], the parts in a downset, for an interval that starts there
    ends_s: Floats  # [n_kinds, n_downsets], the same for an interval that ends there
    enter_s: Floats  # [n_kinds, n_nets], a net that is written outside and read inside
    leave_s: Floats  # [n_kinds, n_nets], a net that is written inside and read outside
    alone_s: Floats  # [n_kinds, n_unordered], computing an unordered block
    near_s: Floats  # [n_kinds, n_unordered], the transfers of a block that is outside, with all neighbours inside
    far_s: Floats  # [n_kinds, n_unordered], the transfers of a block that is inside, with all neighbours outside
    parts_s: Floats  # [n_kinds, n_entries, 2], the status of the unordered blocks in part
    room_bytes: Floats  # [n_kinds], bytes that an interval may need at most


class DownsetTable(NamedTuple):
    """The best way to each downset in each state; a state is a count of devices of each kind."""

    open: Bits  # [n_downsets, n_states], whether the devices of a state can have taken a downset
    busiest_s: Floats  # [n_downsets, n_states], the busiest device's seconds up to there
    came_from: NDArray[np.int32]  # [n_downsets, n_states], the downset where the last interval starts, or -1
    by: NDArray[np.int16]  # [n_downsets, n_states], the kind of device of the last interval, or -1


class Field(NamedTuple):
    """The input of `extend`, and its scratch arrays."""

    words: Words  # [n_downsets, n_words], the elements of each downset, 64 bits a word
    n_bytes: Floats  # [n_downsets]
    nets: Parts
    unordered: Parts
    penalty: Penalty
    most_s: float  # seconds that an interval may cost at most
    rank: Ints  # [n_kinds, n_downsets], the downsets by their seconds of computing, ascending
    ranked_s: Floats  # [n_kinds, n_downsets], these seconds
    ranked: Words  # [n_kinds, n_words, n_downsets], the words of the ranked downsets
    within: Ints  # [n_downsets], scratch: places in a rank
    known_s: Floats  # [n_states], scratch: the best seconds of the target so far
    stride: Ints  # [n_kinds], from a state to the state with one more device of a kind
    barred_s: Floats  # [n_kinds, n_states], infinite where no device of a kind is left, else 0


@compiled
def list_downsets(order: Order, spans: Floats, most: int, listing: Listing, rows: Bits) -> bool:
    """Go on with the downsets that pay an amount within a span: count them and, if there are rows, write them down.

    It decides the elements in a topological order: first it leaves an element out, then it takes the element in if
    everything before it is in. So each downset comes once, after all downsets within it: the empty one first, the full
    one last. It does not pursue choices from which no downset within a span follows.

    Args:
        order: of the elements, and what they pay.
        spans: [n_spans, 2], lower and upper ends.
        most: steps to take at most.
        listing: zeros at first; where the listing is.
        rows: [n_downsets, n_elements], filled: whether a downset holds an element; without rows it only counts.

    Returns:
        Whether the listing is complete.
    """
    n, at, tried, paid = len(order.pays), listing.at[0], listing.tried, listing.paid
    for _ in range(most):
        if at < 0:
            break
        if (at == n or tried[at] == 0) and not _can_end(order, spans, paid, at):
            at -= 1
            continue
        if at == n:
            for element in range(n if len(rows) > 0 else 0):
                rows[listing.at[1], element] = tried[element] == 2
            listing.at[1] += 1
            at -= 1
            continue
        takes = tried[at] == 1 and _is_ready(order, tried, at)
        if takes or tried[at] == 0:
            paid[at + 1] = paid[at] + (order.pays[at] if takes else 0.0)
            tried[at] += 1
            at += 1
        else:
            tried[at] = 0
            at -= 1
    listing.at[0] = at
    return bool(at < 0)


@inner
def _can_end(order: Order, spans: Floats, paid: Floats, element: int) -> bool:
    """Return whether the choices before an element leave a total within a span possible."""
    for span in range(len(spans)):
        if spans[span, 0] <= paid[element] + order.rest[element] and paid[element] <= spans[span, 1]:
            return True
    return False


@inner
def _is_ready(order: Order, tried: Ints, element: int) -> bool:
    """Return whether all elements before an element are included."""
    for place in range(order.start[element], order.start[element + 1]):  # noqa: SIM110  # numba compiles no generator
        if tried[order.before[place]] != 2:
            return False
    return True


@compiled
def sum_up(downsets: Bits, values: Floats, total: Floats) -> None:
    """Add up the values of the elements of each downset.

    From ``downsets`` [n_downsets, n_elements] and ``values`` [n_elements, n_columns] it fills ``total`` [n_downsets,
    n_columns].
    """
    for downset in range(len(downsets)):
        for element in range(len(values)):
            if downsets[downset, element]:
                for column in range(values.shape[1]):
                    total[downset, column] += values[element, column]


@compiled
def open_parts(downsets: Bits, pins: Pins, weight: Floats, closed: Bits, parts: Parts) -> None:
    """Find the nets, or the unordered blocks, of which a downset holds some pins, not all.

    Args:
        downsets: [n_downsets, n_elements].
        pins: of the nets, or of the unordered blocks.
        weight: [n_pins, 2], what a pin adds to the status of its net or block if a downset holds the pin.
        closed: [n_downsets, n], filled: whether a net or block has pins, and a downset holds all of them; or no rows.
        parts: filled; without room for entries only the starts.
    """
    count = 0
    for downset in range(len(downsets)):
        for item in range(len(pins.start) - 1):
            inside, first, second = 0, 0.0, 0.0
            for pin in range(pins.start[item], pins.start[item + 1]):
                if downsets[downset, pins.element[pin]]:
                    inside += 1
                    first += weight[pin, 0]
                    second += weight[pin, 1]
            n_pins = pins.start[item + 1] - pins.start[item]
            if len(closed) > 0:
                closed[downset, item] = 0 < inside == n_pins
            if 0 < inside < n_pins:
                if len(parts.item) > 0:
                    parts.item[count] = item
                    parts.status[count, 0] = first
                    parts.status[count, 1] = second
                count += 1
        parts.start[downset + 1] = count


@inner
def _twice_s(field: Field, kind: int, first: int, last: int) -> float:
    """Return seconds of nets in ``starts_s`` of a downset and ``ends_s`` of another that the interval does not pay."""
    nets, penalty = field.nets, field.penalty
    i, j = nets.start[first], nets.start[last]
    seconds = 0.0
    while i < nets.start[first + 1] and j < nets.start[last + 1]:
        net, other = nets.item[i], nets.item[j]
        if net == other:
            seconds += penalty.leave_s[kind, net]
            if nets.status[i, 0] == nets.status[j, 0] and nets.status[i, 1] == nets.status[j, 1]:
                seconds += penalty.enter_s[kind, net]
        i += int(net <= other)
        j += int(other <= net)
    return seconds


@inner
def _twice_unordered_s(field: Field, kind: int, first: int, last: int) -> float:
    """As `_twice_s`, for unordered blocks with neighbours in the first downset and outside the last."""
    unordered, penalty = field.unordered, field.penalty
    i, j = unordered.start[first], unordered.start[last]
    seconds = 0.0
    while i < unordered.start[first + 1] and j < unordered.start[last + 1]:
        block, other = unordered.item[i], unordered.item[j]
        if block == other:
            near, far, alone = penalty.near_s[kind, block], penalty.far_s[kind, block], penalty.alone_s[kind, block]
            near_first, far_first = penalty.parts_s[kind, i, 0], penalty.parts_s[kind, i, 1]
            near_last, far_last = penalty.parts_s[kind, j, 0], penalty.parts_s[kind, j, 1]
            seconds += min(near - near_first, alone + far_first) + min(near_last, alone + far - far_last)
            seconds -= min(near, alone) + min(near_last - near_first, alone + far - far_last + far_first)
        i += int(block <= other)
        j += int(other <= block)
    return seconds


@inner
def _load_s(field: Field, kind: int, source: int, target: int, compute_s: float) -> float:
    """Return seconds of a device that takes the interval from a source to a target; infinite where it cannot."""
    if source == target or field.n_bytes[target] - field.n_bytes[source] > field.penalty.room_bytes[kind]:
        return np.inf
    load_s = compute_s + field.penalty.starts_s[kind, source] + field.penalty.ends_s[kind, target]
    load_s -= _twice_s(field, kind, source, target) + _twice_unordered_s(field, kind, source, target)
    return float(load_s if load_s <= field.most_s else np.inf)


@inner
def _find_within(field: Field, kind: int, target: int, first: int, last: int) -> int:
    """Write down the places of a rank that hold a downset within the target; return their number.

    The loop has no branch, since the processor would mispredict it for every second downset.
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
        outside, n_before, count = ~field.words[target, word], count, 0
        for number in range(n_before):
            place = field.within[number]
            field.within[count] = place
            count += (field.ranked[kind, word, place] & outside) == 0
    return count


@inner
def _helps(field: Field, reached: DownsetTable, kind: int, source: int, load_s: float) -> bool:
    """Return whether a way from a source, with one device more and such a load, is better for any state."""
    before_s, barred_s = reached.busiest_s[source], field.barred_s[kind]
    known_s, helps = field.known_s[field.stride[kind] :], False
    for state in range(len(known_s)):
        helps |= max(before_s[state] + barred_s[state], load_s) < known_s[state]
    return helps


@inner
def _reach(field: Field, reached: DownsetTable, kind: int, target: int) -> int:
    """Let a kind of device take the last interval of a target, from every source; return the number of candidates."""
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
def extend(field: Field, reached: DownsetTable, first: int, most: int) -> int:
    """Find the best way to each downset from the first one on; return the downset at which it stops.

    A downset comes after all downsets within it. It stops after ``most`` pairs of downsets.
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
