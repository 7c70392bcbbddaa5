"""Shapes of training: the ways to divide devices into replicas and groups, and a batch into micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import isqrt, log2
from operator import attrgetter

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.fabric import fabric_of
from costmodels.workload import MICRO_BATCHES, ZERO_STAGES
from graphs.common.errors import InputError
from planner.parallelism.closed_form.config import Demands, checked_batch
from simulator.training import most_micro_batches

MOST_EACH = 4  # up to this many devices, every number of them is tried; beyond, powers of two and all
MOST_SAMPLES = 2**16  # of a micro-batch, unless a size is asked for: each is imported with its tensors
MOST_SIZES = 8  # up to this many equal divisions of a batch, all are tried; beyond, powers of two and single samples


@dataclass(frozen=True, slots=True)
class Shape:
    """Devices divided into replicas, and a batch into micro-batches of a size."""

    n_devices: int
    replicas: int
    micro_batches: int
    samples: int
    tensor: int = 1  # devices that share each stage
    zero: int = 0  # stage of ZeRO

    @property
    def plain(self) -> bool:
        """Whether no device shares a layer or states with others."""
        return self.tensor == 1 and self.zero == 0


def searched_shapes(cluster: Cluster, batch: int, demands: Demands) -> list[Shape]:
    """Return the shapes to search, in this order.

    Raises:
        InputError: if no shape meets the demands (the error names the nearest), or if the batch is too large.
    """
    of = f"the global batch of {batch} on {len(cluster.devices)} devices"
    shapes = list(_shapes(cluster, checked_batch(batch)))
    kept = [shape for shape in shapes if shape.samples <= MOST_SAMPLES or shape.samples == demands.samples]
    if not kept:
        least = min(shape.samples for shape in shapes)
        raise InputError(
            f"the global batch of {batch:,} samples would need micro-batches of {least:,} or more; those of up to "
            f"{MOST_SAMPLES:,} are tried: take a smaller batch, or one that a power of two divides"
        )
    return sorted(_demanded(kept, demands, of), key=lambda shape: _rank(shape, batch))


def of_this_host(cluster: Cluster) -> bool:
    """Return whether a cluster has devices of this host, where threads train."""
    return any(device.cores or device.cuda is not None for device in cluster.devices)


def uniform(cluster: Cluster) -> bool:
    """Return whether a cluster's devices are equal and reach each other, so that any neighbours can share layers."""
    return _groups(cluster, len(cluster.devices))


def _demanded(shapes: Sequence[Shape], demands: Demands, of: str) -> list[Shape]:
    """Return the shapes that meet the demands; ``of`` names the batch and the devices in an error.

    Raises:
        InputError: if there are none; the error names the nearest.
    """
    asked = {"data": demands.data, "tensor": demands.tensor, "micro-batch": demands.samples, "zero": demands.zero}
    kept = list(shapes)
    for name, wanted in asked.items():
        own = attrgetter({"data": "replicas", "micro-batch": "samples"}.get(name, name))
        before, kept = kept, [shape for shape in kept if wanted in (None, own(shape))]
        if not kept and wanted is not None:
            near = min(map(own, before), key=lambda number: (abs(number - wanted), number))
            raise InputError(f"{name} = {wanted} does not fit {of}; the nearest that works is {near}")
        of += "" if wanted is None else f" with {name} = {wanted}"
    return kept


def _rank(shape: Shape, batch: int) -> tuple[float, ...]:
    """Return the order of the search: most devices first, then size by size (imports are slow), that of plans first."""
    stages = shape.n_devices // (shape.replicas * shape.tensor)
    return -shape.n_devices, abs(log2(MICRO_BATCHES * shape.samples / batch)), stages, shape.zero, shape.tensor


def _shapes(cluster: Cluster, batch: int) -> Iterator[Shape]:
    """Yield the ways to divide devices and batch that are tried."""
    n_devices = len(cluster.devices)
    powers = {1 << power for power in range(n_devices.bit_length())} | {n_devices}
    for n_used in range(1, n_devices + 1) if n_devices <= MOST_EACH else sorted(powers):
        for replicas in _divisors(n_used):
            if batch % replicas or not _divides(cluster.first(n_used), replicas):
                continue
            sizes = _divisors(batch // replicas)
            if len(sizes) > MOST_SIZES:
                sizes = [size for size in sizes if size.bit_count() == 1 or size == batch // replicas]
            shared = list(_shared(cluster, n_used, replicas))
            for micro_batches in (size for size in sizes if size <= most_micro_batches(n_used // replicas)):
                samples = batch // replicas // micro_batches
                for tensor, zero in shared:
                    yield Shape(n_used, replicas, micro_batches, samples, tensor, zero)


def _divisors(number: int) -> list[int]:
    small = {divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0}
    return sorted(small | {number // divisor for divisor in small})


def _shared(cluster: Cluster, n_used: int, replicas: int) -> Iterator[tuple[int, int]]:
    """Return tensor-parallel degrees and stages of ZeRO; the threads of this host share neither layers nor states."""
    here = of_this_host(cluster)
    groups = [1] if here else _group_sizes(cluster, n_used, n_used // replicas)
    return product(groups, ZERO_STAGES if replicas > 1 and not here else (0,))


def _group_sizes(cluster: Cluster, n_used: int, n_replica: int) -> list[int]:
    """Return the numbers of equal neighbours that can share the layers of a replica."""
    sizes = [size for size in _divisors(n_replica) if n_replica <= MOST_EACH or size.bit_count() == 1]
    return [size for size in sizes if size == 1 or _groups(cluster.first(n_used), size)]


def _groups(cluster: Cluster, size: int) -> bool:
    """Return whether a cluster divides into groups of ``size`` equal devices, all of which reach each other."""
    try:
        cluster.grouped(size)
        fabric_of(cluster)
    except InputError:
        return False
    return True


def _divides(cluster: Cluster, replicas: int) -> bool:
    """Return whether a cluster can be divided into this number of replicas."""
    try:
        cluster.divided(replicas)
    except InputError:
        return False
    return True
