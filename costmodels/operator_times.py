"""The times of operators on devices: measured where there is a measurement, else learned, else estimated.

An estimate follows from a device's data sheet if that is known (`costmodels.estimates`), else from its peaks alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from costmodels.cluster.cluster import Cluster, Device
from costmodels.estimates.estimate import Estimate, estimated
from costmodels.estimates.kernels import Kernels, network_kernels
from costmodels.estimates.reference import LEFT, compares, kind_ratios
from costmodels.measured import Profile
from costmodels.operators.device_kinds import runs_on
from costmodels.operators.flops import Work, roofline_s, work_of
from costmodels.operators.keys import op_keys, training_keys
from costmodels.operators.pace import PaceKind, operator_paces, pace_kinds, pace_ratios
from costmodels.operators.views import backward_passes
from costmodels.table import QUARTILES, Source
from costmodels.workload import Workload
from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.ir import Graph, unfused
from graphs.rewrites.scans import unrolled

if TYPE_CHECKING:  # scipy takes a third of a second to load
    from costmodels.learning.learned import LearnedModel


class LearnedOf(Protocol):
    """A function from a profile's fingerprint to times learned for its kind of device."""

    def __call__(self, fingerprint: str, /) -> LearnedModel | None:
        """Return them, None if nothing was learned; called if measurements are missing."""


SOURCE = f"<U{max(map(len, Source))}"
LEAST = -0.75  # copies' slowdown, where two micro-batches take as long as one, with weights from the last cache
PAIR_GAIN = 0.1  # above it, an operator takes less time in copies since two micro-batches run at once; below, by chance
MOSTLY = 0.9  # share of a network's time that is measured, from which it corrects estimates for other devices
ROOFLINE_SPREAD = 0.5  # two peaks are off by 25 % in the mean, either way


@dataclass(frozen=True)
class OperatorTimes(Brief):
    """Times of operators, and how each of them is known.

    All arrays are [n_ops, n_devices]. Those left out are zeros; ``copies_slowdown`` is then ``slowdown``.
    """

    forward_s: Floats  # isolated seconds of one micro-batch, see `CostTable`
    source: NDArray[np.str_]  # a `Source` each
    backward_s: Floats = field(default_factory=lambda: np.zeros(0))  # isolated seconds
    spread: Floats = field(default_factory=lambda: np.zeros(0))  # distance of the quartiles, a share of the time
    slowdown: Floats = field(default_factory=lambda: np.zeros(0))  # see `ContentionCosts`
    copies_slowdown: Floats = field(default_factory=lambda: np.zeros(0))  # see `ContentionCosts`

    def __post_init__(self) -> None:
        for name in ("backward_s", "spread", "slowdown", "copies_slowdown"):
            if not getattr(self, name).size:
                same = self.slowdown if name == "copies_slowdown" else np.zeros(self.forward_s.shape)
                object.__setattr__(self, name, same)


def operator_times(
    graph: Graph,
    cluster: Cluster,
    workload: Workload,
    profiles: Mapping[str, Profile],
    learned: LearnedOf = lambda _: None,
) -> OperatorTimes:
    """Return the times of every operator on every device, computed once for devices that are alike.

    A time is measured if there is a measurement, at the machine's usual pace (see `Profile.usual_pace`), else learned,
    else estimated from the data sheet, else by the roofline. For several devices of one kind, the slowdowns are those
    measured while as many compute; operators without such a measurement are slowed down as those of the device usually
    are, see `Profile.slowdown`. Copies with quick kernels were measured as they run two micro-batches at once; fewer in
    flight run one by one. In inference, operators that begin and end a micro-batch also take the time of a request (see
    `Device.request_s`). A backward pass that was neither measured nor estimated is as many passes forward as it has
    products, unless learned (see `costmodels.learning.in_training`). A scan takes as long as its operators together.
    Where PyTorch lacks an operator for the kind of a device, its time is infinite, see `runs_on`.
    """
    whole, (graph, starts) = graph, unrolled(graph)
    operators = _OperatorWork(graph, workload.trains)
    known: dict[object, OperatorTimes] = {}
    equals = Counter(device.profile for device in cluster.devices)
    columns = []
    for device in cluster.devices:
        peaks = tuple(sorted(device.flops_per_s.items()))
        alike = (peaks, device.memory_bytes_per_s, device.launch_s, device.request_s, device.profile, device.sheet)
        if alike not in known:
            count = equals[device.profile]
            in_copies = device.kernels == "exact" or workload.in_pairs(count)
            known[alike] = _column(operators, device, profiles.get(device.profile), count, in_copies, learned)
        columns.append(vars(known[alike]))
    times = OperatorTimes(**{name: np.column_stack([column[name] for column in columns]) for name in columns[0]})
    times = _by_reference(times, operators, cluster)
    times = times if len(graph.ops) == len(whole.ops) else _together(times, starts)
    one_of_each = {device.is_processor: device for device in cluster.devices}
    able = {kind: runs_on(whole.ops, device) for kind, device in one_of_each.items()}
    runs = np.column_stack([able[device.is_processor] for device in cluster.devices])
    times = replace(times, forward_s=np.where(runs, times.forward_s, np.inf))
    return times if workload.trains else replace(times, backward_s=np.zeros(0))


