"""Words of a plan: the same in the lines of the command line, on the page and in the picture."""

from collections.abc import Iterator

from costmodels.units import format_bytes, format_seconds
from planner.generation.plan import Alternative, GenerationPlan, Holding, PlanStage
from planner.problem.result import Status

DEVICE_HEADS = ("device", "layers", "weights", "experts", "ends", "cache", "buffers", "used", "of", "token", "prompt")
SHOWN_SHARE = 0.005  # of a token's time; smaller parts are not said


def layer_words(plan: GenerationPlan) -> str:
    """Return what is divided, in a line."""
    question = plan.question
    model = question.model
    sequences = "one sequence" if question.sequences == 1 else f"{question.sequences:,} sequences"
    return (
        f"{model.name}: {model.parameters / 1e9:.4g} billion parameters, {format_bytes(model.bytes)} of weights in "
        f"{len(model.layers)} layers; {sequences} of {question.context:,} tokens, cache in {question.cache}, "
        f"{question.engine.name}"
    )


def device_rows(plan: GenerationPlan) -> list[tuple[str, ...]]:
    """Return a row of `DEVICE_HEADS` for each device: its layers, what it holds, and its seconds."""
    stages = {name: stage for stage in plan.stages for name in stage.devices}
    return [_device_row(holding, stages.get(holding.device)) for holding in plan.holdings]


def _device_row(own: Holding, stage: PlanStage | None) -> tuple[str, ...]:
    used = format_bytes(own.used) if own.used else "left out"
    sizes = (own.weights, own.experts, own.embedding + own.head, own.cache, own.buffers)
    return (
        own.device,
        layers_of_stage(stage) if stage is not None else "",
        *(format_bytes(size) if size else "" for size in sizes),
        used,
        format_bytes(own.usable),
        format_seconds(stage.token_s) if stage is not None else "",
        format_seconds(stage.prompt_s) if stage is not None else "",
    )


def layers_of_stage(stage: PlanStage) -> str:
    """Return the layers of a stage, and how many of their experts are elsewhere."""
    layers = f"{stage.start}-{stage.stop - 1}" if stage.stop - stage.start > 1 else str(stage.start)
    together = f" ÷ {len(stage.devices)}" if len(stage.devices) > 1 else ""
    away = f", experts of {len(stage.away)} on {stage.host}" if stage.away else ""
    return f"{layers}{together}{away}"


def range_words(low: float, high: float) -> str:
    """Return a range of factors in words."""
    return f"{low - 1:+.0%} to {high - 1:+.0%}"


def expected_lines(plan: GenerationPlan) -> Iterator[str]:
    """Yield what to expect: the two phases, where the time goes, and what other divisions would give."""
    speeds, question = plan.speeds, plan.question
    if speeds is None:
        return
    low, high = speeds.decode_range
    first_low, first_high = speeds.prefill_range
    first_s = speeds.first_token_s
    yield (
        f"first token after {format_seconds(first_s)} for a prompt of {question.prompt:,} (80 % of measured times: "
        f"{format_seconds(first_s * first_low)} to {format_seconds(first_s * first_high)})"
    )
    rate = speeds.tokens_per_s
    together = f"; {speeds.all_tokens_per_s(question.sequences):,.4g} for all {question.sequences:,} sequences"
    yield (
        f"{rate:.4g} tokens/s for one sequence ({rate / high:.4g} to {rate / low:.4g})"
        f"{together if question.sequences > 1 else ''}"
    )
    yield "where a token's time goes: " + ", ".join(
        f"{name} {seconds / speeds.token_s:.0%}"
        for name, seconds in sorted(speeds.parts.items(), key=lambda item: -item[1])
        if seconds > SHOWN_SHARE * speeds.token_s
    )
    if speeds.estimated:
        yield f"estimated, as nobody measured {question.engine.name} there: {', '.join(speeds.estimated)}"
    else:
        yield "fitted to measurements of these kinds of devices"
    yield from _others(plan)


def _others(plan: GenerationPlan) -> Iterator[str]:
    sequences = plan.question.sequences
    for name, other in (("next best", plan.next_best), ("one device alone", plan.alone)):
        if other is not None:
            yield f"{name}: {_alternative_words(other, sequences)}"
        elif name == "one device alone":
            yield "one device alone: it does not fit"


def _alternative_words(other: Alternative, sequences: int) -> str:
    rate = sequences / other.token_s
    experts = f" with experts on {', '.join(other.hosts)}" if other.hosts else ""
    first = format_seconds(other.first_token_s)
    return f"{', '.join(other.devices)}{experts}: {rate:.4g} tokens/s, first token after {first}"


def bound_words(plan: GenerationPlan) -> str:
    """Return the proof in words."""
    if plan.status is Status.OPTIMAL:
        return "optimal: no division of whole layers takes less by these costs"
    return f"feasible: at most {plan.gap:.2%} above the best by these costs"
