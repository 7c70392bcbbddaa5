"""CostTable: every number that a planner needs, as arrays. No code after it asks a cost model."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from costmodels.cluster.cluster import SHARINGS, Sharing
from costmodels.contention_costs import ContentionCosts
from costmodels.measured import LARGEST
from costmodels.step_update import StepUpdate
from costmodels.training_costs import TrainingCosts
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
    ESTIMATED = "estimated"  # from a data sheet and what devices of its kind reach, see `costmodels.estimates`
    ROOFLINE = "roofline"
    GIVEN = "given"  # by the user or by a problem file


SURE = (Source.MEASURED, Source.GIVEN)
"""Where numbers come from that are no predictions."""


SHAPES: Mapping[str, str] = (
    dict.fromkeys(("forward_s", "spread", "source", "training.backward_s"), "od")
    | dict.fromkeys(("contention.slowdown", "contention.copies_slowdown"), "od")
    | dict.fromkeys(("op_bytes", "training.saved_bytes", "training.ends_bytes", "training.runs_once"), "o")
    | dict.fromkeys(("training.once_bytes", "training.once_saved_bytes", "training.layer"), "o")
    | {"training.update.gradient_bytes": "o"}
    | dict.fromkeys(("flow_bytes", "training.gradient", "training.layer_bytes"), "f")
    | dict.fromkeys(("capacity_bytes", "overhead_s", "contention.group"), "d")
    | dict.fromkeys(("training.update.optimizer_s_per_byte", "training.update.sync_s_per_byte"), "d")
    | dict.fromkeys(("training.update.sync_latency_s", "training.update.uplink"), "d")
    | {"link_class": "dd", "channel": "dd", "link_s": "fc", "link_latency_s": "c"}
)
"""The arrays of a table and of its parts with their dimensions: operators, devices, flows and link classes."""

LABELS = frozenset({"contention.group", "training.update.uplink", "channel"})
"""Arrays whose numbers say only what is the same: other numbers for the same groups change no cost."""

CERTAINTY = frozenset({"source", "spread"})
"""Arrays that say how certain a cost is, and change none."""

PAIR_SHARE = 0.1  # of the time, for which micro-batches run in pairs, whose activations are twice as large
NO_COSTS = (
    LABELS
    | {"source", "contention.slowdown", "contention.copies_slowdown", "link_class"}
    | {"training.gradient", "training.runs_once", "training.layer"}
)


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
        spread: [n_ops, n_devices], how uncertain each time is: the distance of its quartiles as a share of it.
        training: what is known of backward passes; None in inference.
        contention: by how much devices slow each other down; None if none does.

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
    spread: Floats = field(default_factory=lambda: np.zeros(0))
    training: TrainingCosts | None = None
    contention: ContentionCosts | None = None
    sharing: Sharing = "fifo"

    shapes: ClassVar[Mapping[str, str]] = SHAPES
    in_order: ClassVar[bool] = True
    """Whether a device runs one operator after the other, so that their order changes a makespan."""

    def __post_init__(self) -> None:
        for name in ("overhead_s", "spread"):
            if not getattr(self, name).size:
                object.__setattr__(self, name, np.zeros(_shape(self, name)))
        _check_shapes(self)
        _check_numbers(self)
        _check_flows(self)
        for _, values in arrays_of(self):
            values.setflags(write=False)

    @property
    def n_ops(self) -> int:
        """How many operators."""
        return len(self.ops)

    @property
    def n_devices(self) -> int:
        """How many devices."""
        return len(self.devices)

    @cached_property
    def trained(self) -> TrainingCosts:
        """The costs of training; zeros in inference."""
        return self.training or TrainingCosts.none(self.n_ops, self.n_devices, len(self.flows))

    @property
    def backward_s(self) -> Floats:
        """[n_ops, n_devices], isolated seconds of the backward pass of one micro-batch; zeros in inference."""
        return self.trained.backward_s

    @property
    def update(self) -> StepUpdate | None:
        """Return the optimizer and the sums of gradients that end a step; None if they take no time."""
        return self.training.update if self.training else None

    @cached_property
    def _slowed(self) -> ContentionCosts:
        """The contention between devices; zeros without any."""
        return self.contention or ContentionCosts(np.zeros(self.forward_s.shape), group=np.arange(self.n_devices))

    @property
    def slowdown(self) -> Floats:
        """[n_ops, n_devices], see `ContentionCosts`; zeros without contention."""
        return self._slowed.slowdown

    @property
    def copies_slowdown(self) -> Floats:
        """[n_ops, n_devices], see `ContentionCosts`; zeros without contention."""
        return self._slowed.copies_slowdown

    @property
    def contention_group(self) -> Ints:
        """[n_devices], number of the group whose devices slow each other down; one each without contention."""
        return self._slowed.group

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
        """Return the costs while the others of a device's group compute during a share of its work, [n_devices].

        Contention is counted here and in `in_copies` alone: their tables have no slowdown left.
        """
        return self._longer(1 + share * self.slowdown)

    def _longer(self, times: Floats) -> "CostTable":
        """Return the costs where operators take ``times`` as long, [n_ops, n_devices]."""
        if not (self.contention and self.contention.slows):
            return self
        training = self.training and replace(self.training, backward_s=self.training.backward_s * times)
        none = np.zeros_like(self.forward_s)
        contention = replace(self.contention, slowdown=none, copies_slowdown=none)
        return replace(self, forward_s=self.forward_s * times, training=training, contention=contention)

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
        return self.op_bytes + self.training.held * self.training.saved_bytes if self.training else self.op_bytes

    def again_s(self, recompute: RecomputeMode) -> Floats:
        """[n_ops, n_devices], isolated seconds for which operators run again before their backward pass."""
        return np.where(self.trained.runs_again(recompute)[:, None], self.forward_s, 0.0)

    @cached_property
    def worked_out(self) -> dict[Hashable, Any]:
        """Results that callers work out from the table and keep with it, by what they ask."""
        return {}

    def inputs_bytes(self, ops: Iterable[int], recompute: RecomputeMode) -> float:
        """Return the bytes that layers of these operators keep of each other's results for a waiting micro-batch."""
        own = np.zeros(self.n_ops, dtype=bool)
        own[list(ops)] = True
        number, writer, reader = self._layer_inputs
        kept = own[writer] & own[reader] & ~self.trained.kept_once(recompute)[writer]
        return float(self.trained.layer_bytes[np.unique(number[kept])].sum())

    @cached_property
    def _layer_inputs(self) -> Ints:
        """Return the rows of `reads` whose tensor a recomputed layer must keep, because another layer wrote it."""
        number, writer, reader = self.reads
        layer = self.trained.layer
        again = (layer[reader] != -1) & (layer[reader] != layer[writer])
        return self.reads[:, again & (self.trained.layer_bytes[number] > 0)]

    @cached_property
    def linked(self) -> NDArray[np.bool_]:
        """[n_devices, n_devices], whether what is written on one device can be read on another."""
        linked = (self.link_class >= 0) | np.eye(self.n_devices, dtype=bool)
        linked.setflags(write=False)
        return linked

    def seconds(self, per_link_class: Floats) -> Floats:
        """Return [..., n_devices, n_devices], the number of each pair's link class; infinite without a link."""
        padded = np.concatenate([per_link_class, np.full((*per_link_class.shape[:-1], 1), np.inf)], axis=-1)
        between = padded[..., self.link_class]
        between[..., np.arange(self.n_devices), np.arange(self.n_devices)] = 0.0
        return between

    def send_s(self, flow: int, src: int, dst: int) -> float:
        """Return the seconds to send a flow from one device to another; infinite without a link."""
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
        """Return the table of some of the devices, in this order."""
        taken: dict[str, dict[str, Any]] = {"": {"devices": tuple(self.devices[device] for device in chosen)}}
        for name, values in arrays_of(self):
            part, _, own = name.rpartition(".")
            for axis in device_axes(self, name):
                values = values.take(chosen, axis)
            taken.setdefault(part, {})[own] = values
        for part in sorted(filter(None, taken), reverse=True):  # a part's own parts are before it
            whole, _, own = part.rpartition(".")
            taken[whole][own] = replace(attrgetter(part)(self), **taken[part])
        return replace(self, **taken[""])

    def share(self, source: Source) -> float:
        """Return the share of all operators' time, summed over the devices, that came from this source; 0 to 1."""
        total = self.forward_s[np.isfinite(self.forward_s)].sum()
        part = self.forward_s[np.isfinite(self.forward_s) & (self.source == source)].sum()
        return float(part / total) if total > 0 else 0.0


