"""Turns of plans for generation: stages of a mean pass from those that were recorded."""

import pytest

from graphs.caches import ops_of_pass
from graphs.phases import Phase
from planner.runtime.benchmark.generation_turn import mean_pass_of
from planner.runtime.stages.generation_stages import GenerationStages
from simulator.timeline import Span
from tests.planner.runtime.generation.tiny import CONTEXT, cut, imported


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_a_stage_counts_in_the_mean_of_all_passes(family: str) -> None:
    model = imported(family)
    plan = cut(model, 2)
    stages = GenerationStages(plan, model).stages
    phases = sorted(model.phases)
    first, last = phases.index(phases[0]), phases.index(Phase(1, CONTEXT))
    spans = [  # two passes of one phase, of 2 s for each stage, and one of another, of 8 s
        Span("compute", "", "", number, index, 0.0, seconds)
        for number, (copy, seconds) in enumerate([(first, 2.0), (first, 2.0), (last, 8.0)])
        for index, stage in enumerate(stages)
        if stage.copy == copy
    ]
    found = mean_pass_of(plan, model, (*spans, Span("transfer", "", "", 0, 0, 0.0, 9.0)))
    ran = [ops_of_pass(plan.graph, phases[number].tokens) for number in (first, first, last)]
    wanted = [
        sum(s for ops, s in zip(ran, (2.0, 2.0, 8.0), strict=True) if not ops.isdisjoint(stage.ops)) / 3
        for stage in plan.stages
    ]
    assert [span.end_s - span.start_s for span in found.spans] == pytest.approx(wanted)
    assert set(wanted) == ({4.0} if family == "llama" else {4 / 3, 8 / 3, 4.0})  # 4 s: a stage of both parts
