"""CostTable: every number that a planner needs, as arrays. Nobody after it touches a cost model."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.cluster.cluster import SHARINGS, Sharing
from costmodels.measured import LARGEST
from costmodels.step_update import StepUpdate
from costmodels.workload import RecomputeMode
from graphs.common.arrays import Floats, Ints
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from graphs.ir import Flow

MOST = 1e100
"""The largest finite cost: sums and products of two such costs are finite."""

QUARTILES = 1.349
"""The distance of the quartiles of a normal distribution, in standard deviations: how a spread becomes one."""


class Source(StrEnum):
    """Where a number came from."""

    MEASURED = "measured"
    LEARNED = "learned"  # fitted to this machine's own measurements
    ROOFLINE = "roofline"
    GIVEN = "given"  # by the user or by a problem file


SURE = (Source.MEASURED, Source.GIVEN)
"""Where numbers come from that are no predictions."""


@dataclass(frozen=True)
class Offload(Brief):
    """Accelerators of a host: tensors that leave one are stored in the host's memory, and fetched there by readers.

    A flow is stored once, however many devices read it, and fetched once by each of them. For latency, an accelerator
    is called once: it fetches all that it needs, runs its operators and stores what others need (Tarnawski et al.,
    Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020).
    """

    store_s: Floats  # [n_flows, n_devices], seconds that the writer's device is occupied if another one reads the flow
    fetch_s: Floats  # [n_flows, n_devices], seconds that each other device which reads the flow is occupied
    host: NDArray[np.bool_]  # [n_devices], whether a device is the host; for latency it runs operators all at once


SHAPES: Mapping[str, str] = (
    dict.fromkeys(("forward_s", "backward_s", "spread", "slowdown", "copies_slowdown", "source"), "od")
    | dict.fromkeys(("op_bytes", "saved_bytes", "ends_bytes", "once_bytes", "once_saved_bytes"), "o")
    | dict.fromkeys(("runs_once", "layer"), "o")
    | {"update.gradient_bytes": "o"}
    | dict.fromkeys(("flow_bytes", "gradient", "layer_bytes"), "f")
    | dict.fromkeys(("capacity_bytes", "overhead_s", "contention_group", "offload.host"), "d")
    | dict.fromkeys(("update.optimizer_s_per_byte", "update.sync_s_per_byte"), "d")
    | dict.fromkeys(("update.sync_latency_s", "update.uplink"), "d")
    | dict.fromkeys(("offload.store_s", "offload.fetch_s"), "fd")
    | {"link_class": "dd", "channel": "dd", "link_s": "fc", "link_latency_s": "c"}
)
"""The arrays of a table with their dimensions: operators, devices, flows and link classes."""

PAIR_SHARE = 0.1  # of the time, for which micro-batches run in pairs, whose activations are twice as large
NO_COSTS = frozenset({"source", "slowdown", "copies_slowdown", "gradient", "runs_once", "layer"}) | {
    "contention_group",
    "offload.host",
    "link_class",
    "channel",
}


@dataclass(frozen=True)
class CostTable(Brief):
    """Seconds and bytes of every operator on every device, and of every flow between devices.

    Operators are in a topological order: a flow's readers come after its writer.

    Attributes:
        ops: operator names, [n_ops].
        devices: device names, [n_devices].
        forward_s: [n_ops, n_devices], isolated seconds of one micro-batch, that is while no other device of the host
            computes; infinite where an operator cannot run.
        op_bytes: [n_ops], bytes that stay on the device of the operator for the whole run: parameters, buffers and,
            in training, gradients and the optimizer's state.
        working_bytes: bytes that each device needs besides, whatever is placed there: the activations of
            the micro-batches in flight.
        flows: what is sent; writer and readers are indices into ``ops``.
        flow_bytes: [n_flows].
        link_class: [n_devices, n_devices], which kind of link joins two devices; -1 where there is none, and between a
            device and itself, where nothing has to be sent.
        link_s: [n_flows, n_link_classes], seconds to send each flow over each kind of link.
        link_latency_s: [n_link_classes], seconds of an empty message.
        channel: [n_devices, n_devices], number of the channel that a link occupies; -1 where there is no link.
        capacity_bytes: [n_devices].
        overlap: whether devices compute while they send or receive.
        sharing: how tensors share a channel, see `costmodels.cluster.cluster.Sharing`.
        together: groups of operators that must share a device (they read the same parameter).
        source: [n_ops, n_devices], a `Source` each.
        overhead_s: [n_devices], seconds that a device is occupied by each tensor that it sends or receives, besides
            the transfer itself (the ``o`` of LogP: Culler et al., PPoPP 1993); zeros if left out.
        backward_s: [n_ops, n_devices], isolated seconds of the backward pass of one micro-batch; zeros without
            training.
        saved_bytes: [n_ops], bytes that an operator's device keeps of each micro-batch from its forward to its backward
            pass; zeros without training.
        ends_bytes: [n_ops], inputs and results of the network in ``saved_bytes``: recomputation keeps these as well.
        runs_once: [n_ops], whether an operator does not run again with selective recomputation.
        once_bytes: [n_ops], bytes of the results of these operators, which are kept as well.
        once_saved_bytes: [n_ops], the part of ``saved_bytes`` that is such results, so that it is not saved again.
        layer: [n_ops], the number of the layer that an operator runs again with, one layer after the other; -1 for one
            that never does. A stage runs again as a whole if left out.
        layer_bytes: [n_flows], bytes that layers that run again keep of a flow from another layer of their device.
        held: of how many micro-batches a device keeps saved bytes at once, at most.
        spread: [n_ops, n_devices], how uncertain each time is: the distance of its quartiles as a share of it.
        gradient: [n_flows], whether a gradient of the same size comes back from each reader in the backward pass.
        slowdown: [n_ops, n_devices], by what share both passes take longer while the other devices of the contention
            group compute, see `with_contention`; above -1 (below 0 by chance of measuring), zeros if left out.
        copies_slowdown: [n_ops, n_devices], the same while the devices of the group compute copies of the network; a
            device that is a little later finds the other's weights in the cache, and two micro-batches at once read a
            weight once, so that it may be far below 0; ``slowdown`` if left out.
        contention_group: [n_devices], number of the group that a device belongs to: devices of a group slow each other
            down; one group of all if left out.
        offload: how devices exchange tensors if they do it through the memory of a host; None if they do it directly.
        update: work at the end of a training step; None if that takes no time.

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
    link_class: Ints
    link_s: Floats
    link_latency_s: Floats
    channel: Ints
    capacity_bytes: Floats
    overlap: bool
    together: tuple[tuple[int, ...], ...]
    source: NDArray[np.str_]
    overhead_s: Floats = field(default_factory=lambda: np.zeros(0))
    backward_s: Floats = field(default_factory=lambda: np.zeros(0))
    saved_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    ends_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    runs_once: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    once_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    once_saved_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    layer: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    layer_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    held: float = 1.0
    spread: Floats = field(default_factory=lambda: np.zeros(0))
    gradient: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    slowdown: Floats = field(default_factory=lambda: np.zeros(0))
    copies_slowdown: Floats = field(default_factory=lambda: np.zeros(0))
    contention_group: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    offload: Offload | None = None
    update: StepUpdate | None = None
    sharing: Sharing = "fifo"

    def __post_init__(self) -> None:
        for name in (item.name for item in fields(self) if item.default_factory is not MISSING):
            if not (value := getattr(self, name)).size:
                same = self.slowdown if name == "copies_slowdown" else np.zeros(_shape(self, name), value.dtype)
                object.__setattr__(self, name, same)
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

    @property
    def trains(self) -> bool:
        """Whether there is a backward pass."""
        return bool(self.backward_s.any() or self.saved_bytes.any() or self.gradient.any())

    @cached_property
    def contended(self) -> "CostTable":
        """The costs while all devices compute all the time."""
        return self.with_contention(np.ones(self.n_devices))

    @cached_property
    def in_copies(self) -> "CostTable":
        """The costs while each device of a group computes a copy of the network."""
        return self._longer(1 + self.copies_slowdown)

    @cached_property
    def gains_by_pairs(self) -> NDArray[np.bool_]:
        """[n_devices], whether the operators that take less time in copies than alone are worth pairs, `PAIR_SHARE`."""
        paired_s = np.where(self.copies_slowdown < 0, self.forward_s, 0.0).sum(axis=0)
        return np.asarray(worth_pairs(paired_s, self.forward_s.sum(axis=0)))

    def with_contention(self, share: Floats) -> "CostTable":
        """Return the costs where the others of a device's group compute during a share of its work, [n_devices].

        Contention is counted here and in `in_copies` alone: the results have no slowdown left.
        """
        return self._longer(1 + share * self.slowdown)

    def _longer(self, times: Floats) -> "CostTable":
        """Return the costs with operators' seconds multiplied by ``times``, [n_ops, n_devices], and no slowdown."""
        if not self.slowdown.any() and not self.copies_slowdown.any():
            return self
        none = np.zeros_like(self.slowdown)
        forward_s, backward_s = self.forward_s * times, self.backward_s * times
        return replace(self, forward_s=forward_s, backward_s=backward_s, slowdown=none, copies_slowdown=none)

    @cached_property
    def contends(self) -> NDArray[np.bool_]:
        """[n_devices, n_devices], whether two devices are of one group, and not the same."""
        contends: NDArray[np.bool_] = (self.contention_group[:, None] == self.contention_group) & ~np.eye(
            self.n_devices, dtype=bool
        )
        contends.setflags(write=False)
        return contends

    @cached_property
    def placed_bytes(self) -> Floats:
        """[n_ops], all bytes that an operator takes on its device, which hold for as long as the run lasts."""
        return np.asarray(self.op_bytes + self.held * self.saved_bytes)

    def again_s(self, recompute: RecomputeMode) -> Floats:
        """Return [n_ops, n_devices], isolated seconds for which operators run again before their backward pass."""
        may = self.layer >= 0
        again = {"none": np.zeros_like(may), "selective": ~self.runs_once & may}.get(recompute, may)
        return np.where(again[:, None], self.forward_s, 0.0)

    def waiting_bytes(self, recompute: RecomputeMode) -> Floats:
        """Return [n_ops], bytes that an operator's device keeps of a micro-batch that waits for its backward pass."""
        if recompute == "none":
            return self.saved_bytes
        kept_bytes = self.ends_bytes + self.once_bytes if recompute == "selective" else self.ends_bytes
        return np.where(self.layer >= 0, kept_bytes, self.saved_bytes)

    def again_bytes(self, recompute: RecomputeMode) -> Floats:
        """Return [n_ops], the bytes that an operator saves when it runs again, besides those that wait."""
        if recompute == "none":
            return np.zeros(self.n_ops)
        kept_bytes = self.ends_bytes + self.once_saved_bytes if recompute == "selective" else self.ends_bytes
        return np.where(self.layer >= 0, np.maximum(0.0, self.saved_bytes - kept_bytes), 0.0)

    @cached_property
    def worked_out(self) -> dict[Hashable, Any]:
        """Sums that callers ask for again and again, by what they sum; empty at first."""
        return {}

    def inputs_bytes(self, ops: Iterable[int], recompute: RecomputeMode) -> float:
        """Return the bytes that layers of these operators keep of each other's results for a waiting micro-batch."""
        own = np.zeros(self.n_ops, dtype=bool)
        own[list(ops)] = True
        number, writer, reader = self._layer_inputs
        once = self._kept_once[writer] & (recompute == "selective")
        kept = own[writer] & own[reader] & ~once
        return float(self.layer_bytes[np.unique(number[kept])].sum())

    @cached_property
    def _kept_once(self) -> NDArray[np.bool_]:
        """[n_ops], whether selective recomputation keeps an operator's results."""
        return np.asarray(self.runs_once & (self.layer >= 0))

    @cached_property
    def _layer_inputs(self) -> Ints:
        """Columns of `reads` whose tensor a recomputed layer must keep, because another layer wrote it."""
        number, writer, reader = self.reads
        again = (self.layer[reader] != -1) & (self.layer[reader] != self.layer[writer])
        return self.reads[:, again & (self.layer_bytes[number] > 0)]

    @cached_property
    def linked(self) -> NDArray[np.bool_]:
        """[n_devices, n_devices], whether what is written on one device can be read on another."""
        linked = (self.link_class >= 0) | np.eye(self.n_devices, dtype=bool)
        linked.setflags(write=False)
        return linked

    def seconds(self, per_link_class: Floats) -> Floats:
        """Return [..., n_devices, n_devices], the value of each pair's link class; infinite without a link."""
        padded = np.concatenate([per_link_class, np.full((*per_link_class.shape[:-1], 1), np.inf)], axis=-1)
        between = padded[..., self.link_class]
        between[..., np.arange(self.n_devices), np.arange(self.n_devices)] = 0.0
        return between

    def send_s(self, flow: int, src: int, dst: int) -> float:
        """Seconds to send a flow from one device to another; infinite without a link."""
        link_class = int(self.link_class[src, dst])
        return float(self.link_s[flow, link_class]) if link_class >= 0 else 0.0 if src == dst else float("inf")

    @cached_property
    def transfer_s(self) -> Floats:
        """[n_flows, n_devices, n_devices], `send_s` of everything: large for many devices."""
        seconds = self.seconds(self.link_s)
        seconds.setflags(write=False)
        return seconds

    @cached_property
    def reads(self) -> Ints:
        """[3, n_reads], for every reader of every flow the number of the flow, its writer and the reader."""
        each = [(number, flow.writer, reader) for number, flow in enumerate(self.flows) for reader in flow.readers]
        return np.array(each, dtype=np.int64).reshape(-1, 3).T

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Every pair (writer, reader) of operators once, sorted."""
        return tuple(sorted({(flow.writer, reader) for flow in self.flows for reader in flow.readers}))

    def of_devices(self, chosen: Sequence[int]) -> "CostTable":
        """The table of some of the devices, in this order."""
        taken: dict[str, dict[str, Any]] = {"": {"devices": tuple(self.devices[device] for device in chosen)}}
        for name, values in _arrays(self):
            part, _, own = name.rpartition(".")
            for axis in (axis for axis, dimension in enumerate(SHAPES[name]) if dimension == "d"):
                values = values.take(chosen, axis)
            taken.setdefault(part, {})[own] = values
        parts = {part: replace(getattr(self, part), **arrays) for part, arrays in taken.items() if part}
        return replace(self, **taken[""], **parts)

    def share(self, source: Source) -> float:
        """The share of all operators' time (summed over the devices) that came from this source; 0 to 1."""
        total = self.forward_s[np.isfinite(self.forward_s)].sum()
        part = self.forward_s[np.isfinite(self.forward_s) & (self.source == source)].sum()
        return float(part / total) if total > 0 else 0.0


