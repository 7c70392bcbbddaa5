"""What calibration measured on one kind of device: a `Profile`, with a fingerprint of its hardware and software."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any, TypeVar

from costmodels.contention import Contention
from graphs.brief import brief
from graphs.errors import InputError

T = TypeVar("T")

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
        """What a file keeps of it; ``Measurement(*numbers)`` is the backward pass."""
        return [self.seconds, self.spread, self.count]


@dataclass(frozen=True, slots=True)
class TrainingMeasurement:
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

    def joined(self, other: "TrainingMeasurement") -> "TrainingMeasurement":
        """Both as one, see `Measurement.joined`."""
        return TrainingMeasurement(self.forward.joined(other.forward), self.backward.joined(other.backward))

    @property
    def numbers(self) -> list[list[float]]:
        """What a file keeps of it; `of` is the backward pass."""
        return [self.forward.numbers, self.backward.numbers]

    @classmethod
    def of(cls, numbers: Sequence[Any]) -> "TrainingMeasurement":
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
        ops: inference, by the key of the operator, see `costmodels.opkeys.op_keys`.
        training: by the key of the operator in training, see `costmodels.opkeys.training_keys`.
        contended: inference again, while as many devices of this kind compute on the same host, this one included; they
            share a cache and the memory's bandwidth.
        training_contended: training again, likewise.
    """

    fingerprint: str
    machine: Mapping[str, str]
    ops: Mapping[str, Measurement]
    training: Mapping[str, TrainingMeasurement] = field(default_factory=dict)
    contended: Mapping[int, Mapping[str, Measurement]] = field(default_factory=dict)
    training_contended: Mapping[int, Mapping[str, TrainingMeasurement]] = field(default_factory=dict)

    __repr__ = brief

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
        contended = _both(self.contended, newer.contended)
        training_contended = _both(self.training_contended, newer.training_contended)
        return Profile(self.fingerprint, newer.machine, ops, training, contended, training_contended)

    def slowdown(self, key: str, n_devices: int, training: bool = False) -> float:
        """By what share an operator takes longer while so many devices of this kind compute on the host.

        See `costmodels.contention.Contention`; in training, of both passes together.
        """
        return (self._training_contention if training else self._contention_groups).slowdown(key, n_devices)

    @cached_property
    def _contention_groups(self) -> Contention:
        return Contention(self.ops, self.contended)

    @cached_property
    def _training_contention(self) -> Contention:
        return Contention(self.training, self.training_contended)


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


def noisy(
    keys: Sequence[str], known: Mapping[str, Measurement] | Mapping[str, TrainingMeasurement]
) -> tuple[Noise, ...]:
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
