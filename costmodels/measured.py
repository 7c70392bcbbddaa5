"""The measurements of a calibration on one kind of device: a `Profile`, with its fingerprint."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import log, sqrt
from statistics import NormalDist
from typing import Any, TypeVar

from costmodels.operators.pace import likely_pace, mean_pace, usual_spread
from graphs.common.brief import Brief
from graphs.common.checks import fits
from graphs.common.errors import InputError

T = TypeVar("T")

LARGEST = 1e9  # of what a calibration can find: seconds, spreads, passes; sums of these are finite
DIGITS = 4  # significant digits of a measurement
NOISY_SPREAD = 0.25
MOMENTS = 300  # that are kept of a machine: each is the pace during a measurement or a run
ALIKE_S = 600  # within which moments are alike
USUAL_MOMENTS = 2  # weight of the usual spread of paces, in moments, next to those that were seen
NOISY_SHARE = 0.005  # least share of an operator in the time of all operators for its noise to matter


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of one operator, or of several equal ones."""

    seconds: float  # median of the seconds, with its share of what passes take longer than all medians
    spread: float  # distance of the quartiles as a share of the median
    count: int  # number of measured passes over a network

    def __post_init__(self) -> None:
        if not (0 <= self.seconds <= LARGEST and 0 <= self.spread <= LARGEST and 1 <= self.count <= LARGEST):
            raise InputError(
                f"{self} is no measurement; seconds and spread are 0 or more, count is 1 or more, all up to {LARGEST:g}"
            )

    def joined(self, other: "Measurement") -> "Measurement":
        """Both measurements as one, weighted by their counts; the distance of the medians counts as spread."""
        count = self.count + other.count
        seconds = (self.seconds * self.count + other.seconds * other.count) / count
        widths_s = [m.count * (m.spread * m.seconds + abs(m.seconds - seconds)) for m in (self, other)]
        return Measurement.rounded(seconds, sum(widths_s) / count, count)

    @classmethod
    def rounded(cls, median_s: float, quartiles_s: float, count: int) -> "Measurement":
        """A measurement from a median and the distance of the quartiles in seconds, rounded to `DIGITS` digits."""
        spread = quartiles_s / median_s if median_s > 0 else 0.0
        return cls(float(f"{median_s:.{DIGITS}g}"), float(f"{spread:.2g}"), count)

    @property
    def numbers(self) -> list[float]:
        """The content in a file; ``Measurement(*numbers)`` is the inverse."""
        return [self.seconds, self.spread, self.count]


@dataclass(frozen=True, slots=True)
class TrainingMeasurement:
    """One operator in training: its forward pass, which saves tensors, and its backward pass."""

    forward: Measurement
    backward: Measurement

    @property
    def seconds(self) -> float:
        """Seconds of both passes."""
        return self.forward.seconds + self.backward.seconds

    @property
    def spread(self) -> float:
        """Distance of the quartiles of both passes as a share of the sum of their medians."""
        widths_s = sum(m.spread * m.seconds for m in (self.forward, self.backward))
        return widths_s / self.seconds if self.seconds > 0 else 0.0

    @property
    def count(self) -> int:
        """Number of measured passes over a network, the smaller one of both."""
        return min(self.forward.count, self.backward.count)

    def joined(self, other: "TrainingMeasurement") -> "TrainingMeasurement":
        """Both measurements as one, see `Measurement.joined`."""
        return TrainingMeasurement(self.forward.joined(other.forward), self.backward.joined(other.backward))

    @property
    def numbers(self) -> list[list[float]]:
        """The content in a file; `of` is the inverse."""
        return [self.forward.numbers, self.backward.numbers]

    @classmethod
    def of(cls, numbers: Sequence[Any]) -> "TrainingMeasurement":
        """The measurement from its content in a file.

        Raises:
            InputError, TypeError, ValueError: if the content is malformed.
        """
        forward, backward = numbers
        return cls(Measurement(*forward), Measurement(*backward))


