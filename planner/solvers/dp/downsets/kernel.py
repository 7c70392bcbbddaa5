"""Inner loops of the recurrence over downsets, compiled; the formulas are in `planner.solvers.dp.downsets.lattice`."""

from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphs.common.arrays import Floats, Ints
from planner.solvers.compiled import compiled, inner
from planner.solvers.dp.downsets.listing import Bits, Parts

Words: TypeAlias = NDArray[np.uint64]

CHUNK = 512  # sources that are looked through before it asks again what is missing
BITS = 64  # of a word


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
    """The input of `extend`."""

    words: Words  # [n_downsets, n_words], the elements of each downset, 64 bits a word
    n_bytes: Floats  # [n_downsets]
    paid: Floats  # [n_downsets], ascending: what the elements of a downset pay
    worth: Floats  # [n_kinds], what an interval on each kind of device pays at most
    nets: Parts
    unordered: Parts
    penalty: Penalty
    most_s: float  # seconds that an interval may cost at most
    floor_s: float  # seconds of the busiest device below which less is no better
    stride: Ints  # [n_kinds], from a state to the state with one more device of a kind
    barred: Bits  # [n_kinds, n_states], whether no device of a kind is left
    above: Bits  # [n_states, n_states], whether the second state has at least the devices of the first one


class Sources(NamedTuple):
    """The downsets that some devices have taken so far, in the order in which they were reached."""

    size: Annotated[Ints, 1]  # the number of them
    downset: Annotated[Ints, "n_downsets"]
    paid: Annotated[Floats, "n_downsets"]
    words: Annotated[Words, "n_words", "n_downsets"]
    leads_to: Annotated[Words, "n_kinds", "n_state_words", "n_downsets"]  # states with a device of a kind more, as bits


class Reaching(NamedTuple):
    """Reaching arrays for the downset that is being reached."""

    known_s: Annotated[Floats, "n_states"]  # the best seconds so far; minus infinity where nothing better matters
    missing: Annotated[Words, "n_state_words"]  # the states, as bits, where something better matters
    outside: Annotated[Words, "n_words"]  # the elements that it does not hold
    within: Annotated[Ints, CHUNK]  # places of sources
    net: Annotated[Ints, "n_nets"]  # the entry of each net of which the downset holds a part, else -1
    block: Annotated[Ints, "n_unordered"]  # the same for unordered blocks


@inner
def _twice_s(field: Field, scratch: Reaching, kind: int, source: int) -> float:
    """Return seconds of nets in ``starts_s`` of the source and ``ends_s`` of the target that no interval pays."""
    nets, penalty, seconds = field.nets, field.penalty, 0.0
    for i in range(nets.start[source], nets.start[source + 1]):
        net = nets.item[i]
        j = scratch.net[net]
        if j >= 0:
            seconds += penalty.leave_s[kind, net]
            if nets.status[i, 0] == nets.status[j, 0] and nets.status[i, 1] == nets.status[j, 1]:
                seconds += penalty.enter_s[kind, net]
    return seconds


@inner
def _twice_unordered_s(field: Field, scratch: Reaching, kind: int, source: int) -> float:
    """As `_twice_s`, for unordered blocks with neighbours in the source and outside the target."""
    unordered, penalty, seconds = field.unordered, field.penalty, 0.0
    for i in range(unordered.start[source], unordered.start[source + 1]):
        block = unordered.item[i]
        j = scratch.block[block]
        if j >= 0:
            near, far, alone = penalty.near_s[kind, block], penalty.far_s[kind, block], penalty.alone_s[kind, block]
            near_first, far_first = penalty.parts_s[kind, i, 0], penalty.parts_s[kind, i, 1]
            near_last, far_last = penalty.parts_s[kind, j, 0], penalty.parts_s[kind, j, 1]
            seconds += min(near - near_first, alone + far_first) + min(near_last, alone + far - far_last)
            seconds -= min(near, alone) + min(near_last - near_first, alone + far - far_last + far_first)
    return seconds


@inner
def interval_s(field: Field, scratch: Reaching, kind: int, source: int, target: int) -> float:
    """Return seconds of a device that takes the interval from a source to a target; infinite where it cannot."""
    penalty = field.penalty
    load_s = penalty.compute_s[kind, target] - penalty.compute_s[kind, source]
    if load_s > field.most_s or field.n_bytes[target] - field.n_bytes[source] > penalty.room_bytes[kind]:
        return np.inf
    load_s += penalty.starts_s[kind, source] + penalty.ends_s[kind, target]
    load_s -= _twice_s(field, scratch, kind, source) + _twice_unordered_s(field, scratch, kind, source)
    return float(load_s if load_s <= field.most_s else np.inf)


@inner
def note_parts(parts: Parts, downset: int, entry: Ints, present: bool) -> None:
    """Write down the entry of each net or block of which a downset holds a part, or -1 again."""
    for i in range(parts.start[downset], parts.start[downset + 1]):
        entry[parts.item[i]] = i if present else -1


@inner
def _find_within(sources: Sources, scratch: Reaching, kind: int, first: int, last: int) -> int:
    """As `find_sources`, for states of one word.

    The loops have no branch, since the processor would mispredict it for every second downset.
    """
    outside, missing, count = scratch.outside, scratch.missing[0], 0
    for place in range(first, last):
        scratch.within[count] = place
        leads = sources.leads_to[kind, 0, place] & missing
        count += int(leads != 0) & int((sources.words[0, place] & outside[0]) == 0)
    for word in range(1, len(outside)):
        n_before, count, other = count, 0, outside[word]
        for number in range(n_before):
            place = scratch.within[number]
            scratch.within[count] = place
            count += (sources.words[word, place] & other) == 0
    return count


