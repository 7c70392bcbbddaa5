"""Contention: by how much operators take longer while other devices of the same host compute."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol

from graphs.brief import brief


class Timed(Protocol):
    """A measurement of an operator, or of its two passes in training."""

    @property
    def seconds(self) -> float:
        """Seconds for one micro-batch."""
        ...


@dataclass(frozen=True)
class Contention:
    """Isolated and contended measurements of operators.

    Attributes:
        isolated: the isolated ones, by the key of the operator.
        contended: the contended ones, by the number of equal devices that compute on the host, and by key.
    """

    isolated: Mapping[str, Timed]
    contended: Mapping[int, Mapping[str, Timed]]

    __repr__ = brief

    def slowdown(self, key: str, n_devices: int) -> float:
        """The share by which an operator takes longer while so many devices compute.

        The share is that measured for the next larger number of devices, or for the largest, in proportion to the
        number of other devices. An operator without a contended measurement takes the usual share (see `_usual`); it is
        0 without any contended measurement.
        """
        counts = sorted(self.contended)
        count = next((n for n in counts if n >= n_devices), counts[-1] if counts else 1)
        if count < 2:
            return 0.0
        whole = self._measured[count].get(key, self._usual[count])
        return whole * min(1.0, (n_devices - 1) / (count - 1))

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


def weighted_median(weighted: Iterable[tuple[float, float]]) -> float:
    """The median of values with weights; 0 if there are none."""
    ascending = sorted(weighted)
    half = sum(weight for _, weight in ascending) / 2
    reached = accumulate(weight for _, weight in ascending)
    return next((value for (value, _), so_far in zip(ascending, reached, strict=True) if so_far >= half), 0.0)