@dataclass(frozen=True)
class Contention(Brief):
    """Isolated and contended measurements of operators."""

    isolated: Mapping[str, Measurement | TrainingMeasurement]  # the isolated ones, by the key of the operator
    contended: Mapping[int, Mapping[str, Measurement | TrainingMeasurement]]  # by the number of devices that compute

    def slowdown(self, key: str, n_devices: int) -> float:
        """Return the share by which an operator takes longer while ``n_devices`` devices compute.

        The share is that measured for the next larger number of devices, or for the largest, in proportion to the
        number of other devices. An operator without a contended measurement takes the usual share (see `_usual`); it is
        0 without any contended measurement.
        """
        count, part = nearest_count(self.contended, n_devices)
        return part * self._measured[count].get(key, self._usual[count]) if part else 0.0

    @cached_property
    def _measured(self) -> Mapping[int, Mapping[str, float]]:
        """The shares by number of devices and key, of all operators with both measurements."""
        return {
            count: {
                key: there.seconds / self.isolated[key].seconds - 1
                for key, there in known.items()
                if key in self.isolated and self.isolated[key].seconds > 0
            }
            for count, known in self.contended.items()
        }

    @cached_property
    def _usual(self) -> Mapping[int, float]:
        """By number of devices, the median of the measured shares, weighted by the operators' time; 0 at least.

        A fit of the shares to FLOP and bytes predicted left-out operators no better.
        """
        return {
            count: max(0.0, weighted_median((share, self.isolated[key].seconds) for key, share in known.items()))
            for count, known in self._measured.items()
        }


def nearest_count(counts: Iterable[int], n_devices: int) -> tuple[int, float]:
    """Return the number of devices whose contended measurements apply to ``n_devices``, and the part of their slowdown.

    It is the next larger number, or the largest; the part is in proportion to the number of other devices, 0 without a
    measurement of several.
    """
    ascending = sorted(counts)
    count = next((n for n in ascending if n >= n_devices), ascending[-1] if ascending else 1)
    return count, min(1.0, (n_devices - 1) / (count - 1)) if count > 1 else 0.0


def weighted_median(weighted: Iterable[tuple[float, float]]) -> float:
    """The median of values with weights; 0 if there are none."""
    ascending = sorted(weighted)
    half = sum(weight for _, weight in ascending) / 2
    reached = accumulate(weight for _, weight in ascending)
    return next((value for (value, _), so_far in zip(ascending, reached, strict=True) if so_far >= half), 0.0)


def moment_now() -> int:
    """The present moment, in seconds since 1970."""
    return int(time.time())