def _shape(table: CostTable, name: str) -> tuple[int, ...]:
    """The shape that an array of the table must have."""
    sizes = {"o": table.n_ops, "d": table.n_devices, "f": len(table.flows), "c": len(table.link_latency_s)}
    return tuple(sizes[letter] for letter in SHAPES[name])


def _arrays(table: CostTable) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of the table and of the parts that it has, by name."""
    for name in SHAPES:
        part, _, _ = name.rpartition(".")
        if not part or getattr(table, part):
            yield name, attrgetter(name)(table)


def worth_pairs(paired_s: Floats | float, whole_s: Floats | float) -> NDArray[np.bool_] | np.bool_:
    """Whether micro-batches had better run in pairs, by the seconds of operators that gain by it and of all."""
    return np.logical_and(np.greater(paired_s, 0), np.greater_equal(paired_s, np.multiply(PAIR_SHARE, whole_s)))


def _check_shapes(table: CostTable) -> None:
    for name, values in _arrays(table):
        if values.shape != (expected := _shape(table, name)):
            raise InputError(f"the cost table's {name} has the shape {values.shape}, expected {expected}")


def _check_numbers(table: CostTable) -> None:
    _check_costs(table)
    for name in ("slowdown", "copies_slowdown"):
        if not (getattr(table, name) > -1).all():
            raise InputError(
                f"the cost table's {name} holds a number that is not above -1; it is a share of the isolated time"
            )
    for name in ("spread", "slowdown", "copies_slowdown"):
        if not (getattr(table, name) <= LARGEST).all():
            raise InputError(f"the cost table's {name} holds a number above {LARGEST:g}; it is a share of a time")
    if table.offload and table.slowdown.any():
        raise InputError(
            "the cost table has both offload and slowdown; accelerators do not share their host's memory: leave "
            "out the slowdown"
        )
    if table.sharing not in SHARINGS:
        raise InputError(f"the cost table's sharing is '{table.sharing}'; it must be one of {', '.join(SHARINGS)}")
    for name in ("held", "working_bytes"):
        if not getattr(table, name) >= 0:
            raise InputError(f"the cost table's {name} is {getattr(table, name)}; it must be 0 or more")
    if (table.link_class >= len(table.link_latency_s)).any() or ((table.link_class >= 0) != (table.channel >= 0)).any():
        raise InputError(
            "the cost table's link_class and channel must name the same links, each of a class that exists"
        )
    for i, name in enumerate(table.ops):
        if not np.isfinite(table.forward_s[i]).any():
            raise InputError(f"operator '{name}' can run on no device; give it a finite time on at least one")


def _check_costs(table: CostTable) -> None:
    for name, values in _arrays(table):
        if name not in NO_COSTS and len(wrong := np.argwhere(~(_summable(values)))):
            row = int(wrong[0][0])
            owner = f" for operator '{table.ops[row]}'" if SHAPES[name][0] == "o" else ""
            owner = f" for tensor '{table.flows[row].tensor}'" if SHAPES[name][0] == "f" else owner
            value = values[tuple(wrong[0])]
            rule = f"{MOST:g} or less" if value > MOST else "0 or more"
            raise InputError(f"the cost table's {name} is {value}{owner}; costs are {rule}")


def _summable(values: Floats) -> NDArray[np.bool_]:
    """Return where costs are numbers from 0 to `MOST`, or infinite: where an operator cannot run."""
    return ((values >= 0) & (values <= MOST)) | np.isposinf(values)


def _check_flows(table: CostTable) -> None:
    for flow in table.flows:
        if not (0 <= flow.writer < table.n_ops and all(flow.writer < r < table.n_ops for r in flow.readers)):
            raise InputError(f"flow '{flow.tensor}' must run from an operator to later ones")
    for group in table.together:
        if any(not 0 <= i < table.n_ops for i in group):
            raise InputError(f"the group {group} names an operator that does not exist; there are {table.n_ops}")
