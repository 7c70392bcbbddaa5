"""Lines and figures of plans for language models that generate."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from costmodels.units import format_bytes, format_rate, format_seconds
from planner.cli.text import count
from planner.plans.generation import GenerationPrediction, generation_of, held_bytes
from planner.plans.plan import Plan

GENERATION_COLUMNS = ("device", "operators", "busy per pass", "weights", "cache", "memory", "of")


def generation_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row for each device, see `GENERATION_COLUMNS`; a pass is the mean of all."""
    weights, cache = held_bytes(plan)
    return [
        (
            device.name,
            f"{len(plan.placement.operators(i)):,}",
            format_seconds(plan.busy_s[i]),
            *map(format_bytes, (weights[i], cache[i], plan.evaluation.memory_bytes[i], device.usable_bytes)),
        )
        for i, device in enumerate(plan.cluster.devices)
    ]


def generation_lines(plan: Plan) -> Iterator[str]:
    """Yield the predictions with their ranges: tokens a second first, then those of the phases."""
    found = generation_of(plan)
    low, high = found.range_per_s
    low_one, high_one = found.range_per_s_one
    yield f"predicted: {format_rate(found.tokens_per_s)} tokens/s of {sequences(plan)}, prompts included"
    yield f"80 % of runs: {format_rate(low)} – {format_rate(high)} tokens/s"
    yield (
        f"one sequence alone: {format_rate(found.tokens_per_s_one)} tokens/s ({format_rate(low_one)} – "
        f"{format_rate(high_one)}), prompt included, its first token after {format_seconds(found.first_token_s)} "
        f"({found.first_token_range})"
    )
    yield from phase_lines(found)


def phase_lines(found: GenerationPrediction) -> Iterator[str]:
    """Yield what a pass of each phase takes."""
    for each in found.phases:
        if each.prompt + each.output:
            counts = ((each.prompt, "for the prompt"), (each.output, "after it"))
            passes = " and ".join(f"{count:,} {where}" for count, where in counts if count)
            yield (
                f"pass of {each.named}: {format_seconds(each.alone_s)} alone, every {format_seconds(each.period_s)} "
                f"with all sequences; {passes}"
            )


def sequences(plan: Plan) -> str:
    """Return the sequences of a plan, how they are grouped and how long they are, in words."""
    work = plan.workload
    groups = f" in {count(work.in_flight, 'group')} of {'up to ' * (work.free > 0)}{work.batch}"
    grouped = groups if work.in_flight > 1 or work.free else ""
    lengths = f"prompts of {count(work.prompt, 'token')} and {work.output:,} after them"
    return f"{count(work.sequences, 'sequence')}{grouped}, {lengths}"


def tokens_document(plan: Plan) -> dict[str, Any]:
    """Return the object that ``--json`` shows."""
    found, (weights, cache) = generation_of(plan), held_bytes(plan)
    return {
        "first_token_s": found.first_token_s,
        "first_token_range_s": found.first_token_range.ends,
        "token_s": found.token_s,
        "tokens_per_s_one": found.tokens_per_s_one,
        "tokens_per_s_one_range": list(found.range_per_s_one),
        "tokens_per_s": found.tokens_per_s,
        "tokens_per_s_range": list(found.range_per_s),
        "sequences": plan.workload.sequences,
        "passes": [asdict(each) | {"phase": each.phase._asdict()} for each in found.phases],
        "weights_bytes": dict(zip(plan.table.devices, weights.tolist(), strict=True)),
        "cache_bytes": dict(zip(plan.table.devices, cache.tolist(), strict=True)),
    }
