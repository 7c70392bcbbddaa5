"""What a recorded run of a plan must have, whatever carries the tensors."""

from itertools import pairwise

from planner.plans.plan import Plan
from simulator.stages import split_stages
from simulator.timeline import Timeline
from simulator.trace import transfer_spans


def check_timeline(plan: Plan, timeline: Timeline, micro_batches: int, clock_s: float = 0.0) -> None:
    """Every stage and every transfer of every micro-batch, once, in a possible order, as the prediction names them.

    ``clock_s`` is by how much the clocks of two devices may be apart.
    """
    stages = split_stages(plan.table, plan.placement)
    assert (timeline.devices, timeline.micro_batches) == (plan.table.devices, micro_batches)
    ran = {(span.micro_batch, span.index): span for span in timeline.spans if span.kind == "compute"}
    sent = {(span.micro_batch, span.resource, span.index): span for span in timeline.spans if span.kind == "transfer"}
    assert len(ran) + len(sent) == len(timeline.spans)
    predicted = plan.simulate(micro_batches).spans
    assert sorted((s.kind, s.resource, s.label, s.micro_batch, s.index) for s in timeline.spans) == sorted(
        (s.kind, s.resource, s.label, s.micro_batch, s.index) for s in predicted
    )
    assert len(transfer_spans(plan.table, plan.placement, timeline)) == len(sent)
    names = plan.table.devices
    for (micro_batch, index), span in ran.items():
        stage = stages[index]
        assert 0 <= span.start_s < span.end_s
        assert all(ran[micro_batch, need].end_s <= span.start_s + clock_s for need in stage.needs)
        for flow, src in stage.receives:
            assert sent[micro_batch, f"{names[src]} → {names[stage.device]}", flow].end_s <= span.start_s + clock_s
        for flow, dst in stage.sends:
            way = sent[micro_batch, f"{names[stage.device]} → {names[dst]}", flow]
            assert span.end_s <= way.start_s <= way.end_s
    for device in timeline.devices:
        own = sorted((span.start_s, span.end_s) for span in timeline.spans if span.resource == device)
        assert all(before[1] <= after[0] for before, after in pairwise(own))
    starts = [span.start_s for span in timeline.spans]
    assert starts == sorted(starts)
