"""The memory of devices over time, and its content at the peak.

::

    device 0   [a][b]                 a* is written by a and read by b and, on device 1, by c: device 0 holds it from
    0 → 1         ==a*==              the start of a until both b and the transfer have ended;
    device 1            [c]           device 1 from the start of the transfer until c has ended

Parameters, buffers and states of the optimizer are held all the time. Only tensors that operators read are counted, so
results of the network are not; a view counts like a copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodels.table import CostTable
from graphs.common.arrays import Floats, Ints
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from simulator.lower_schedule import LoweredSchedule
from simulator.placement import Placement
from simulator.schedule import B, F, I, W
from simulator.stages import Stage, split_stages
from simulator.timeline import Timeline
from simulator.training import TrainingRun

Lifetime: TypeAlias = tuple[int, Ints, Floats, Floats]
"""A flow on one device, and [n] each, micro-batches and the seconds from and until which the device holds it."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A tensor, or the activations of a stage, in the memory of a device."""

    name: str  # name of the tensor or of the stage
    micro_batch: int  # number of the micro-batch
    n_bytes: float  # size in bytes


@dataclass(frozen=True)
class DeviceMemory(Brief):
    """The memory of one device over time, without tensors that are held for no time."""

    device: str  # name of the device
    resident_bytes: float  # bytes that are held from the beginning to the end
    names: tuple[str, ...]  # names of the tensors and stages
    name: Ints  # [n_held], index into ``names``
    micro_batch: Ints  # [n_held], number of the micro-batch
    from_s: Floats  # [n_held], second of the allocation
    until_s: Floats  # [n_held], second of the release, later than the allocation
    n_bytes: Floats  # [n_held], size in bytes

    @cached_property
    def steps(self) -> tuple[Floats, Floats]:
        """[n_steps] each: ascending seconds from 0, and the bytes that are held from each second on.

        Releases at an instant precede allocations at the same instant.
        """
        change_s = np.concatenate([[0.0], self.until_s, self.from_s])
        change_bytes = np.concatenate([[self.resident_bytes], -self.n_bytes, self.n_bytes])
        order = np.argsort(change_s, kind="stable")
        time_s, held_bytes = change_s[order], change_bytes[order].cumsum()
        last = np.append(time_s[1:] > time_s[:-1], True)  # whether a change is the last one of its instant
        return time_s[last], held_bytes[last]

    @property
    def peak_bytes(self) -> float:
        """The largest number of bytes at any time."""
        return float(self.steps[1].max())

    @property
    def peak_s(self) -> float:
        """The second at which the peak is reached first."""
        return float(self.steps[0][self.steps[1].argmax()])

    def held(self, at_s: float) -> list[Allocation]:
        """Return the tensors at this second besides the resident ones, the largest first, then the oldest."""
        held = np.flatnonzero((self.from_s <= at_s) & (at_s < self.until_s))
        order = np.lexsort((self.name[held], self.micro_batch[held], -self.n_bytes[held]))
        columns = (column[held[order]].tolist() for column in (self.name, self.micro_batch, self.n_bytes))
        return [Allocation(self.names[name], number, n_bytes) for name, number, n_bytes in zip(*columns, strict=True)]


def memory_of(table: CostTable, placement: Placement, timeline: Timeline) -> tuple[DeviceMemory, ...]:
    """Return [n_devices], the memory of an inference run.

    Within a stage, each operator runs for its part of the stage's time. The timeline is a predicted or measured run of
    the placement, with all its stages and transfers.

    Raises:
        InputError: if the timeline is not one of this placement.
    """
    begin_s, end_s = _operators(table, split_stages(table, placement), timeline)
    lifetimes: list[list[Lifetime]] = [[] for _ in table.devices]
    for number, copy in enumerate(placement.copies):
        through = np.arange(number, timeline.micro_batches, len(placement.copies))
        transfers = _transfers(table, copy, timeline, through)
        for device, lifetime in _lifetimes(table, copy, (begin_s[through], end_s[through]), transfers):
            lifetimes[device].append((lifetime[0], through, *lifetime[1:]))
    resident_bytes = placement.held_bytes(table.op_bytes, table.n_devices)
    names = tuple(flow.tensor for flow in table.flows)
    return tuple(
        _device_memory((device, float(resident_bytes[i])), names, lifetimes[i], table.flow_bytes)
        for i, device in enumerate(table.devices)
    )


