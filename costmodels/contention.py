"""What operators take while other devices of the same host compute too, as a share of what they take alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol

from graphs.brief import brief


class Timed(Protocol):
    """A measurement, or the two of an operator in training."""

    @property
    def seconds(self) -> float:
        """Of one micro-batch."""
        ...


@dataclass(frozen=True)
class Contention:
    """Measurements alone and beside others.

    Attributes:
        isolated: by the key of the operator.
        contended: the same again, while as many equal devices compute on the host, this one included.
    """

    isolated: Mapping[str, Timed]
    contended: Mapping[int, Mapping[str, Timed]]

    __repr__ = brief

    def slowdown(self, key: str, n_devices: int) -> float:
        """By what share an operator takes longer while so many devices compute.

        As it was measured for the next larger number of devices, or the largest, and in proportion to the devices
        beside it where those were fewer. What was not measured so is slowed down like the rest (see `_usual`); 0 where
        nothing was.
        """
        counts = sorted(self.contended)
        count = next((n for n in counts if n >= n_devices), counts[-1] if counts else 1)
        if count < 2:
            return 0.0
        whole = self._measured[count].get(key, self._usual[count])
        return whole * min(1.0, (n_devices - 1) / (count - 1))

    @cached_property
    def _measured(self) -> Mapping[int, Mapping[str, float]]:
        """By devices and key, of all operators that were measured alone and beside others."""
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
        """By devices, the median of what was measured, weighted by the operators' time; nobody is usually sped up.

        Prices of contention for amounts of work (FLOP, bytes, ...) came no closer to operators left out of their fit.
        """
        return {
            count: max(0.0, weighted_median((share, self.isolated[key].seconds) for key, share in known.items()))
            for count, known in self._measured.items()
        }


def weighted_median(weighted: Iterable[tuple[float, float]]) -> float:
    """Of values with their weights; 0 of none."""
    ascending = sorted(weighted)
    half = sum(weight for _, weight in ascending) / 2
    reached = accumulate(weight for _, weight in ascending)
    return next((value for (value, _), so_far in zip(ascending, reached, strict=True) if so_far >= half), 0.0)
