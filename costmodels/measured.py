"""What calibration measured: one file for each kind of device, named by a fingerprint of its hardware and software."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from costmodels.company import Company
from costmodels.gradients import differentiated
from costmodels.views import STRIDING_KINDS, bases, operation
from graphs.errors import InputError
from graphs.files import read_json, write_cached
from graphs.ir import Graph, Op

T = TypeVar("T")

VERSION = 4  # 1 had no training, 2 knew devices alone only, 3 inference alone in company
READABLE = (1, 2, 3, 4)
DIGITS = 4  # no measurement here is good to more
NOISY_SPREAD = 0.25
NOISY_SHARE = 0.005  # of the time of all operators; what takes less may be as noisy as it likes


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of one operator, or of several equal ones.

    Attributes:
        seconds: median.
        spread: distance of the quartiles as a share of the median.
        count: how many passes over a network it was timed in.
    """

    seconds: float
    spread: float
    count: int

    def __post_init__(self) -> None:
        if not (isfinite(self.seconds) and self.seconds >= 0 and self.spread >= 0 and self.count >= 1):
            raise InputError(f"{self} is no measurement; seconds and spread are 0 or more, count is 1 or more")

    def joined(self, other: "Measurement") -> "Measurement":
        """Both as one, weighted by their counts; how far the medians are from each other counts as spread."""
        count = self.count + other.count
        seconds = (self.seconds * self.count + other.seconds * other.count) / count
        widths_s = [m.count * (m.spread * m.seconds + abs(m.seconds - seconds)) for m in (self, other)]
        return Measurement.rounded(seconds, sum(widths_s) / count, count)

    @classmethod
    def rounded(cls, median_s: float, quartiles_s: float, count: int) -> "Measurement":
        """From a median and the distance of the quartiles, in seconds, to as many digits as are known."""
        spread = quartiles_s / median_s if median_s > 0 else 0.0
        return cls(float(f"{median_s:.{DIGITS}g}"), float(f"{spread:.2g}"), count)

    @property
    def numbers(self) -> list[float]:
        """What a file keeps of it; ``Measurement(*numbers)`` is the way back."""
        return [self.seconds, self.spread, self.count]


@dataclass(frozen=True, slots=True)
class Step:
    """One operator in training: its forward pass, which keeps what the other one needs, and its backward pass."""

    forward: Measurement
    backward: Measurement

    @property
    def seconds(self) -> float:
        """Of both passes."""
        return self.forward.seconds + self.backward.seconds

    @property
    def spread(self) -> float:
        """Of both, as a share of their sum: what is short may vary much."""
        widths_s = sum(m.spread * m.seconds for m in (self.forward, self.backward))
        return widths_s / self.seconds if self.seconds > 0 else 0.0

    @property
    def count(self) -> int:
        """How many passes both were timed in."""
        return min(self.forward.count, self.backward.count)

    def joined(self, other: "Step") -> "Step":
        """Both as one, see `Measurement.joined`."""
        return Step(self.forward.joined(other.forward), self.backward.joined(other.backward))

    @property
    def numbers(self) -> list[list[float]]:
        """What a file keeps of it; `of` is the way back."""
        return [self.forward.numbers, self.backward.numbers]

    @classmethod
    def of(cls, numbers: Sequence[Any]) -> "Step":
        """From what a file has of it.

        Raises:
            InputError, TypeError, ValueError: if that is none.
        """
        forward, backward = numbers
        return cls(Measurement(*forward), Measurement(*backward))


@dataclass(frozen=True)
class Profile:
    """Measurements on one kind of device.

    Attributes:
        fingerprint: of the hardware and software; changes when either does.
        machine: what the fingerprint stands for, for people.
        ops: inference, by the key of the operator, see `op_keys`.
        training: by the key of the operator in training, see `training_keys`.
        beside: inference again, while as many devices of this kind compute on the same host, this one included; they
            share a cache and the memory's bandwidth.
        training_beside: training again, likewise.
    """

    fingerprint: str
    machine: Mapping[str, str]
    ops: Mapping[str, Measurement]
    training: Mapping[str, Step] = field(default_factory=dict)
    beside: Mapping[int, Mapping[str, Measurement]] = field(default_factory=dict)
    training_beside: Mapping[int, Mapping[str, Step]] = field(default_factory=dict)

    def updated(self, newer: "Profile") -> "Profile":
        """Both; where they have the same key, the newer measurement.

        Raises:
            InputError: if they are of different fingerprints.
        """
        if newer.fingerprint != self.fingerprint:
            raise InputError(
                f"profiles of different machines do not mix: '{self.fingerprint}' and '{newer.fingerprint}'; "
                "calibrate on the machine that will run the plan"
            )
        ops, training = {**self.ops, **newer.ops}, {**self.training, **newer.training}
        beside = _both(self.beside, newer.beside)
        training_beside = _both(self.training_beside, newer.training_beside)
        return Profile(self.fingerprint, newer.machine, ops, training, beside, training_beside)

    def slowdown(self, key: str, n_devices: int, training: bool = False) -> float:
        """By what share an operator takes longer while so many devices of this kind compute on the host.

        See `costmodels.company.Company`; in training, of both passes together.
        """
        return (self._training_company if training else self._company).slowdown(key, n_devices)

    @cached_property
    def _company(self) -> Company:
        return Company(self.ops, self.beside)

    @cached_property
    def _training_company(self) -> Company:
        return Company(self.training, self.training_beside)


def _both(older: Mapping[int, Mapping[str, T]], newer: Mapping[int, Mapping[str, T]]) -> Mapping[int, Mapping[str, T]]:
    return {count: {**older.get(count, {}), **newer.get(count, {})} for count in sorted({*older, *newer})}