def _together(times: OperatorTimes, starts: Sequence[int]) -> OperatorTimes:
    """Return the times of scans, whose first operators have the indices ``starts``, as operators of a graph are.

    Shares are means, weighted by time, and a sum is known as its operator with the longest time is.
    """
    both_s = np.maximum(times.forward_s + times.backward_s, np.finfo(float).tiny)
    total_s = np.add.reduceat(both_s, starts)
    bounds = [*starts[1:], len(both_s)]
    longest = np.array([start + both_s[start:stop].argmax(axis=0) for start, stop in zip(starts, bounds, strict=True)])

    def mean(shares: Floats) -> Floats:
        return np.asarray(np.add.reduceat(shares * both_s, starts) / total_s)

    return OperatorTimes(
        np.add.reduceat(times.forward_s, starts),
        np.take_along_axis(times.source, longest, axis=0),
        np.add.reduceat(times.backward_s, starts),
        mean(times.spread),
        mean(times.slowdown),
        mean(times.copies_slowdown),
    )


def _by_reference(times: OperatorTimes, operators: _OperatorWork, cluster: Cluster) -> OperatorTimes:
    """Correct estimates by what the network took on another device, see `costmodels.estimates.reference`.

    The other device is of the cluster and has a data sheet and measurements of most of the network's time.
    """
    measured = times.source == Source.MEASURED
    both_s, forward_s, backward_s = times.forward_s + times.backward_s, times.forward_s.copy(), times.backward_s.copy()
    spread, devices = times.spread.copy(), cluster.devices
    known = [measured[:, i] @ both_s[:, i] >= MOSTLY * both_s[:, i].sum() > 0 for i in range(len(devices))]
    references = [i for i, device in enumerate(devices) if device.sheet and known[i]]
    for wanted, device in enumerate(devices):
        sheet = device.sheet
        found = next((i for i in references if sheet and i != wanted and compares(devices[i].sheet, sheet)), None)
        if found is None or not (times.source[:, wanted] == Source.ESTIMATED).all():
            continue
        there = operators.estimate(devices[found])
        measured_s = np.where(measured[:, found], both_s[:, found], np.nan)
        ratios = kind_ratios(operators.kernels.kind, measured_s, there.forward_s + there.backward_s)
        ratio = ratios[operators.kernels.kind]
        forward_s[:, wanted], backward_s[:, wanted] = forward_s[:, wanted] * ratio, backward_s[:, wanted] * ratio
        spread[:, wanted] *= LEFT
    return replace(times, forward_s=forward_s, backward_s=backward_s, spread=spread)


@dataclass(frozen=True)
class _OperatorWork:
    """Properties of operators that are the same on every device, computed once."""

    graph: Graph
    trains: bool  # whether they run in training

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """[n_ops], of the measurements."""
        return training_keys(self.graph) if self.trains else op_keys(self.graph)

    def measured(self, profile: Profile | None) -> bool:
        """Return whether a profile has all of them."""
        if profile is None:
            return False
        return set(self.keys) <= (profile.training.keys() if self.trains else profile.ops.keys())

    @cached_property
    def work(self) -> Work:
        """FLOP and bytes."""
        return work_of(self.graph)

    @cached_property
    def kernels(self) -> Kernels:
        """The figures by which their times are estimated for devices with a data sheet."""
        return network_kernels(self.graph)

    def estimate(self, device: Device) -> Estimate:
        """Times on a device with a data sheet."""
        return estimated(self.kernels, device, self.guessed, self.products if self.trains else None)

    @cached_property
    def guessed(self) -> NDArray[np.bool_]:
        """[n_ops], whether an operator's kind has no formula."""
        return np.array([op.kind in self.work.guessed for op in self.graph.ops], dtype=bool)

    @cached_property
    def pace_kinds(self) -> Sequence[PaceKind]:
        """[n_ops], which reference computation gives the machine's pace for each."""
        return pace_kinds(self.graph, self.work)

    @cached_property
    def requests(self) -> Floats:
        """[n_ops], the share of a request that each operator takes: half at the first that read the network's inputs.

        The other half is at those that write its outputs; there are none in training. A cache is never handed over.
        """
        shares = np.zeros(len(self.graph.ops))
        if not self.trains:
            readers = {name: i for i, op in reversed(list(enumerate(self.graph.ops))) for name in op.inputs}
            writers = {name: i for i, op in enumerate(self.graph.ops) for name in op.outputs}
            cached = {name for pair in self.graph.caches for name in pair}
            for names, ops in ((self.graph.inputs, readers), (self.graph.outputs, writers)):
                ends = [ops[name] for name in names if name in ops and name not in cached]
                np.add.at(shares, ends, 0.5 / max(1, len(ends)))
        return shares

    @cached_property
    def products(self) -> Floats:
        """[n_ops], how many passes forward an operator's backward pass is like; 0 in inference."""
        return backward_passes(self.graph) if self.trains else np.zeros(len(self.graph.ops))


