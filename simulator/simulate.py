"""simulate: predicts the run of micro-batches that stream through a placement."""

from costmodels.cluster import Sharing
from costmodels.table import CostTable
from simulator.engine import times
from simulator.lower import lower, repeat
from simulator.placement import Placement
from simulator.timeline import Span, Timeline


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
        in_flight: a micro-batch enters only when the one ``in_flight`` before it has finished; None for no limit.
        sharing: whether a channel sends one tensor after the other ("fifo") or all at once, each with an equal part of
            its bandwidth ("fair") or all of it ("unlimited"); the table's sharing if left out.

    Raises:
        InputError: if the placement does not fit the table, a count is less than 1, or there is no such sharing.
    """
    steps = lower(table, placement, sharing)
    tasks = repeat(steps, micro_batches, in_flight)
    start_s, end_s = times(tasks)
    spans: list[Span] = []
    for number in sorted(range(len(tasks)), key=start_s.__getitem__):
        micro_batch, step_number = divmod(number, len(steps))
        step = steps[step_number]
        label = step.task.name
        spans.append(Span(step.kind, step.resource, label, micro_batch, step.index, start_s[number], end_s[number]))
    return Timeline(table.devices, micro_batches, tuple(spans))
