"""CostTable: every number that a planner needs, as arrays. Nobody after it touches a cost model."""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphs.errors import InputError
from graphs.ir import Flow

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


class Source(StrEnum):
    """Where a number came from."""

    MEASURED = "measured"
    ROOFLINE = "roofline"
    GIVEN = "given"  # by the user or by a problem file


@dataclass(frozen=True)
class CostTable:
    """Seconds and bytes of every operator on every device, and of every flow between devices.

    Operators are in a topological order: a flow's readers come after its writer.

    Attributes:
        ops: operator names, [n_ops].
        devices: device names, [n_devices].
        forward_s: [n_ops, n_devices], seconds for one micro-batch; infinite where an operator cannot run.
        op_bytes: [n_ops], bytes that stay on the device of the operator for the whole run (parameters, buffers).
        working_bytes: bytes that each device needs besides, whatever is placed there: the activations of
            the micro-batches in flight.
        flows: what is sent; writer and readers are indices into ``ops``.
        flow_bytes: [n_flows].
        link_s: [n_devices, n_devices], seconds of an empty message; 0 on the diagonal, infinite without a link.
        link_s_per_byte: [n_devices, n_devices].
        channel: [n_devices, n_devices], number of the channel that a link occupies; -1 where there is no link.
        capacity_bytes: [n_devices].
        overlap: whether devices compute while they send or receive.
        together: groups of operators that must share a device (they read the same parameter).
        source: [n_ops, n_devices], a `Source` each.
        handover_s: [n_devices], seconds that a device is occupied by each tensor that it sends or receives, besides
            the transfer itself (the ``o`` of LogP: Culler et al., PPoPP 1993); zeros if left out.

    Raises:
        InputError: for arrays that do not fit together, negative or undefined numbers, or a flow that runs backwards.
    """

    ops: tuple[str, ...]
    devices: tuple[str, ...]
    forward_s: Floats
    op_bytes: Floats
    working_bytes: float
    flows: tuple[Flow, ...]
    flow_bytes: Floats
    link_s: Floats
    link_s_per_byte: Floats
    channel: Ints
    capacity_bytes: Floats
    overlap: bool
    together: tuple[tuple[int, ...], ...]
    source: NDArray[np.str_]
    handover_s: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if not self.handover_s.size:
            object.__setattr__(self, "handover_s", np.zeros(self.n_devices))
        _check_shapes(self)
        _check_numbers(self)
        _check_flows(self)
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    @property
    def n_ops(self) -> int:
        """How many operators."""
        return len(self.ops)

    @property
    def n_devices(self) -> int:
        """How many devices."""
        return len(self.devices)

    @cached_property
    def transfer_s(self) -> Floats:
        """[n_flows, n_devices, n_devices], seconds to send each flow from one device to another."""
        per_byte = np.where(np.isfinite(self.link_s), self.link_s_per_byte, 0.0)
        seconds = np.asarray(self.link_s[None] + self.flow_bytes[:, None, None] * per_byte[None])
        seconds.setflags(write=False)
        return seconds

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Every pair (writer, reader) of operators once, sorted."""
        return tuple(sorted({(flow.writer, reader) for flow in self.flows for reader in flow.readers}))

    def share(self, source: Source) -> float:
        """The share of all operators' time (summed over the devices) that came from this source; 0 to 1."""
        total = self.forward_s[np.isfinite(self.forward_s)].sum()
        part = self.forward_s[np.isfinite(self.forward_s) & (self.source == source)].sum()
        return float(part / total) if total > 0 else 0.0


def _check_shapes(table: CostTable) -> None:
    n, k, f = len(table.ops), len(table.devices), len(table.flows)
    expected = {
        "forward_s": (n, k),
        "source": (n, k),
        "op_bytes": (n,),
        "flow_bytes": (f,),
        "link_s": (k, k),
        "link_s_per_byte": (k, k),
        "channel": (k, k),
        "capacity_bytes": (k,),
        "handover_s": (k,),
    }
    for name, shape in expected.items():
        if getattr(table, name).shape != shape:
            raise InputError(f"the cost table's {name} has the shape {getattr(table, name).shape}, expected {shape}")


def _check_numbers(table: CostTable) -> None:
    for name in ("forward_s", "op_bytes", "flow_bytes", "link_s", "link_s_per_byte", "capacity_bytes", "handover_s"):
        values = getattr(table, name)
        if np.isnan(values).any() or (values < 0).any():
            raise InputError(f"the cost table's {name} holds a negative or undefined number; costs are 0 or more")
    if not table.working_bytes >= 0:
        raise InputError(f"the cost table's working_bytes is {table.working_bytes}; it must be 0 or more")
    for i, name in enumerate(table.ops):
        if not np.isfinite(table.forward_s[i]).any():
            raise InputError(f"operator '{name}' can run on no device; give it a finite time on at least one")


def _check_flows(table: CostTable) -> None:
    for flow in table.flows:
        if not (0 <= flow.writer < table.n_ops and all(flow.writer < r < table.n_ops for r in flow.readers)):
            raise InputError(f"flow '{flow.tensor}' must run from an operator to later ones")
    for group in table.together:
        if any(not 0 <= i < table.n_ops for i in group):
            raise InputError(f"the group {group} names an operator that does not exist; there are {table.n_ops}")