@dataclass(frozen=True)
class Profile(Brief):
    """Measurements on one kind of device.

    Contended times are by the number of devices of this kind that compute on the same host at once, and share a cache
    and the memory's bandwidth: each a part of a network, or each a copy of it with one set of weights.
    """

    fingerprint: str  # fingerprint of the hardware and software
    machine: Mapping[str, str]  # description that the fingerprint is made from
    ops: Mapping[
        str, Measurement
    ]  # isolated times in inference by the operators' keys (`costmodels.operators.keys.op_keys`)
    training: Mapping[str, TrainingMeasurement] = field(default_factory=dict)  # isolated times in training
    contended: Mapping[int, Mapping[str, Measurement]] = field(default_factory=dict)  # in inference
    training_contended: Mapping[int, Mapping[str, TrainingMeasurement]] = field(default_factory=dict)  # in training
    copies: Mapping[int, Mapping[str, Measurement]] = field(default_factory=dict)  # contended, of copies in inference
    pace: Mapping[str, float] = field(
        default_factory=dict
    )  # figures of `costmodels.operators.pace` that all times are given at
    moments: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # paces by `moment_now`

    def __post_init__(self) -> None:
        for what, paces in (("pace", self.pace), *((f"moment {at}", pace) for at, pace in self.moments.items())):
            if what != "pace" and not paces:
                raise InputError(f"the {what} has no figures")
            for name, figure in paces.items():
                if not (fits(figure, float) and 1 / LARGEST <= figure <= LARGEST):
                    raise InputError(f"the {what} has {name} = {figure!r}; it is a positive number of seconds")

    def updated(self, newer: "Profile") -> "Profile":
        """The measurements of both profiles; for keys of both, the newer measurement, and its pace if it has one.

        Raises:
            InputError: if their fingerprints differ.
        """
        if newer.fingerprint != self.fingerprint:
            raise InputError(
                f"profiles of different machines do not mix: '{self.fingerprint}' and '{newer.fingerprint}'; "
                "calibrate on the machine that will run the plan"
            )
        ops, training = {**self.ops, **newer.ops}, {**self.training, **newer.training}
        contended = _both(self.contended, newer.contended)
        training_contended = _both(self.training_contended, newer.training_contended)
        return replace(
            newer,
            ops=ops,
            training=training,
            contended=contended,
            training_contended=training_contended,
            copies=_both(self.copies, newer.copies),
            pace=newer.pace or self.pace,
            moments=dict(list(_both(self.moments, newer.moments).items())[-MOMENTS:]),
        )

    @property
    def usual_pace(self) -> Mapping[str, float]:
        """The pace that plans count on: the likely figures, of the mean moment."""
        return likely_pace([mean_pace(tuple(self.moments.values()))], self.pace)

    @property
    def pace_spread(self) -> Mapping[str, float]:
        """The standard deviation of the logarithm of a moment's figures around the usual ones, by name.

        It counts `USUAL_MOMENTS` moments with the usual spread besides, that the usual ones are not known exactly, and
        that a spread which was seen for a short time is not either: moments within `ALIKE_S` are alike, so that
        80 % of values are as far apart as in Student's t-distribution with a degree of freedom for each such time.
        """
        degrees = USUAL_MOMENTS + max(1, len({moment // ALIKE_S for moment in self.moments}))
        unsure = _widened(degrees)
        spreads = {}
        for name, usual in self.usual_pace.items():
            squares = [log(moment[name] / usual) ** 2 for moment in self.moments.values() if name in moment]
            mean = (USUAL_MOMENTS * usual_spread(name) ** 2 + sum(squares)) / (USUAL_MOMENTS + len(squares))
            spreads[name] = float(f"{unsure * sqrt(mean * (1 + 1 / max(1, len(squares)))):.{DIGITS}g}")
        return spreads

    def slowdown(self, key: str, n_devices: int, training: bool = False) -> float:
        """The relative slowdown of an operator while ``n_devices`` devices of this kind compute on the host.

        See `costmodels.measured.Contention`; in training, it is that of both passes together.
        """
        return self._contentions[training].slowdown(key, n_devices)

    def copies_slowdown(self, key: str, n_devices: int) -> float:
        """Return the share while devices compute copies of one network; `slowdown` if that was not measured."""
        return self._contentions[2 if self.copies else 0].slowdown(key, n_devices)

    @cached_property
    def _contentions(self) -> tuple[Contention, Contention, Contention]:
        """In inference, in training, and of copies in inference."""
        return (
            Contention(self.ops, self.contended),
            Contention(self.training, self.training_contended),
            Contention(self.ops, self.copies),
        )


def _widened(degrees: int) -> float:
    """The quantile of 90 % of Student's t-distribution over that of the normal one, to 0.1 % from three degrees on.

    It is the expansion 26.7.5 of Abramowitz and Stegun, Handbook of Mathematical Functions, 1964: scipy, which has the
    function, would take a third of a second to load.
    """
    z2 = NormalDist().inv_cdf(0.9) ** 2
    terms = (z2 + 1) / 4, (5 * z2**2 + 16 * z2 + 3) / 96, (3 * z2**3 + 19 * z2**2 + 17 * z2 - 15) / 384
    return 1.0 + sum(term / float(degrees) ** power for power, term in enumerate(terms, 1))


def _both(older: Mapping[int, Mapping[str, T]], newer: Mapping[int, Mapping[str, T]]) -> Mapping[int, Mapping[str, T]]:
    return {count: {**older.get(count, {}), **newer.get(count, {})} for count in sorted({*older, *newer})}


@dataclass(frozen=True, slots=True)
class Noise:
    """A noisy operator."""

    key: str  # key of the operator
    spread: float  # spread of its measurement
    share: float  # its share in the time of all operators of the network


def noisy(
    keys: Sequence[str], measured: Mapping[str, Measurement] | Mapping[str, TrainingMeasurement]
) -> tuple[Noise, ...]:
    """The operators of a network with a spread above `NOISY_SPREAD` and a share of `NOISY_SHARE`; most time first.

    ``keys`` are those of all operators, [n_ops]; operators without a measurement do not count.
    """
    counts = Counter(key for key in keys if key in measured)
    total_s = sum(measured[key].seconds * count for key, count in counts.items()) or 1.0
    noise = [
        Noise(key, measured[key].spread, measured[key].seconds * count / total_s)
        for key, count in counts.items()
        if measured[key].spread > NOISY_SPREAD
    ]
    return tuple(sorted((n for n in noise if n.share >= NOISY_SHARE), key=lambda n: (-n.share, n.key)))
