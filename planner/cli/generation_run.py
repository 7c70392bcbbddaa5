"""``planner run PLAN MODEL --generate N``: tokens compared with transformers' own, times with the prediction."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from costmodels.units import format_rate
from graphs.common.errors import InputError
from planner.cli.console import Console
from planner.cli.figures import figures_document, pace_document, say_doubts, show_figures
from planner.cli.generation import phase_lines, sequences
from planner.cli.models import model_of
from planner.cli.statuses import DIFFERENT, DONE
from planner.explanations.explain import calibrate_options
from planner.planning.generation import recounted
from planner.plans.compare import Comparison, Figure, pace_change
from planner.plans.generation import GenerationPrediction, generation_of, paced
from planner.plans.given import generation_for
from planner.plans.plan import Plan

if TYPE_CHECKING:
    from planner.runtime.benchmark.generation import GenerationMeasurement, TokenDifference
    from planner.runtime.generation.runner import GenerationRunner


def check_generate(plan: Plan, options: argparse.Namespace) -> None:
    """Check that --generate is given for plans for generation and for no others; raise InputError if not."""
    if plan.workload.generates and options.generate is None:
        raise InputError("the plan is for generation; say how many tokens after each prompt, such as --generate 64")
    if not plan.workload.generates and options.generate is not None:
        raise InputError(f"--generate is for plans for generation and the plan is for {plan.goal}; leave it out")


def run_generation(plan: Plan, options: argparse.Namespace, console: Console) -> int:
    """Generate on the devices of a plan, compare the tokens and print the figures."""
    from planner.runtime.generation.runner import GenerationRunner

    model = generation_for(plan, model_of(options), console)
    with GenerationRunner(plan, model, share_weights=True, processes=options.processes) as runner:
        return generate_with(runner, options, console)


def generate_with(runner: "GenerationRunner", options: argparse.Namespace, console: Console, whole: bool = True) -> int:
    """Generate with a runner, compare the tokens unless this process does not hold the ``whole`` model, and print."""
    from planner.runtime.benchmark.generation import compare_tokens, measure_generation, random_prompts, reference
    from planner.runtime.benchmark.load import Load

    for name in ("output", "against"):
        if getattr(options, name):
            raise InputError(f"--{name} is for plans of one pass; leave it out for --generate")
    plan, model = runner.plan, runner.model
    asked = recounted(plan, model, options.generate)
    prompts = random_prompts(plan, model, options.seed)
    load = Load(runner.pids, plan)
    measured = measure_generation(runner, prompts, options.generate, options.rounds, load, console.on_step)
    foreign_cores, different = load.foreign_cores(), None
    if whole:
        console.on_step(f"comparing the tokens with those of {reference(model)}", 0, 0)
        different = compare_tokens(model, prompts, measured.tokens)
    found = generation_of(asked)
    totals, change = _totals(found, paced(found, asked, load.paces), measured), pace_change(plan, load.paces)
    comparison = Comparison((), (), totals, pace=change, spreads=plan.spreads)
    _show(asked, found, measured, comparison, different, console)
    _say_tokens(different, sum(map(len, measured.tokens)), reference(model), console)
    say_doubts(comparison, foreign_cores, calibrate_options(plan), console)
    return DIFFERENT if any(not each.within_rounding for each in different or ()) else DONE


def _totals(
    found: GenerationPrediction, at_pace: GenerationPrediction, measured: "GenerationMeasurement"
) -> tuple[Figure, ...]:
    """Return the phases, predicted and measured; ``at_pace`` is the prediction at the pace of the run."""
    names = (
        ("first token, one sequence alone", "first_token_s"),
        ("each token after it", "token_s"),
        ("first tokens of all", "all_first_tokens_s"),
        ("all tokens of all", "all_s"),
    )
    return tuple(
        Figure(name, predicted_s, seen_s, alone=number < 2, pace=getattr(at_pace, field) / predicted_s)
        for number, (name, field) in enumerate(names)
        if (seen_s := getattr(measured, field)) is not None and (predicted_s := getattr(found, field)) > 0
    )


def _show(
    plan: Plan,
    found: GenerationPrediction,
    measured: "GenerationMeasurement",
    comparison: Comparison,
    different: "tuple[TokenDifference, ...] | None",
    console: Console,
) -> None:
    """Print tokens a second and the phases."""
    count = sum(map(len, measured.tokens))
    rate, one = count / measured.all_s, len(measured.tokens[0]) / measured.alone_s
    rows = [
        ("predicted", format_rate(found.tokens_per_s), format_rate(found.tokens_per_s_one)),
        ("measured", format_rate(rate), format_rate(one)),
    ]
    title = f"{plan.graph.name}, {sequences(plan)}"
    document: dict[str, Any] = {
        "predicted": {"tokens_per_s": found.tokens_per_s, "tokens_per_s_one": found.tokens_per_s_one},
        "measured": {"tokens_per_s": rate, "tokens_per_s_one": one},
        "against_prediction": figures_document(comparison),
        "pace": pace_document(comparison.pace),
        "tokens": count,
        "differences": None if different is None else [asdict(each) for each in different],
    }
    console.show(document, title, ("tokens/s, prompts included", "all sequences", "one alone"), rows)
    show_figures(comparison, "seconds", console)
    for line in phase_lines(found):
        console.say(line)


def _say_tokens(different: "tuple[TokenDifference, ...] | None", count: int, like: str, console: Console) -> None:
    """Print whether the tokens are the model's own, which ``like`` names."""
    for each in different or ():
        text = f"sequence {each.sequence}, token {each.position}: {each.found} instead of {each.expected}"
        if each.within_rounding:
            console.say(f"{text}, whose logits are as large but for rounding")
        else:
            console.error(f"the tokens differ: {text}")
    if different is None:
        console.say("no rank has the whole model, so the tokens were not compared")
    elif not different:
        console.say(f"all {count:,} tokens are those of {like}")
