"""Makes hypothetical clusters of devices of the catalogue, also from one line.

::

    RTX-4090                                          one device
    2xRTX-4090:PCIe4                                  two of them and the links between them
    Xeon-Platinum-8380+2xL40S:PCIe4                   unlike devices, joined alike
    8x(8xH100-SXM:NVLink4):InfiniBand-400             eight hosts; all devices of a host share one network card
    8x(8xH100-SXM:NVLink4):8xInfiniBand-400           or have eight cards
    4x(8x(8xH100-SXM:NVLink4):InfiniBand-400):Ethernet-100, and so on
    1x(8xH100-SXM:NVLink4)+2x(4xA100-SXM:NVLink3):InfiniBand-400      unlike hosts, joined alike
    8xH100-SXM@2.49USD/h:NVLink4                      with what a device costs

A name may be cut where one name of the catalogue alone goes on with a hyphen: H100-SXM is H100-SXM-80GB.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import NamedTuple, Never

from costmodels.cluster.catalogue import Entry, catalogue, entry, entry_named
from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.cluster.links import Level, LevelLinks
from costmodels.cluster.prices import HourlyPrice
from costmodels.cluster.tables import MOST_DEVICES, device_of
from costmodels.units import parse_bytes_per_s, parse_seconds
from graphs.common.checks import integer
from graphs.common.errors import InputError

EXAMPLE = "2xRTX-4090:PCIe4 or 8x(8xH100-SXM:NVLink4):InfiniBand-400"
PROCESSORS = ("Xeon", "EPYC")  # how their names begin; other devices are called GPUs
END = "the end"

_WORD = re.compile(
    r"\s*(?:(?P<count>\d+)\s*[x×*](?=\s*[\w(])|(?P<price>@[^:+)]+)|(?P<name>[A-Za-z][\w.-]*)|(?P<sign>[(:+)]))"
)


class _Word(NamedTuple):
    """A part of the line."""

    kind: str  # count, price, name or sign
    text: str
    start: int  # its first character


class _Joined(NamedTuple):
    """Devices in order, and the levels that join them; or unlike hosts, which one level joins."""

    devices: tuple[Device, ...]
    levels: tuple[Level, ...]
    hosts: tuple["_Joined", ...] = ()


def is_one_line(path: Path) -> bool:
    """Return whether a name is a cluster in one line rather than a file."""
    text = str(path)
    signs = re.search(r"[:(@+]|^\s*\d+\s*[x×*]", text)
    device = any(f"{name.lower()}-".startswith(f"{text.lower()}-") for name in catalogue("device"))
    return (bool(signs) or device) and path.suffix != ".toml" and not path.exists()


def cluster_in_one_line(text: str) -> Cluster:
    """The cluster of a line such as ``8x(8xH100-SXM:NVLink4):InfiniBand-400``.

    Raises:
        InputError: for an unknown device or link, with the nearest name; where a line cannot be read, with the place.
    """
    line = _ClusterLine(text)
    devices, levels, hosts = line.group()
    line.expect(END)
    name = " ".join(text.split())
    return _of_hosts(name, hosts, *levels) if hosts else Cluster(name, _called(devices, levels), levels=levels)


def _of_hosts(name: str, hosts: tuple[_Joined, ...], between: Level) -> Cluster:
    """Unlike hosts with a link for each pair of devices; each host's messages to others share its network cards."""
    devices, links, cards = list[Device](), list[Link](), list[str]()
    for number, (of_host, levels, _) in enumerate(hosts):
        named_ones = _called(of_host, levels, f"host{number}")
        sharers = len(named_ones) // between.cards
        devices += named_ones
        links += LevelLinks([device.name for device in named_ones], levels).values()
        cards += [named_ones[place // sharers * sharers].name for place in range(len(named_ones))]
    for (src, card), (dst, _) in permutations(zip(devices, cards, strict=True), 2):
        if src.host != dst.host:
            ends = src.name, dst.name, between.bytes_per_s, between.latency_s
            links.append(Link(*ends, channel=f"from {card} ({between.size})", via=between.via))
    number_of = {device.name: number for number, device in enumerate(devices)}
    links.sort(key=lambda link: (number_of[link.src], number_of[link.dst]))
    return Cluster(name, tuple(devices), tuple(links))


def catalogue_cluster(device: str, count: int, link: str, hosts: int = 1, network: str = "") -> Cluster:
    """Equal devices of the catalogue, for example 8 × H100-SXM-80GB with NVLink4 in each of 2 hosts.

    The messages of a device within its host share one channel. The messages of a host to other hosts share another one,
    the host's network card.

    Args:
        device: name of the device in the catalogue; `planner devices` lists the names.
        count: devices in each host.
        link: name of the link between devices of one host in the catalogue.
        hosts: number of hosts.
        network: name of the link between devices of different hosts in the catalogue; not needed for one host.

    Raises:
        InputError: for a count below 1, an unknown name, or several hosts without a network.
    """
    integer(count, "count", 1)
    if count * integer(hosts, "hosts", 1) > MOST_DEVICES:
        raise InputError(f"{hosts:,} hosts of {count:,} devices; {MOST_DEVICES:,} devices are the most")
    integer(hosts, "hosts", 1)
    if hosts > 1 and not network:
        raise InputError(f"{hosts} hosts need a network between them; give its name, for example 'InfiniBand-100'")
    inside = _level(entry("link", link), max(2, count))
    between = [_level(entry("link", network), count * hosts)] if hosts > 1 else []
    devices = (_device(entry_named("device", device)),) * (count * hosts)
    levels = (*([inside] if count > 1 else []), *between)
    name = f"{count} × {device}, {link}"
    name = f"{hosts} × ({name}), {network}" if hosts > 1 else name
    return Cluster(name, _called(devices, levels), levels=levels)


class _ClusterLine:
    """The words of a line that are still to be read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words: list[_Word] = []
        start = 0
        while start < len(text.rstrip()):
            match = _WORD.match(text, start)
            if match is None:
                self._refuse(start, "a name, a number with x, or one of ( ) : + @")
            kind = str(match.lastgroup)
            self.words.append(_Word(kind, match[kind].strip(), match.start(kind)))
            start = match.end()

    def group(self) -> _Joined:
        """Devices or equal groups of them, and what joins them."""
        several = self._group_of_groups() if self._is_group() else self._device_list()
        if len(several.devices) > MOST_DEVICES:
            raise InputError(f"'{self.text}' has {len(several.devices):,} devices; {MOST_DEVICES:,} are the most")
        return several

    def expect(self, sign: str) -> None:
        """Read a sign, or the end."""
        if not self._take("sign", sign) and not (sign == END and not self.words):
            self._refuse(None, f"'{sign}'" if sign != END else END)

    def _is_group(self) -> bool:
        kinds = [(word.kind, word.text) for word in self.words[:2]]
        return ("sign", "(") in kinds and kinds[0][0] in ("count", "sign")

    def _group_of_groups(self) -> _Joined:
        groups = [self._groups()]
        while self._take("sign", "+"):
            groups.append(self._groups())
        hosts = tuple(host for same in groups for host in same)
        (devices, levels, _), size = hosts[0], len(hosts[0].devices)
        if len(groups) == 1:
            return _Joined(devices * len(hosts), (*levels, *self._joined(size, len(hosts))))
        together = tuple(device for host in hosts for device in host.devices)
        self.expect(":")
        between = self._level(len(together))
        if odd := next((len(host.devices) for host in hosts if len(host.devices) % between.cards), 0):
            raise InputError(
                f"'{self.text}' gives {between.cards} {between.via} to each host, which {odd} devices cannot share "
                "equally; keep a number that divides them"
            )
        return _Joined(together, (between,), hosts)

    def _groups(self) -> list[_Joined]:
        """Return equal groups, as many as are written, each of which is a host among unlike ones."""
        count = self._count()
        self.expect("(")
        group = self.group()
        if group.hosts:
            raise InputError(f"'{self.text}' has unlike hosts in brackets; join them in the outermost group")
        self.expect(")")
        return [group] * count

    def _device_list(self) -> _Joined:
        devices = [*self._devices()]
        while self._take("sign", "+"):
            devices += self._devices()
        return _Joined(tuple(devices), self._joined(1, len(devices)))

    def _joined(self, below: int, count: int) -> tuple[Level, ...]:
        """Return the level that joins ``count`` groups of ``below`` devices; that of a single group is dropped."""
        if count > 1 or self._next("sign", ":"):
            self.expect(":")
            level = self._level(max(2, below * count))
            return (level,) if count > 1 else ()
        return ()

    def _level(self, size: int) -> Level:
        cards = self._count()
        return _level(entry_named("link", self._name("a link")), size, cards)

    def _devices(self) -> Iterator[Device]:
        count = self._count()
        device = _device(entry_named("device", self._name("a device")))
        if priced := self._take("price"):
            device = replace(device, price=HourlyPrice.parse(priced[1:]))
        yield from [device] * count

    def _count(self) -> int:
        text = self._take("count") or "1"
        if len(text) > len(str(MOST_DEVICES)) or not 1 <= int(text) <= MOST_DEVICES:
            raise InputError(f"'{self.text}' has {text} of something; a number from 1 to {MOST_DEVICES:,} is needed")
        return int(text)

    def _name(self, what: str) -> str:
        return self._take("name") or self._refuse(None, f"{what} of the catalogue (`planner devices` lists them)")

    def _take(self, kind: str, text: str = "") -> str:
        """The next word if it is of this kind, or else nothing."""
        return self.words.pop(0).text if self._next(kind, text) else ""

    def _next(self, kind: str, text: str = "") -> bool:
        """Return whether the next word is of this kind."""
        return bool(self.words) and self.words[0].kind == kind and text in ("", self.words[0].text)

    def _refuse(self, start: int | None, wanted: str) -> Never:
        if start is None:
            start = self.words[0].start if self.words else len(self.text)
        rest = self.text[start:].strip()
        place = f"at '{rest}' (character {start + 1})" if rest else "at its end"
        raise InputError(f"'{self.text}' is no cluster in one line: {place} {wanted} is missing; write {EXAMPLE}")


def _device(found: Entry) -> Device:
    return device_of({"name": "cpu" if found.name.startswith(PROCESSORS) else "gpu", "like": found.name})


def _level(found: Entry, size: int, cards: int = 1) -> Level:
    rate, latency = (found.keys[key] for key in ("bandwidth", "latency"))
    return Level(size, parse_bytes_per_s(rate, found.name), parse_seconds(latency, found.name), cards, found.name)


def _called(devices: tuple[Device, ...], levels: tuple[Level, ...], of: str = "") -> tuple[Device, ...]:
    """The devices with names: gpu0 and so on, on each of several hosts, or on the one ``of`` this name."""
    size = levels[0].size if len(levels) > 1 and not of else len(devices)
    several, called = len(devices) > size, []
    for start in range(0, len(devices), size):
        host, numbers = f"host{start // size}" if several else of, Counter[str]()
        for device in devices[start : start + size]:
            name = f"{host}{'-' if host else ''}{device.name}{numbers[device.name]}"
            numbers[device.name] += 1
            called.append(replace(device, name=name, host=host))
    return tuple(called)
