"""busiest: the device or the channel that one micro-batch occupies the longest; a plan streams no faster than that.

In training, the uplinks to replicas count too: for each micro-batch an equal part of the seconds that the gradients of
a step take.
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
    """The busiest device or channel, and the seconds that a micro-batch occupies it, in training forward and backward.

    Exactly one of ``device`` and ``links`` is given.
    """

    device: int | None  # index; None if a channel is the busiest
    links: tuple[Ends, ...]  # the links in use that share the channel, or those to the replicas that share an uplink
    seconds: float

    def name(self, devices: Sequence[str]) -> str:
        """Return the device's name, or its links, given the names of all devices."""
        return devices[self.device] if self.device is not None else ", ".join(self.link_names(devices))

    def link_names(self, devices: Sequence[str]) -> list[str]:
        """Return the links as "from → to", given the names of all devices."""
        return [f"{devices[src]} → {'replicas' if dst == REPLICAS else devices[dst]}" for src, dst in self.links]


def busiest(problem: Problem, placement: Placement) -> Busiest:
    """Return the busiest device or channel; among equals the first device, or the first channel.

    Raises:
        InputError: if the placement does not fit the problem's table, or its schedule cannot run it.
    """
    table = problem.costs(placement)
    if problem.goal is Goal.TRAINING:
        run = simulate_training(table, placement, problem.step)
        load_s, link_s, uplink_s = run.load_s, run.link_s, _uplink_seconds(table, run)
    else:
        load_s, link_s, uplink_s = loads(table, placement)[0], _link_seconds(table, placement), {}
    channel_s: dict[int, float] = {}
    for ends, seconds in sorted(link_s.items()) if table.sharing != "unlimited" else ():
        channel = int(table.channel[ends])
        channel_s[channel] = channel_s.get(channel, 0.0) + seconds
    device = int(load_s.argmax())
    channel = max(channel_s, key=channel_s.__getitem__, default=-1)
    synced = max(uplink_s, key=uplink_s.__getitem__, default=())
    if uplink_s.get(synced, 0.0) > max(channel_s.get(channel, 0.0), load_s[device]):
        return Busiest(None, tuple((one, REPLICAS) for one in synced), uplink_s[synced])
    if channel_s.get(channel, 0.0) > load_s[device]:
        links = tuple(ends for ends in sorted(link_s) if table.channel[ends] == channel)
        return Busiest(None, links, channel_s[channel])
    return Busiest(device, (), float(load_s[device]))


def _uplink_seconds(table: CostTable, run: TrainingRun) -> Mapping[tuple[int, ...], float]:
    """Return the seconds of gradients a micro-batch on each uplink to the replicas, by the devices that use it."""
    if table.update is None:
        return {}
    uplink, schedule = table.update.uplink, run.pipeline.lowered.schedule
    uplink_s: dict[tuple[int, ...], float] = {}
    for device, cost in zip(run.stage_devices, run.pipeline.lowered.costs, strict=True):
        users = tuple(sorted({other for other in run.stage_devices if uplink[other] == uplink[device]}))
        uplink_s[users] = uplink_s.get(users, 0.0) + cost.sync_s / schedule.micro_batches
    return uplink_s


def _link_seconds(table: CostTable, placement: Placement) -> Mapping[Ends, float]:
    """Return the seconds that a micro-batch occupies each link; none if devices exchange tensors through a host."""
    link_s: dict[Ends, float] = {}
    part = 1 / len(placement.copies)
    for flow, src, dst in placement.all_cuts(table):
        link_s[src, dst] = link_s.get((src, dst), 0.0) + table.send_s(flow, src, dst) * part
    return link_s