@inner
def _find_within_many(sources: Sources, scratch: Reaching, kind: int, first: int, last: int) -> int:
    """As `find_sources`, for states of several words."""
    outside, count = scratch.outside, 0
    for place in range(first, last):
        leads = np.uint64(0)
        for word in range(len(scratch.missing)):
            leads |= sources.leads_to[kind, word, place] & scratch.missing[word]
        beyond = np.uint64(0)
        for word in range(len(outside)):
            beyond |= sources.words[word, place] & outside[word]
        if leads != 0 and beyond == 0:
            scratch.within[count] = place
            count += 1
    return count


@inner
def find_sources(sources: Sources, scratch: Reaching, kind: int, first: int, last: int) -> int:
    """Write down the places of sources within a target that lead to a missing state; return their number."""
    if len(scratch.missing) == 1:
        return int(_find_within(sources, scratch, kind, first, last))
    return int(_find_within_many(sources, scratch, kind, first, last))


@inner
def _reach(field: Field, sources: Sources, scratch: Reaching, reached: DownsetTable, ends: tuple[int, int, int]) -> int:
    """Let a kind of device take the last interval of a target; return the number of sources looked through.

    ``ends`` are the kind, the target and the first place of a source that pays enough.
    """
    kind, target, first = ends
    n_sources, stride, at = sources.size[0], field.stride[kind], first
    while at < n_sources and _any(scratch.missing):
        last = min(at + CHUNK, n_sources)
        for number in range(find_sources(sources, scratch, kind, at, last)):
            source = sources.downset[scratch.within[number]]
            load_s = interval_s(field, scratch, kind, source, target)
            for state in range(len(scratch.known_s) - stride if load_s < np.inf else 0):
                busiest_s = max(reached.busiest_s[source, state], load_s)
                if busiest_s < scratch.known_s[state + stride] and not field.barred[kind, state]:
                    reached.busiest_s[target, state + stride] = busiest_s
                    reached.came_from[target, state + stride] = source
                    reached.by[target, state + stride] = kind
                    _learn(field, scratch, state + stride, busiest_s)
        at = last
    return int(at - first)


@inner
def _any(words: Words) -> bool:
    """Return whether any bit is set."""
    for word in range(len(words)):  # noqa: SIM110  # numba compiles no generator
        if words[word]:
            return True
    return False


@inner
def _learn(field: Field, scratch: Reaching, state: int, busiest_s: float) -> None:
    """Take a better way to a state: more devices for as many seconds do not matter, nor do fewer than the floor."""
    for other in range(len(scratch.known_s)):
        if field.above[state, other] and busiest_s < scratch.known_s[other]:
            scratch.known_s[other] = busiest_s
            if busiest_s <= field.floor_s:
                scratch.known_s[other] = -np.inf
                scratch.missing[other // BITS] &= ~(np.uint64(1) << np.uint64(other % BITS))


@inner
def _begin(field: Field, scratch: Reaching, reached: DownsetTable, target: int) -> None:
    """Fill the scratch arrays for a target."""
    for word in range(len(scratch.outside)):
        scratch.outside[word] = ~field.words[target, word]
    for word in range(len(scratch.missing)):
        scratch.missing[word] = 0
    for state in range(len(scratch.known_s)):
        scratch.known_s[state] = np.inf if reached.open[target, state] else -np.inf
        if reached.open[target, state]:
            scratch.missing[state // BITS] |= np.uint64(1) << np.uint64(state % BITS)
    for state in range(len(scratch.known_s)):
        if reached.busiest_s[target, state] < np.inf:
            _learn(field, scratch, state, reached.busiest_s[target, state])
    note_parts(field.nets, target, scratch.net, True)
    note_parts(field.unordered, target, scratch.block, True)


@inner
def _enter(field: Field, sources: Sources, reached: DownsetTable, target: int) -> None:
    """Make a source of a target that some devices can have taken."""
    place, found = sources.size[0], False
    for state in range(reached.open.shape[1]):
        if reached.busiest_s[target, state] == np.inf:
            continue
        found = True
        for kind in range(len(field.stride)):
            if not field.barred[kind, state]:
                leads = state + field.stride[kind]
                sources.leads_to[kind, leads // BITS, place] |= np.uint64(1) << np.uint64(leads % BITS)
    if found:
        sources.downset[place], sources.paid[place] = target, field.paid[target]
        for word in range(field.words.shape[1]):
            sources.words[word, place] = field.words[target, word]
        sources.size[0] += 1


@compiled
def extend(field: Field, sources: Sources, scratch: Reaching, reached: DownsetTable, first: int, most: int) -> int:
    """Find the best way to each downset from the first one on; return the downset at which it stops.

    A downset comes after all downsets within it. It stops after it has looked at ``most`` pairs of downsets.
    """
    looked, target = 0, first
    while target < len(reached.open) and looked < most:
        _begin(field, scratch, reached, target)
        for kind in range(len(field.stride)):
            start = np.searchsorted(sources.paid[: sources.size[0]], field.paid[target] - field.worth[kind])
            looked += _reach(field, sources, scratch, reached, (kind, target, start))
        note_parts(field.nets, target, scratch.net, False)
        note_parts(field.unordered, target, scratch.block, False)
        _enter(field, sources, reached, target)
        looked += 1
        target += 1
    return target