def _shape(table: CostTable, name: str) -> tuple[int, ...]:
    """Return the shape that an array of the table must have."""
    sizes = {"o": table.n_ops, "d": table.n_devices, "f": len(table.flows), "c": len(table.link_latency_s)}
    return tuple(sizes[letter] for letter in table.shapes[name])


def arrays_of(table: CostTable) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of the table and of its parts, with their names, see `SHAPES`."""
    for name in table.shapes:
        *parts, own = name.split(".")
        record: Any = table
        for part in parts:
            record = record and getattr(record, part)
        if record:
            yield name, getattr(record, own)


def device_axes(table: CostTable, name: str) -> tuple[int, ...]:
    """Return the axes of an array of the table that are devices."""
    return tuple(axis for axis, dimension in enumerate(table.shapes[name]) if dimension == "d")


def worth_pairs(paired_s: Floats | float, whole_s: Floats | float) -> NDArray[np.bool_] | np.bool_:
    """Return whether pairs of micro-batches pay, by the seconds of the operators that gain by them and of all."""
    return np.logical_and(np.greater(paired_s, 0), np.greater_equal(paired_s, np.multiply(PAIR_SHARE, whole_s)))


def _check_shapes(table: CostTable) -> None:
    for name, values in arrays_of(table):
        if values.shape != (expected := _shape(table, name)):
            raise InputError(f"the cost table's {name} has the shape {values.shape}, expected {expected}")


def _check_numbers(table: CostTable) -> None:
    _check_costs(table)
    _check_contention(table)
    if not (table.spread <= LARGEST).all():
        raise InputError(f"the cost table's spread holds a number above {LARGEST:g}; it is a share of a time")
    if table.sharing not in SHARINGS:
        raise InputError(f"the cost table's sharing is '{table.sharing}'; it must be one of {', '.join(SHARINGS)}")
    held = table.training.held if table.training else 0.0
    for name, value in (("training.held", held), ("working_bytes", table.working_bytes)):
        if not value >= 0:
            raise InputError(f"the cost table's {name} is {value}; it must be 0 or more")
    if (table.link_class >= len(table.link_latency_s)).any() or ((table.link_class >= 0) != (table.channel >= 0)).any():
        raise InputError(
            "the cost table's link_class and channel must name the same links, each of a class that exists"
        )
    for i, name in enumerate(table.ops):
        if not np.isfinite(table.forward_s[i]).any():
            raise InputError(f"operator '{name}' can run on no device; give it a finite time on at least one")


def _check_contention(table: CostTable) -> None:
    if not table.contention:
        return
    for name in ("slowdown", "copies_slowdown"):
        shares = getattr(table.contention, name)
        if not (shares > -1).all():
            raise InputError(
                f"the cost table's {name} holds a number that is not above -1; it is a share of the isolated time"
            )
        if not (shares <= LARGEST).all():
            raise InputError(f"the cost table's {name} holds a number above {LARGEST:g}; it is a share of a time")


def _check_costs(table: CostTable) -> None:
    for name, values in arrays_of(table):
        if name not in NO_COSTS and len(wrong := np.argwhere(~(_summable(values)))):
            row = int(wrong[0][0])
            owner = f" for operator '{table.ops[row]}'" if table.shapes[name][0] == "o" else ""
            owner = f" for tensor '{table.flows[row].tensor}'" if table.shapes[name][0] == "f" else owner
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
