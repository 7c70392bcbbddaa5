"""Advice where nothing fits: how much is missing, and the nearest changes that fit, each with its price."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace

from costmodels.cluster.catalogue import entry
from costmodels.cluster.cluster import Link
from costmodels.generation.work import weights_elsewhere
from costmodels.language_model.formats import format_named
from costmodels.units import parse_bytes_per_s, parse_seconds
from graphs.common.errors import InputError
from planner.generation.plan import FittingChange, GenerationPlan
from planner.generation.question import CACHE_FORMATS, GenerationQuestion
from planner.generation.split_problem import SplitProblem

Planner = Callable[[GenerationQuestion], GenerationPlan]

LOCAL_WEIGHTS = ("q8_0", "q6_K", "q5_K", "q4_K", "q3_K", "q2_K")
SERVED_WEIGHTS = ("fp8", "awq")
"""Formats of weights to try, the most precise first."""
USUAL_LINK = "PCIe4-x16"  # of one more device, where there is only one
STEP = 256  # tokens; contexts are multiples of it


def short_bytes(problem: SplitProblem) -> float:
    """Return how many bytes are missing on all devices together; at least 1 where blocks do not fit as they are cut."""
    question = problem.question
    single = {unit.device_class: unit for unit in problem.units if unit.size == 1}
    room = sum(max(0.0, single[number].room_bytes) * len(own.devices) for number, own in enumerate(problem.classes))
    need = float(weights_elsewhere(question.model.tensors) + sum(layer.bytes for layer in question.model.layers))
    need += question.sequences * question.model.cache_bytes(question.context, question.value_bytes)
    return max(1.0, need - room)


def changes_that_fit(question: GenerationQuestion, planned: Planner) -> tuple[FittingChange, ...]:
    """Return the nearest changes of each kind that fit, the fastest first."""
    found = []
    for text, other in _changed(question, planned):
        plan = planned(other)
        if plan.speeds is not None:
            rate = plan.speeds.all_tokens_per_s(other.sequences)
            found.append(FittingChange(text, rate, plan.speeds.first_token_s))
    return tuple(sorted(found, key=lambda change: (-change.tokens_per_s, change.text)))


def _changed(question: GenerationQuestion, planned: Planner) -> Iterator[tuple[str, GenerationQuestion]]:
    shortest = -(-(question.prompt + question.output) // STEP)
    steps = range(shortest, (question.context - 1) // STEP + 1)
    shorter = _largest_that_fits(steps, lambda n: replace(question, context=n * STEP), planned)
    if shorter is not None:
        yield f"--context {shorter.context}", shorter
    if CACHE_FORMATS[question.cache] > CACHE_FORMATS["q8_0"]:
        name = "fp8" if question.engine.batches else "q8_0"
        yield f"--cache {name}", replace(question, cache=name)
    smaller = _smaller(question, planned)
    if smaller is not None:
        yield smaller
    fewer = _largest_that_fits(range(1, question.sequences), lambda n: replace(question, sequences=n), planned)
    if fewer is not None:
        yield f"--sequences {fewer.sequences}", fewer
    more = _one_more(question)
    if more is not None:
        yield more


def _largest_that_fits(
    numbers: range, asked: Callable[[int], GenerationQuestion], planned: Planner
) -> GenerationQuestion | None:
    """Return the question with the largest number that fits, of those that need more with each; None if none does."""
    fitting = bisect_left(numbers, True, key=lambda number: planned(asked(number)).speeds is None)
    return asked(numbers[fitting - 1]) if fitting else None


def _smaller(question: GenerationQuestion, planned: Planner) -> tuple[str, GenerationQuestion] | None:
    """Return the question with the most precise weights that fit; None if none do."""
    for name in SERVED_WEIGHTS if question.engine.batches else LOCAL_WEIGHTS:
        model = question.model.with_weights(format_named(name))
        if model.bytes < question.model.bytes:
            tried = replace(question, model=model)
            if planned(tried).speeds is not None:
                return f"--weights {name}", tried
    return None


def _one_more(question: GenerationQuestion) -> tuple[str, GenerationQuestion] | None:
    """Return the question with one more of the largest device, joined as a neighbour is; None if links forbid it."""
    cluster = question.cluster.listed()
    largest = max(cluster.devices, key=lambda device: device.usable_bytes)
    added = replace(largest, name=f"{largest.name} again")
    links = list(cluster.links)
    for link in cluster.links:
        if link.src == largest.name:
            links.append(replace(link, src=added.name))
        if link.dst == largest.name:
            links.append(replace(link, dst=added.name))
    between = [link for link in cluster.links if largest.name in (link.src, link.dst)]
    if between:
        best = max(between, key=lambda link: (link.bytes_per_s, link.src, link.dst))
    elif len(cluster.devices) == 1:
        keys = entry("link", USUAL_LINK).keys
        rate, latency_s = parse_bytes_per_s(keys["bandwidth"], USUAL_LINK), parse_seconds(keys["latency"], USUAL_LINK)
        best = Link(largest.name, added.name, rate, latency_s)
    else:
        return None
    links += [replace(best, src=a, dst=b) for a, b in ((largest.name, added.name), (added.name, largest.name))]
    try:
        bigger = replace(cluster, devices=(*cluster.devices, added), links=tuple(links))
    except InputError:
        return None
    return f"one more {largest.kind}", replace(question, cluster=bigger)
