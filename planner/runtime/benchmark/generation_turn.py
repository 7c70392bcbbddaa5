"""A turn of a plan for generation: the workload once, as a mean pass that its costs are compared with."""

import time

from graphs.program.generation import GenerationProgram
from planner.plans.plan import Plan
from planner.runtime.benchmark.generation import random_prompts
from planner.runtime.generation.runner import GenerationRunner
from planner.runtime.stages.generation_stages import GenerationStages
from simulator.timeline import Span, Timeline


def generation_turn(plan: Plan, model: GenerationProgram) -> tuple[float, Timeline]:
    """Start a plan, generate for its workload after a warm-up, and close it.

    Returns:
        Seconds of a pass, the mean of all of them while all groups are on their way, and the stages of a mean pass as
        one micro-batch.

    Raises:
        InputError: if the plan cannot run here, or the model has no weights.
        StageError: if an operator fails.
    """
    work, passes = plan.workload, sum(each.passes for each in plan.phases)
    prompts = random_prompts(plan, model)
    with GenerationRunner(plan, model, share_weights=True) as runner:
        runner.generate(prompts[:1], 2, stops=())
        runner.record()
        start_s = time.perf_counter()
        runner.generate(prompts, work.output, stops=())
        seconds = (time.perf_counter() - start_s) / (passes * work.in_flight)
        recorded = runner.recorded()
    return seconds, mean_pass_of(plan, model, recorded)


def mean_pass_of(plan: Plan, model: GenerationProgram, recorded: tuple[Span, ...]) -> Timeline:
    """Return the stages of a pass, in the mean of those that were recorded, one after the other.

    A stage of the plan is one of each phase; a pass that leaves it out counts as 0 seconds.
    """
    of_op = {op: number for number, stage in enumerate(plan.stages) for op in stage.ops}
    of_stage = [of_op[stage.ops[0]] for stage in GenerationStages(plan, model).stages]
    computed = [span for span in recorded if span.kind == "compute"]
    n_passes = len({span.micro_batch for span in computed})
    spans: list[Span] = []
    for number, stage in enumerate(plan.stages):
        own = [span.end_s - span.start_s for span in computed if of_stage[span.index] == number]
        start_s = spans[-1].end_s if spans else 0.0
        name = plan.cluster.devices[stage.device].name
        spans.append(Span("compute", name, "", 0, number, start_s, start_s + sum(own) / max(1, n_passes)))
    return Timeline(tuple(device.name for device in plan.cluster.devices), 1, tuple(spans))
