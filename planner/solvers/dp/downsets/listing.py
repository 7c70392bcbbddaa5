"""Inner loops that list downsets and find the nets, or the unordered blocks, that they cut; compiled.

A downset is a set of elements that contains, with each element, everything before it.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphs.common.arrays import Floats, Ints
from planner.solvers.compiled import compiled, inner

Bits: TypeAlias = NDArray[np.bool_]


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