def _column(
    operators: _OperatorWork,
    device: Device,
    profile: Profile | None,
    equals: int,
    in_copies: bool,
    learned_of: LearnedOf,
) -> OperatorTimes:
    """Return [n_ops], times on a device with ``equals`` devices of its kind: measured, learned or by the roofline.

    ``in_copies`` is whether copies of the network can run as they were measured.
    """
    forward_s = roofline_s(operators.work, device)
    spread = np.full(len(forward_s), ROOFLINE_SPREAD)
    slowdown, copies = np.zeros(len(forward_s)), np.zeros(len(forward_s))
    source = np.full(len(forward_s), str(Source.ROOFLINE), dtype=SOURCE)
    backward_s = forward_s * operators.products
    if device.sheet:
        estimate = operators.estimate(device)
        forward_s, backward_s, spread = estimate.forward_s, estimate.backward_s, QUARTILES * estimate.deviation
        source[:] = Source.ESTIMATED
    learned = learned_of(device.profile) if device.profile and not operators.measured(profile) else None
    if learned:
        learned_s, learned_backward_s, learned_spread = _predicted(learned, operators)
        found = ~np.isnan(learned_s)
        forward_s[found], source[found] = learned_s[found], Source.LEARNED
        backward_s[found], spread[found] = learned_backward_s[found], QUARTILES * learned_spread[found]
    if profile:
        for i, key in enumerate(operators.keys):
            slowdown[i] = profile.slowdown(key, equals, operators.trains)
            copies[i] = profile.copies_slowdown(key, equals) if in_copies and not operators.trains else slowdown[i]
            if operators.trains and (step := profile.training.get(key)):
                forward_s[i], backward_s[i] = step.forward.seconds, step.backward.seconds
                spread[i], source[i] = step.spread, Source.MEASURED
            elif not operators.trains and (alone := profile.ops.get(key)):
                forward_s[i], spread[i], source[i] = alone.seconds, alone.spread, Source.MEASURED
        kinds, usual = operators.pace_kinds, profile.usual_pace
        isolated, contended = (operator_paces(kinds, pace_ratios(usual, profile.pace, n)) for n in (1, equals))
        slowdown, copies = ((1 + share) * contended / isolated - 1 for share in (slowdown, copies))
        paired = (copies < -PAIR_GAIN) & (device.kernels == "quick")
        slowdown, copies = np.maximum(0.0, slowdown), np.maximum(np.where(paired, LEAST, 0.0), copies)
        paces = np.where(source == Source.MEASURED, isolated, 1.0)
        forward_s, backward_s = forward_s * paces, backward_s * paces
    forward_s = forward_s + operators.requests * device.request_s
    return OperatorTimes(forward_s, source, backward_s, spread, slowdown, copies)


def _predicted(learned: LearnedModel, operators: _OperatorWork) -> tuple[Floats, Floats, Floats]:
    """Return the seconds forward and backward and their spread, [n_ops] each; fused members add up."""
    graph = operators.graph
    predicted = learned.predict(replace(graph, ops=tuple(unfused(graph.ops))), operators.trains)
    starts = np.cumsum([0, *(len(op.members) or 1 for op in graph.ops)])[:-1]
    if not len(starts):
        return predicted.seconds, predicted.backward_s, predicted.spread
    seconds, backward_s = (np.add.reduceat(each, starts) for each in (predicted.seconds, predicted.backward_s))
    return seconds, backward_s, np.maximum.reduceat(predicted.spread, starts)