@dataclass(frozen=True, slots=True)
class Noise:
    """An operator whose time is not known well.

    Attributes:
        key: of the operator.
        spread: of its measurement.
        share: of the time of all operators of the network.
    """

    key: str
    spread: float
    share: float


def noisy(keys: Sequence[str], known: Mapping[str, Measurement] | Mapping[str, Step]) -> tuple[Noise, ...]:
    """The operators of a network whose spread is above `NOISY_SPREAD`, if they matter; most time first.

    Args:
        keys: [n_ops], of all its operators.
        known: measurements; operators without one do not count.
    """
    times = Counter(key for key in keys if key in known)
    total_s = sum(known[key].seconds * count for key, count in times.items()) or 1.0
    found = [
        Noise(key, known[key].spread, known[key].seconds * count / total_s)
        for key, count in times.items()
        if known[key].spread > NOISY_SPREAD
    ]
    return tuple(sorted((n for n in found if n.share >= NOISY_SHARE), key=lambda n: (-n.share, n.key)))


def op_keys(graph: Graph) -> tuple[str, ...]:
    """What each operator's time depends on: operators with the same key, in whatever network, take the same time.

    That is kind, shapes and dtypes of inputs and outputs, and attributes. Behind an input stand the views that it was
    seen through, since they decide about its strides::

        aten.add.Tensor(float32[1,768], float32[1,768]<select)->float32[1,768]{"alpha":2}
    """
    return _keys(graph, frozenset())


def training_keys(graph: Graph) -> tuple[str, ...]:
    """The same for training: behind an input that gets a gradient stands "+grad".

    An operator without one has the key of `op_keys`, and no backward pass::

        aten.mm.default(float32[4,5], float32[5,5]<t+grad)->float32[4,5]
    """
    return _keys(graph, differentiated(graph))


def _keys(graph: Graph, with_gradient: frozenset[str]) -> tuple[str, ...]:
    base = bases(graph)
    seen_through: dict[str, str] = {}

    def described(name: str) -> str:
        tensor = graph.tensor[name]
        return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"

    def read(name: str) -> str:
        return described(name) + seen_through.get(name, "") + ("+grad" if name in with_gradient else "")

    def key(op: Op) -> str:
        inputs = ", ".join(map(read, op.inputs))
        outputs = ", ".join(map(described, op.outputs))
        attrs = json.dumps(dict(sorted(op.attrs.items())), separators=(",", ":")) if op.attrs else ""
        return f"{op.kind}({inputs})->{outputs}{attrs}"

    keys = []
    for op in graph.ops:
        keys.append(key(op))
        name = operation(op.kind)
        for output in op.outputs:
            if output in base:  # a view, so it has an input
                own = f"<{name.removeprefix('aten.')}" if name in STRIDING_KINDS else ""
                seen_through[output] = own + seen_through.get(op.inputs[0], "")
    return tuple(keys)


def read_profile(directory: Path, fingerprint: str) -> Profile | None:
    """The profile of a fingerprint, or None if there is none.

    Raises:
        InputError: if the file is damaged, or is that of another fingerprint.
    """
    path = _path(directory, fingerprint)
    if not path.exists():
        return None
    try:
        document = read_json(path, "profile")
        if document["version"] not in READABLE or document["fingerprint"] != fingerprint:
            raise InputError(f"version {document['version']}, fingerprint '{document['fingerprint']}'")
        ops = {key: Measurement(*numbers) for key, numbers in document["ops"].items()}
        training = _steps(document["training"]) if document["version"] > 1 else {}
        beside = {
            int(count): {key: Measurement(*numbers) for key, numbers in known.items()}
            for count, known in (document["beside"].items() if document["version"] > 2 else ())
        }
        trained = document["training_beside"].items() if document["version"] > 3 else ()
        training_beside = {int(count): _steps(known) for count, known in trained}
        return Profile(fingerprint, dict(document["machine"]), ops, training, beside, training_beside)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the profile '{path}' is damaged or foreign ({error}); delete it and calibrate again"
        ) from error


def add_profile(directory: Path, newer: Profile) -> None:
    """Put measurements beside those that are there; where they have the same key, the newer one stays.

    Raises:
        InputError: as `read_profile` and `write_profile`.
    """
    known = read_profile(directory, newer.fingerprint)
    write_profile(directory, known.updated(newer) if known else newer)


def write_profile(directory: Path, profile: Profile) -> Path:
    """Write a profile where `read_profile` finds it; a reader sees the old file or the new one, never half of one.

    Raises:
        InputError: if the directory cannot be written.
    """
    path = _path(directory, profile.fingerprint)
    document = {
        "version": VERSION,
        "fingerprint": profile.fingerprint,
        "machine": dict(profile.machine),
        "ops": _numbers(profile.ops),
        "training": _numbers(profile.training),
        "beside": {str(count): _numbers(known) for count, known in sorted(profile.beside.items())},
        "training_beside": {str(count): _numbers(known) for count, known in sorted(profile.training_beside.items())},
    }
    write_cached(document, path)
    return path


def _steps(document: Mapping[str, Sequence[Any]]) -> dict[str, Step]:
    return {key: Step.of(numbers) for key, numbers in document.items()}


def _numbers(known: Mapping[str, Measurement | Step]) -> dict[str, list[Any]]:
    return {key: one.numbers for key, one in sorted(known.items())}


def _path(directory: Path, fingerprint: str) -> Path:
    if not fingerprint.isalnum():
        raise InputError(f"the fingerprint '{fingerprint}' is none; it is made of letters and digits; calibrate again")
    return directory / f"{fingerprint}.json"
