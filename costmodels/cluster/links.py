"""Links between devices: one for each pair, or levels of a hierarchy, which need no list of pairs.

::

    [[level]] size = 4       d0 d1 d2 d3 │ d4 d5 d6 d7 │ ...      4 neighbours are joined, as in a host
    [[level]] size = 1024    └───────────┴─────────────┴ ...      all are joined; a message between two devices goes
                             by way of the smallest level that joins them
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import isfinite
from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Floats, Ints
from graphs.common.brief import brief
from graphs.common.checks import check_fields
from graphs.common.errors import InputError


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two devices: n bytes take ``latency_s + n / bytes_per_s``, or the measured time.

    Attributes:
        src: name of the sending device.
        dst: name of the receiving device.
        bytes_per_s: bandwidth; infinite for a link without copies.
        latency_s: seconds of an empty message.
        channel: name of the bus or cable that several links share; empty for a separate channel.
        points: measured (bytes, seconds), sizes ascending. Times are interpolated between two points and extrapolated
            beyond the last two, and never descend. Empty for a link that was not measured.
        via: description of the carrier: "threads" of one process, "gloo", the name of a catalogue, or nothing.
    """

    src: str
    dst: str
    bytes_per_s: float
    latency_s: float = 0.0
    channel: str = ""
    points: tuple[tuple[float, float], ...] = ()
    via: str = ""

    __repr__ = brief

    def __post_init__(self) -> None:
        where = f"link '{self.src}' to '{self.dst}'"
        check_fields(self, where)
        if self.src == self.dst:
            raise InputError(f"{where} joins a device to itself; that costs nothing and needs no link")
        if not self.bytes_per_s > 0:
            raise InputError(f"{where} has the bandwidth {self.bytes_per_s}; it must be more than 0")
        check_not_negative(where, "latency", self.latency_s)
        _check_points(where, self.points)

    def seconds(self, n_bytes: Floats) -> Floats:
        """[n], the one-way time of messages of these sizes, [n]."""
        n_bytes = np.asarray(n_bytes, dtype=float)
        if not self.points:
            return np.asarray(self.latency_s + n_bytes / self.bytes_per_s)
        sizes, times = np.asarray(self.points, dtype=float).T
        if len(sizes) == 1:
            return np.full(n_bytes.shape, times[0])
        slope = max(0.0, (times[-1] - times[-2]) / (sizes[-1] - sizes[-2]))
        return np.asarray(np.interp(n_bytes, sizes, times) + slope * np.maximum(0.0, n_bytes - sizes[-1]))


@dataclass(frozen=True, slots=True)
class Level:
    """Groups of neighbouring devices, joined by equal links between the groups of the level below.

    Attributes:
        size: devices of each group; the groups of the lowest level join single devices.
        bytes_per_s: bandwidth of a link; a device of the lowest level, or a card, sends no more than that at once.
        latency_s: seconds of an empty message.
        cards: network cards of each group of the level below, which its devices share equally.
        via: description of the carrier, such as the name of a catalogue.

    Raises:
        InputError: for a size below 2, less than one card, no bandwidth, or a negative latency.
    """

    size: int
    bytes_per_s: float
    latency_s: float = 0.0
    cards: int = 1
    via: str = ""

    def __post_init__(self) -> None:
        where = f"level of size {self.size}"
        check_fields(self, where)
        if self.size < 2:
            raise InputError(f"{where} joins nothing; its size must be 2 or more devices")
        if self.cards < 1:
            raise InputError(f"{where} has cards = {self.cards}; it must be 1 or more")
        if not self.bytes_per_s > 0:
            raise InputError(f"{where} has the bandwidth {self.bytes_per_s}; it must be more than 0")
        check_not_negative(where, "latency", self.latency_s)


def check_levels(levels: Sequence[Level], n_devices: int) -> None:
    """Check that each level divides the next one, and that the last one joins all devices.

    Raises:
        InputError: for levels that do not fit together.
    """
    below = 1
    for level in levels:
        if level.size % below or level.size == below:
            raise InputError(f"a level of size {level.size} is not several times the level of size {below} below it")
        if below % level.cards:
            raise InputError(
                f"level of size {level.size} has cards = {level.cards}, which {below} devices cannot share equally; "
                "keep a number that divides them"
            )
        below = level.size
    if levels and below < n_devices:
        raise InputError(f"the levels join {below} devices of {n_devices}; add a [[level]] of size {n_devices}")


class WiredPairs(NamedTuple):
    """Every ordered pair of devices by numbers; −1 for pairs without a link."""

    link_class: Ints  # [n_devices, n_devices], pairs with the same times share a number
    channel: Ints  # [n_devices, n_devices], pairs that share a bus, cable or card share a number
    examples: tuple[Link, ...]  # a link of each class