def _lifetimes(
    table: CostTable, copy: Placement, times_s: tuple[Floats, Floats], transfers: dict[tuple[int, int], Floats]
) -> Iterator[tuple[int, tuple[int, Floats, Floats]]]:
    """Yield the flows of one copy of the network: device, and flow, from and until which second, for each micro-batch.

    ``times_s``, [micro-batches of the copy, n_ops] each, says when operators start and end.
    """
    begin_s, end_s = times_s
    for number, flow in enumerate(table.flows):
        home = copy.device[flow.writer]
        readers: dict[int, list[int]] = {home: [flow.writer]}
        for reader in flow.readers:
            readers.setdefault(copy.device[reader], []).append(reader)
        until_s = {device: end_s[:, ops].max(axis=1) for device, ops in readers.items()}
        for device in readers.keys() - {home}:
            sent_s, arrives_s = transfers[number, device].T
            until_s[home] = np.maximum(until_s[home], arrives_s)
            yield device, (number, sent_s, np.maximum(until_s[device], arrives_s))
        yield home, (number, begin_s[:, flow.writer], until_s[home])


def training_memory(table: CostTable, run: TrainingRun) -> tuple[DeviceMemory, ...]:
    """Return [n_devices], the memory of a training step: activations that stages keep for the backward pass.

    Recomputed activations have names of their own. Working memory (`CostTable.working_bytes`) counts all the time, so
    that the peaks equal those of the run.
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
        held = (device == i) & (until_s > from_s) & (kept_bytes > 0)
        columns = (column[held] for column in (stage + n_stages * again, micro_batch, from_s, until_s, kept_bytes))
        memories.append(DeviceMemory(name, float(resident_bytes[i]), names, *columns))
    return tuple(memories)


def _operators(table: CostTable, stages: Sequence[Stage], timeline: Timeline) -> tuple[Floats, Floats]:
    """Return [micro_batches, n_ops] each: seconds at which operators start and end, without gaps within a stage."""
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
    """Return [n_ops of the stage + 1], from 0 to 1: the borders between operators in the stage's time."""
    seconds = table.forward_s[list(stage.ops), stage.device].copy()
    seconds[0] += table.overhead_s[stage.device] * len(stage.receives)
    seconds[-1] += table.overhead_s[stage.device] * len(stage.sends)
    total_s = seconds.sum()
    return np.concatenate([[0.0], seconds.cumsum() / total_s if total_s > 0 else np.zeros(len(seconds))])


def _transfers(table: CostTable, copy: Placement, timeline: Timeline, through: Ints) -> dict[tuple[int, int], Floats]:
    """By flow and receiving device: [n, 2], seconds of departure and arrival for the micro-batches through a copy."""
    cuts = {(f"{table.devices[src]} → {table.devices[dst]}", flow): (flow, dst) for flow, src, dst in copy.cuts(table)}
    times_s = {key: np.full((timeline.micro_batches, 2), np.nan) for key in cuts.values()}
    for span in timeline.spans:
        key = cuts.get((span.resource, span.index)) if span.kind == "transfer" else None
        if key is not None:
            times_s[key][span.micro_batch] = span.start_s, span.end_s
    times_s = {key: pairs[through] for key, pairs in times_s.items()}
    if any(np.isnan(pairs).any() for pairs in times_s.values()):
        raise InputError("the timeline does not send every tensor of the placement; simulate that placement again")
    return times_s


def _device_memory(
    device: tuple[str, float], names: tuple[str, ...], lifetimes: Sequence[Lifetime], flow_bytes: Floats
) -> DeviceMemory:
    """Return the memory of a device, given as its name and its resident bytes, from lifetimes of flows."""
    counts = [len(starts_s) for _, _, starts_s, _ in lifetimes]
    flow = np.repeat(np.array([lifetime[0] for lifetime in lifetimes], dtype=np.int64), counts)
    micro_batch = np.concatenate([np.arange(0), *(lifetime[1] for lifetime in lifetimes)])
    from_s, until_s = (np.concatenate([np.zeros(0), *(lifetime[i] for lifetime in lifetimes)]) for i in (2, 3))
    some: NDArray[np.bool_] = (until_s > from_s) & (flow_bytes[flow] > 0)
    return DeviceMemory(
        *device, names, flow[some], micro_batch[some], from_s[some], until_s[some], flow_bytes[flow[some]]
    )


def _kept(lowered: LoweredSchedule, start_s: Floats, end_s: Floats) -> tuple[Ints, Ints, Floats, Floats, Floats]:
    """Return the activations that stages keep: action, whether it recomputes, from and until which second, and bytes.

    See `simulator.pipeline.saved_memory`.
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
