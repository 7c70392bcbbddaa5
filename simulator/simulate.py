"""simulate: predicts the run of micro-batches that stream through a placement, whose steps become tasks.

::

    stages  [a b] 0 ──x──► [c] 1          step  holds                                   needs
                                          0     device 0                      [a b]
                                          1     channel (and both devices)    x: 0 → 1  0
                                          2     device 1                      [c]       1
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from costmodels.cluster.cluster import SHARINGS, Sharing
from costmodels.table import CostTable
from graphs.common.errors import InputError
from simulator.engine import Task, times
from simulator.placement import Placement
from simulator.stages import split_stages
from simulator.timeline import Kind, Span, Timeline

MOST_TASKS = 500_000
"""Limit of one simulation, which takes about ten seconds and half a gigabyte."""


class TooManyError(InputError):
    """More micro-batches than one simulation allows."""


@dataclass(frozen=True, slots=True)
class LoweredStep:
    """A stage that runs, or a tensor that is sent, once for each micro-batch."""

    kind: Kind  # compute or transfer
    resource: str  # name of the device, or "src → dst"
    index: int  # number of the stage, or of the flow
    task: Task  # the task; its needs are numbers of other steps, and its name is the label in charts
    copy: int = 0  # the copy of the network; only micro-batches that go through it take the step


def lower(table: CostTable, placement: Placement, sharing: Sharing | None = None) -> tuple[LoweredStep, ...]:
    """Return the steps of one micro-batch: the stages in the order of the placement, each followed by its transfers.

    With several copies of the network, these are the steps of each, one copy after the other.

    Resources are numbered devices first, then channels. A stage holds its device for its operators and for the overhead
    of its messages. A transfer holds its channel and, unless the devices overlap computing and sending, both its ends.
    With a ``sharing`` other than "fifo" (by default the table's), it shares its channel with other transfers, or is
    independent of them.

    Raises:
        InputError: if the placement does not fit the table, or there is no such sharing.
    """
    sharing = sharing or table.sharing
    if sharing not in SHARINGS:
        raise InputError(f"the sharing of channels is '{sharing}'; it must be one of {', '.join(SHARINGS)}")
    placement.check(table)
    steps: list[LoweredStep] = []
    step_of_stage: list[int] = []
    step_of_transfer: dict[tuple[int, int, int], int] = {}  # (copy, flow, to device) -> step
    for index, stage in enumerate(stages := split_stages(table, placement)):
        needs = [step_of_transfer[stage.copy, flow, stage.device] for flow, _ in stage.receives]
        needs += [step_of_stage[need] for need in stage.needs if stages[need].device == stage.device]
        duration_s = sum(float(table.forward_s[op, stage.device]) for op in stage.ops)
        duration_s += float(table.overhead_s[stage.device]) * (len(stage.receives) + len(stage.sends))
        task = Task(duration_s, (stage.device,), tuple(sorted(needs)), name=stage.label(table.ops))
        step_of_stage.append(len(steps))
        steps.append(LoweredStep("compute", table.devices[stage.device], index, task, stage.copy))
        for flow, dst in stage.sends:
            step_of_transfer[stage.copy, flow, dst] = len(steps)
            sent = _transfer(table, flow, (stage.device, dst), step_of_stage[index], sharing)
            steps.append(replace(sent, copy=stage.copy))
    return tuple(steps)


class RepeatedStep(NamedTuple):
    """A step of one micro-batch."""

    micro_batch: int
    step: LoweredStep


def repeat(
    steps: Sequence[LoweredStep], micro_batches: int, in_flight: int | None = None
) -> tuple[list[RepeatedStep], list[Task]]:
    """Return the steps of many micro-batches, each of which goes through one copy of the network, and a task for each.

    The older micro-batch goes first, then the earlier step, as in the runtime, where each device executes the oldest
    micro-batch's ready stage.

    Raises:
        InputError: for less than one micro-batch, or less than one in flight.
        TooManyError: for more tasks than `MOST_TASKS`.
    """
    slices = _copies(steps)
    _check_counts(-(-len(steps) // len(slices)), micro_batches, in_flight)
    needed = {need for step in steps for need in step.task.needs}
    copies = len(slices)
    tasks: list[Task] = []
    repeated: list[RepeatedStep] = []
    ends: list[tuple[int, ...]] = []  # of each micro-batch: its tasks that no other one waits for
    for micro_batch in range(micro_batches):
        start, stop = slices[micro_batch % copies]
        base = len(tasks) - start
        left = 0 if in_flight is None else max(0, micro_batch - in_flight + 1)
        enter = tuple(end for each in ends[max(0, left - copies) : left] for end in each)
        for duration_s, resources, step_needs, _, name, channel, latency_s in [step.task for step in steps[start:stop]]:
            needs = tuple([base + need for need in step_needs]) if step_needs else enter
            tasks.append(Task(duration_s, resources, needs, micro_batch, name, channel, latency_s))
        repeated += [RepeatedStep(micro_batch, step) for step in steps[start:stop]]
        ends.append(tuple(base + number for number in range(start, stop) if number not in needed))
    return repeated, tasks


def _copies(steps: Sequence[LoweredStep]) -> list[tuple[int, int]]:
    """Return the first step of each copy of the network, and the one after its last; at least one copy, of no steps."""
    firsts = [0, *(n for n in range(1, len(steps)) if steps[n].copy > steps[n - 1].copy)]
    return list(pairwise([*firsts, len(steps)]))


def _check_counts(steps: int, micro_batches: int, in_flight: int | None) -> None:
    if micro_batches < 1:
        raise InputError(f"{micro_batches} micro-batches; it must be 1 or more")
    if micro_batches > (most := max(1, MOST_TASKS // max(1, steps))):
        raise TooManyError(
            f"{micro_batches:,} micro-batches of {steps} stages and transfers each are more than the "
            f"{MOST_TASKS:,} that a simulation takes; give {most:,} micro-batches at most"
        )
    if in_flight is not None and in_flight < 1:
        raise InputError(f"{in_flight} micro-batches in flight; it must be 1 or more, or left out for no limit")


def _transfer(table: CostTable, flow: int, ends: tuple[int, int], sender: int, sharing: Sharing) -> LoweredStep:
    src, dst = ends
    name, seconds = table.flows[flow].tensor, table.send_s(flow, src, dst)
    channel = int(table.channel[src, dst])
    held = () if table.overlap else ends
    if sharing == "fifo":
        task = Task(seconds, (table.n_devices + channel, *held), (sender,), name=name)
    else:
        latency_s = float(table.link_latency_s[table.link_class[src, dst]]) if sharing == "fair" else seconds
        task = Task(seconds, held, (sender,), name=name, channel=channel, latency_s=min(latency_s, seconds))
    return LoweredStep("transfer", f"{table.devices[src]} → {table.devices[dst]}", flow, task)


def simulate(
    table: CostTable,
    placement: Placement,
    micro_batches: int = 1,
    in_flight: int | None = None,
    sharing: Sharing | None = None,
) -> Timeline:
    """Predict a run: each device executes the oldest micro-batch's ready stage, each channel sends the oldest tensor.

    Inputs are available from the beginning and outputs stay on their devices, both without cost.

    Args:
        table: seconds of every operator and transfer.
        placement: a device for each operator, and their order.
        micro_batches: number of micro-batches.
        in_flight: a micro-batch enters only when the one ``in_flight`` before it has finished, and the ones before that
            one in the other copies of the network; None for no limit.
        sharing: whether a channel sends one tensor after the other ("fifo") or all at once, each with an equal part of
            its bandwidth ("fair") or all of it ("unlimited"); the table's sharing if left out.

    Raises:
        InputError: if the placement does not fit the table, a count is less than 1, or there is no such sharing.
    """
    repeated, tasks = repeat(lower(table, placement, sharing), micro_batches, in_flight)
    start_s, end_s = times(tasks)
    spans: list[Span] = []
    for number in sorted(range(len(tasks)), key=start_s.__getitem__):
        micro_batch, step = repeated[number]
        label = step.task.name
        spans.append(Span(step.kind, step.resource, label, micro_batch, step.index, start_s[number], end_s[number]))
    return Timeline(table.devices, micro_batches, tuple(spans))