def wired_pairs(link: Mapping[tuple[int, int], Link], n_devices: int) -> WiredPairs:
    """The pairs of links; the numbers ascend in the order of the pairs."""
    if isinstance(link, LevelLinks):
        return link.wired_pairs()
    link_class, channel = (np.full((n_devices, n_devices), -1, dtype=np.int64) for _ in range(2))
    channels: dict[object, int] = {}
    kinds: dict[tuple[object, ...], int] = {}
    examples: list[Link] = []
    for pair, each in sorted(link.items()):
        channel[pair] = channels.setdefault(each.channel or pair, len(channels))
        alike = (each.bytes_per_s, each.latency_s, each.points)
        link_class[pair] = kinds.setdefault(alike, len(kinds))
        if link_class[pair] == len(examples):
            examples.append(each)
    return WiredPairs(link_class, channel, tuple(examples))


class LevelLinks(Mapping[tuple[int, int], Link]):
    """The links of a hierarchy by the numbers of their ends, each made when it is asked for."""

    def __init__(self, names: Sequence[str], levels: Sequence[Level]) -> None:
        self._names, self._levels = names, levels
        self._below = (1, *(level.size for level in levels))

    def __getitem__(self, ends: tuple[int, int]) -> Link:
        if ends not in self:
            raise KeyError(ends)
        src, dst = ends
        number, level = next((k, each) for k, each in enumerate(self._levels) if src // each.size == dst // each.size)
        sharers = self._below[number] // level.cards
        sender = self._names[src // sharers * sharers]
        channel = f"from {sender}" if number == 0 else f"from {sender} ({level.size})"
        return Link(
            self._names[src], self._names[dst], level.bytes_per_s, level.latency_s, channel=channel, via=level.via
        )

    def __contains__(self, ends: object) -> bool:
        n = len(self._names) if self._levels else 0
        match ends:
            case (int(src), int(dst)):
                return src != dst and 0 <= src < n and 0 <= dst < n
        return False

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return permutations(range(len(self._names) if self._levels else 0), 2)

    def __len__(self) -> int:
        return len(self._names) * (len(self._names) - 1) if self._levels else 0

    def wired_pairs(self) -> WiredPairs:
        """The pairs as arrays, without a link for each."""
        n = len(self._names)
        device = np.arange(n)
        joins, channel = (np.full((n, n), -1, dtype=np.int64) for _ in range(2))
        for number, level in reversed(list(enumerate(self._levels))):
            senders = device // (self._below[number] // level.cards) + number * n
            for start in range(0, n, level.size):
                group = slice(start, start + level.size)
                joins[group, group] = number
                channel[group, group] = senders[group, None]
        for pairs in (joins, channel):
            np.fill_diagonal(pairs, -1)
        classes: dict[tuple[float, float], int] = {}
        examples: list[Link] = []
        class_of = np.full(len(self._levels) + 1, -1, dtype=np.int64)  # of each level, and last of no link
        for dst in range(1, n):  # the first device is joined by every level, and by each in the order of the pairs
            level = self._levels[number := int(joins[0, dst])]
            kind = classes.setdefault((level.bytes_per_s, level.latency_s), len(classes))
            class_of[number] = kind
            if kind == len(examples):
                examples.append(self[0, dst])
        return WiredPairs(class_of[joins], _renumbered(channel), tuple(examples))


def _renumbered(numbers: Ints) -> Ints:
    """The same groups with numbers from 0 in the order in which they appear; −1 stays."""
    known = {number: rank for rank, number in enumerate(dict.fromkeys(numbers[numbers >= 0].tolist()))}
    ranks = np.full(int(numbers.max(initial=-1)) + 2, -1, dtype=np.int64)
    ranks[list(known)] = list(known.values())
    return ranks[numbers]


def _check_points(where: str, points: tuple[tuple[float, float], ...]) -> None:
    for n_bytes, seconds in points:
        check_not_negative(where, "a point's size", n_bytes)
        check_not_negative(where, "a point's time", seconds)
    if any(later[0] <= earlier[0] for earlier, later in pairwise(points)):
        raise InputError(f"{where} has points whose sizes do not ascend; sort them, one for each size")


def check_positive(where: str, what: str, value: float) -> None:
    """Check a number of a record."""
    if not (value > 0 and isfinite(value)):
        raise InputError(f"{where} has {what} = {value}; it must be a finite number above 0")


def check_not_negative(where: str, what: str, value: float) -> None:
    """Check a number of a record that may be 0."""
    if not (value >= 0 and isfinite(value)):
        raise InputError(f"{where} has {what} = {value}; it must be a finite number, 0 or more")
