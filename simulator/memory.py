"""What devices hold over time, and what of it is there at the peak.

::

    device 0   [a][b]                 a* is written here and read by b and, on device 1, by c: here it is held from
    0 → 1         ==a*==              the start of a until b has ended and the transfer too;
    device 1            [c]           there from the start of the transfer until c has ended

Parameters, buffers and states of the optimizer are there all the time. Tensors are those that operators read: what only
leaves the network is not counted, and a view counts like a copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodels.table import CostTable, Floats, Ints
from graphs.brief import brief
from graphs.errors import InputError
from simulator.lower_schedule import Lowered
from simulator.placement import Placement
from simulator.schedule import B, F, I, W
from simulator.stages import Stage, split_stages
from simulator.timeline import Timeline
from simulator.training import TrainingRun


@dataclass(frozen=True, slots=True)
class Held:
    """Something that a device holds for a while.

    Attributes:
        name: the tensor, or the stage whose activations these are.
        micro_batch: its number.
        n_bytes: its size.
    """

    name: str
    micro_batch: int
    n_bytes: float


@dataclass(frozen=True)
class DeviceMemory:
    """What one device holds. What it holds for no time at all is left out.

    Attributes:
        device: its name.
        resident_bytes: what is there from the beginning to the end.
        names: of everything else.
        name: [n_held], index into ``names``.
        micro_batch: [n_held].
        from_s: [n_held], when it comes.
        until_s: [n_held], when it goes, later than it comes.
        n_bytes: [n_held].
    """

    device: str
    resident_bytes: float
    names: tuple[str, ...]
    name: Ints
    micro_batch: Ints
    from_s: Floats
    until_s: Floats
    n_bytes: Floats

    __repr__ = brief

    @cached_property
    def steps(self) -> tuple[Floats, Floats]:
        """Seconds, ascending from 0, and the bytes that are held from each of them on: [n_steps] both.

        What goes at an instant makes room for what comes at the same instant.
        """
        change_s = np.concatenate([[0.0], self.until_s, self.from_s])
        change_bytes = np.concatenate([[self.resident_bytes], -self.n_bytes, self.n_bytes])
        order = np.argsort(change_s, kind="stable")
        time_s, held_bytes = change_s[order], change_bytes[order].cumsum()
        last = np.append(time_s[1:] > time_s[:-1], True)  # of each instant
        return time_s[last], held_bytes[last]

    @property
    def peak_bytes(self) -> float:
        """The most at any time."""
        return float(self.steps[1].max())

    @property
    def peak_s(self) -> float:
        """When the most is reached for the first time."""
        return float(self.steps[0][self.steps[1].argmax()])

    def held(self, at_s: float) -> list[Held]:
        """What is there at this second besides what is always there, the largest first, then the oldest."""
        here = np.flatnonzero((self.from_s <= at_s) & (at_s < self.until_s))
        order = np.lexsort((self.name[here], self.micro_batch[here], -self.n_bytes[here]))
        columns = (column[here[order]].tolist() for column in (self.name, self.micro_batch, self.n_bytes))
        return [Held(self.names[name], number, n_bytes) for name, number, n_bytes in zip(*columns, strict=True)]


def memory_of(table: CostTable, placement: Placement, timeline: Timeline) -> tuple[DeviceMemory, ...]:
    """[n_devices], what inference holds.

    Within a stage, each operator runs for its part of the stage's time.

    Args:
        table: sizes of parameters and flows, and the operators' times.
        placement: where the operators are.
        timeline: a run of that placement, predicted or measured, of all its stages and transfers.

    Raises:
        InputError: if the timeline is not one of this placement.
    """
    stages = split_stages(table, placement)
    begin_s, end_s = _operators(table, stages, timeline)
    transfers = _transfers(table, placement, timeline)
    found: list[list[_Lifetime]] = [[] for _ in table.devices]
    for number, flow in enumerate(table.flows):
        home = placement.device[flow.writer]
        readers: dict[int, list[int]] = {home: [flow.writer]}
        for reader in flow.readers:
            readers.setdefault(placement.device[reader], []).append(reader)
        until_s = {device: end_s[:, ops].max(axis=1) for device, ops in readers.items()}
        for device in readers.keys() - {home}:
            sent_s, arrives_s = transfers[number, device].T
            until_s[home] = np.maximum(until_s[home], arrives_s)
            found[device].append(_Lifetime(number, sent_s, np.maximum(until_s[device], arrives_s)))
        found[home].append(_Lifetime(number, begin_s[:, flow.writer], until_s[home]))
    resident_bytes = np.zeros(table.n_devices)
    np.add.at(resident_bytes, np.asarray(placement.device), table.op_bytes)
    names = tuple(flow.tensor for flow in table.flows)
    return tuple(
        _device_memory((device, float(resident_bytes[i])), names, found[i], table.flow_bytes)
        for i, device in enumerate(table.devices)
    )


def training_memory(table: CostTable, run: TrainingRun) -> tuple[DeviceMemory, ...]:
    """[n_devices of the pipeline], what a training step holds: the activations that stages keep for the backward pass.

    What a stage that recomputes makes anew has a name of its own.

    What computing takes (`CostTable.working_bytes`) counts all the time, so that the peaks are those of the run.
    """
    lowered = run.pipeline.lowered
    number, again, from_s, until_s, kept_bytes = _kept(lowered, run.pipeline.start_s, run.pipeline.end_s)
    stage, _, micro_batch, device = (column[number] for column in lowered.schedule.columns)
    n_stages = lowered.schedule.n_stages
    names = tuple(f"stage {s}{how}" for how in ("", ", recomputed") for s in range(n_stages))
    resident_bytes = np.full(len(run.pipeline.devices), table.working_bytes)
    for ops, where in zip(run.stages, lowered.schedule.device, strict=True):
        resident_bytes[where] += table.op_bytes[list(ops)].sum()
    memories = []
    for i, name in enumerate(run.pipeline.devices):
        here = (device == i) & (until_s > from_s) & (kept_bytes > 0)
        columns = (column[here] for column in (stage + n_stages * again, micro_batch, from_s, until_s, kept_bytes))
        memories.append(DeviceMemory(name, float(resident_bytes[i]), names, *columns))
    return tuple(memories)


@dataclass(frozen=True)
class _Lifetime:
    """A flow on one device: from when until when each micro-batch's is there, [micro_batches]."""

    flow: int
    from_s: Floats
    until_s: Floats


