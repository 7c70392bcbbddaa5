"""Which span sends what to which: the arrows between the bars of a timeline.

::

    gpu0          [a]              a overhead: the stage that writes a tensor, the transfer, the stage that reads it
    gpu0 → gpu1       ==a*==
    gpu1                    [b]
"""

from typing import NamedTuple

from costmodels.table import CostTable
from simulator.lower_schedule import message_name
from simulator.pipeline import PipelineRun
from simulator.placement import Placement
from simulator.stages import split_stages
from simulator.timeline import Span, Timeline


class Overhead(NamedTuple):
    """Three spans, one after the other."""

    sender: Span
    transfer: Span
    receiver: Span


def overheads(table: CostTable, placement: Placement, timeline: Timeline) -> list[Overhead]:
    """The overhead of a run of a placement, predicted or measured, in the order in which the transfers start."""
    senders: dict[tuple[str, int], int] = {}  # (link, flow) -> stage
    receivers: dict[tuple[str, int], int] = {}
    for index, stage in enumerate(split_stages(table, placement)):
        here = table.devices[stage.device]
        senders |= {(f"{here} → {table.devices[dst]}", flow): index for flow, dst in stage.sends}
        receivers |= {(f"{table.devices[src]} → {here}", flow): index for flow, src in stage.receives}
    stages = {(span.index, span.micro_batch): span for span in timeline.spans if span.kind == "compute"}
    found = []
    for span in timeline.spans:
        if span.kind == "transfer":
            sender, receiver = (ends[span.resource, span.index] for ends in (senders, receivers))
            found.append(Overhead(stages[sender, span.micro_batch], span, stages[receiver, span.micro_batch]))
    return found


def schedule_overheads(run: PipelineRun) -> list[Overhead]:
    """The overhead of a run of a schedule, one device after the other."""
    lowered, span = run.lowered, {span.label: span for span in run.timeline.spans}
    feeds = lowered.feeds.tolist()
    found = []
    for number in lowered.senders:
        sender, reader = lowered.actions[number], lowered.actions[feeds[number]]
        found.append(Overhead(span[str(sender)], span[message_name(sender)], span[str(reader)]))
    return found
