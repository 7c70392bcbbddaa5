"""Replicas: copies of a whole cluster that train the same network on different micro-batches.

::

    gpu0 gpu1 │ gpu0 gpu1 │ ...     count copies; after each step, the gpu0 of all of them add up their gradients
      └─────────┘ bytes_per_s       in a ring, and so do the gpu1
"""

from dataclasses import dataclass
from math import isfinite

from graphs.errors import InputError


@dataclass(frozen=True, slots=True)
class Replicas:
    """The number of copies, and the link from a device to its counterpart in the next copy.

    Attributes:
        count: number of copies, with this cluster; 2 or more.
        bytes_per_s: bandwidth of each ring while all devices use their rings at once.
        latency_s: seconds of an empty message.

    Raises:
        InputError: for less than two, no bandwidth, or a negative latency.
    """

    count: int
    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if self.count < 2:
            raise InputError(f"{self.count} replicas; it must be 2 or more, or leave them out")
        if not self.bytes_per_s > 0:
            raise InputError(f"replicas have the bandwidth {self.bytes_per_s}; it must be more than 0")
        if not (self.latency_s >= 0 and isfinite(self.latency_s)):
            raise InputError(f"replicas have the latency {self.latency_s}; it must be a finite number, 0 or more")

    @property
    def sync_s_per_byte(self) -> float:
        """Seconds for each byte of a sum."""
        return ring_all_reduce_s(1.0, self.count, self.bytes_per_s)

    @property
    def sync_latency_s(self) -> float:
        """Seconds of a sum of no bytes."""
        return ring_all_reduce_s(0.0, self.count, self.bytes_per_s, self.latency_s)


def ring_all_reduce_s(n_bytes: float, replicas: int, bytes_per_s: float, latency_s: float = 0.0) -> float:
    """Seconds until each replica has the sum: in each of ``2 (r - 1)`` rounds, every replica sends ``n / r`` bytes.

    Source: Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations.
    """
    return 2 * (replicas - 1) * (latency_s + n_bytes / (replicas * bytes_per_s))