def _operators(table: CostTable, stages: Sequence[Stage], timeline: Timeline) -> tuple[Floats, Floats]:
    """[micro_batches, n_ops] each: when operators start and end. One ends exactly when the next one starts."""
    begin_s, end_s = np.full((2, timeline.micro_batches, table.n_ops), np.nan)
    parts = [_parts(table, stage) for stage in stages]
    for span in timeline.spans:
        if span.kind == "compute" and span.index < len(stages):
            stage = stages[span.index]
            edges_s = span.start_s + parts[span.index] * (span.end_s - span.start_s)
            edges_s[-1] = span.end_s
            ops = list(stage.ops)
            begin_s[span.micro_batch, ops], end_s[span.micro_batch, ops] = edges_s[:-1], edges_s[1:]
    if np.isnan(end_s).any():
        raise InputError("the timeline does not run every operator of the placement; simulate that placement again")
    return begin_s, end_s


def _parts(table: CostTable, stage: Stage) -> Floats:
    """[n_ops of the stage + 1], from 0 to 1: where in the stage's time its operators meet."""
    seconds = table.forward_s[list(stage.ops), stage.device].copy()
    seconds[0] += table.overhead_s[stage.device] * len(stage.receives)
    seconds[-1] += table.overhead_s[stage.device] * len(stage.sends)
    total_s = seconds.sum()
    return np.concatenate([[0.0], seconds.cumsum() / total_s if total_s > 0 else np.zeros(len(seconds))])


def _transfers(table: CostTable, placement: Placement, timeline: Timeline) -> dict[tuple[int, int], Floats]:
    """By flow and receiving device: [micro_batches, 2], when it departs and when it arrives."""
    known = {
        (f"{table.devices[src]} → {table.devices[dst]}", flow): (flow, dst) for flow, src, dst in placement.cuts(table)
    }
    times_s = {key: np.full((timeline.micro_batches, 2), np.nan) for key in known.values()}
    for span in timeline.spans:
        key = known.get((span.resource, span.index)) if span.kind == "transfer" else None
        if key is not None:
            times_s[key][span.micro_batch] = span.start_s, span.end_s
    if any(np.isnan(pairs).any() for pairs in times_s.values()):
        raise InputError("the timeline does not send every tensor of the placement; simulate that placement again")
    return times_s


def _device_memory(
    device: tuple[str, float], names: tuple[str, ...], found: Sequence[_Lifetime], flow_bytes: Floats
) -> DeviceMemory:
    """Put the lifetimes on a device (its name, and what it always holds) into columns."""
    counts = [len(lifetime.from_s) for lifetime in found]
    flow = np.repeat(np.array([lifetime.flow for lifetime in found], dtype=np.int64), counts)
    micro_batch = np.concatenate([np.arange(0), *map(np.arange, counts)])
    from_s, until_s = (
        np.concatenate([np.zeros(0), *(getattr(lifetime, name) for lifetime in found)])
        for name in ("from_s", "until_s")
    )
    some: NDArray[np.bool_] = (until_s > from_s) & (flow_bytes[flow] > 0)
    return DeviceMemory(
        *device, names, flow[some], micro_batch[some], from_s[some], until_s[some], flow_bytes[flow[some]]
    )


def _kept(lowered: Lowered, start_s: Floats, end_s: Floats) -> tuple[Ints, Ints, Floats, Floats, Floats]:
    """What stages keep: the action that writes it, whether that recomputes, from when, until when, how much.

    See `simulator.saved`.
    """
    schedule, costs = lowered.schedule, lowered.costs
    if not schedule.trains:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0)
    saved_bytes, kept_bytes, again_bytes = (
        np.repeat([float(getattr(cost, name)) for cost in costs], schedule.micro_batches)
        for name in ("saved_bytes", "kept_bytes", "recomputed_bytes")
    )
    forward, whole, part, weights = (schedule.position[letter].ravel() for letter in (F, B, I, W))
    split = part >= 0
    back = np.where(split, part, whole)
    return (
        np.concatenate([forward, part[split], back]),
        np.repeat([0, 0, 1], [len(forward), int(split.sum()), len(back)]),
        np.concatenate([start_s[forward], end_s[part[split]], start_s[back]]),
        np.concatenate([end_s[back], end_s[weights[split]], end_s[back]]),
        np.concatenate([saved_bytes, kept_bytes[split], again_bytes]),
    )
