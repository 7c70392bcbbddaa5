"""The spans that belong to each transfer: the arrows between the bars of a timeline.

::

    gpu0          [a]              the stage that writes a tensor, its transfer, and the stage that reads it
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


class TransferSpans(NamedTuple):
    """The spans of a sender, a transfer and a receiver, one after the other."""

    sender: Span
    transfer: Span
    receiver: Span


def transfer_spans(table: CostTable, placement: Placement, timeline: Timeline) -> list[TransferSpans]:
    """The transfers of a predicted or measured run of a placement, in the order in which they start."""
    senders: dict[tuple[str, int], int] = {}  # (link, flow) -> stage
    receivers: dict[tuple[str, int], int] = {}
    for index, stage in enumerate(split_stages(table, placement)):
        device = table.devices[stage.device]
        senders |= {(f"{device} → {table.devices[dst]}", flow): index for flow, dst in stage.sends}
        receivers |= {(f"{table.devices[src]} → {device}", flow): index for flow, src in stage.receives}
    stages = {(span.index, span.micro_batch): span for span in timeline.spans if span.kind == "compute"}
    transfers = []
    for span in timeline.spans:
        if span.kind == "transfer":
            sender, receiver = (ends[span.resource, span.index] for ends in (senders, receivers))
            transfers.append(TransferSpans(stages[sender, span.micro_batch], span, stages[receiver, span.micro_batch]))
    return transfers


def schedule_transfer_spans(run: PipelineRun) -> list[TransferSpans]:
    """The transfers of a run of a schedule, one sending device after the other."""
    lowered, span = run.lowered, {span.label: span for span in run.timeline.spans}
    feeds = lowered.feeds.tolist()
    transfers = []
    for number in lowered.senders:
        sender, reader = lowered.actions[number], lowered.actions[feeds[number]]
        transfers.append(TransferSpans(span[str(sender)], span[message_name(sender)], span[str(reader)]))
    return transfers
