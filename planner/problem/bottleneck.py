"""busiest: the device or the channel that one micro-batch occupies the longest; a plan streams no faster than that.

In training, a device's way to its replicas may be it: what that takes for the gradients of a step, each micro-batch
counting for an equal part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodels.table import CostTable
from planner.problem.evaluate import loads
from planner.problem.problem import Goal, Problem
from simulator.placement import Placement
from simulator.training import TrainingRun, simulate_training

Ends = tuple[int, int]
"""A link: from device, to device, or to `REPLICAS`."""

REPLICAS = -1


@dataclass(frozen=True, slots=True)
class Busiest:
    """What is occupied, and for how long.

    Attributes:
        device: its index; None if it is a channel.
        links: those that are used and share the channel, or the way to the replicas; empty if it is a device.
        seconds: of one micro-batch, in training there and back.
    """

    device: int | None
    links: tuple[Ends, ...]
    seconds: float

    def name(self, devices: Sequence[str]) -> str:
        """What a person reads, by the names of all devices."""
        return devices[self.device] if self.device is not None else ", ".join(self.link_names(devices))

    def link_names(self, devices: Sequence[str]) -> list[str]:
        """The links, by the names of all devices."""
        return [f"{devices[src]} → {'replicas' if dst == REPLICAS else devices[dst]}" for src, dst in self.links]


def busiest(problem: Problem, placement: Placement) -> Busiest:
    """Of several the first device, else the first channel.

    Raises:
        InputError: if the placement does not fit the problem's table, or its schedule cannot run it.
    """
    table = problem.costs(placement)
    if problem.goal is Goal.TRAINING:
        run = simulate_training(table, placement, problem.step)
        load_s, link_s, sync_s = run.load_s, run.link_s, _sync_seconds(run)
    else:
        load_s, link_s, sync_s = loads(table, placement)[0], _link_seconds(table, placement), {}
    channel_s: dict[int, float] = {}
    for ends, seconds in sorted(link_s.items()) if table.sharing != "unlimited" else ():
        channel = int(table.channel[ends])
        channel_s[channel] = channel_s.get(channel, 0.0) + seconds
    device = int(load_s.argmax())
    channel = max(channel_s, key=channel_s.__getitem__, default=-1)
    synced = max(sync_s, key=sync_s.__getitem__, default=-1)
    if sync_s.get(synced, 0.0) > max(channel_s.get(channel, 0.0), load_s[device]):
        return Busiest(None, ((synced, REPLICAS),), sync_s[synced])
    if channel_s.get(channel, 0.0) > load_s[device]:
        links = tuple(ends for ends in sorted(link_s) if table.channel[ends] == channel)
        return Busiest(None, links, channel_s[channel])
    return Busiest(device, (), float(load_s[device]))


def _sync_seconds(run: TrainingRun) -> Mapping[int, float]:
    """What adding up the gradients of each device takes, divided by the micro-batches."""
    found: dict[int, float] = {}
    for device, cost in zip(run.stage_devices, run.pipeline.lowered.costs, strict=True):
        found[device] = found.get(device, 0.0) + cost.sync_s / run.pipeline.lowered.schedule.micro_batches
    return found


def _link_seconds(table: CostTable, placement: Placement) -> Mapping[Ends, float]:
    """What each link sends for one micro-batch; nothing where devices exchange tensors through a host."""
    link_s: dict[Ends, float] = {}
    for flow, src, dst in placement.cuts(table) if table.offload is None else ():
        link_s[src, dst] = link_s.get((src, dst), 0.0) + table.send_s(flow, src, dst)
    return link_s
