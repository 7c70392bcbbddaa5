"""What ``planner solve`` does with a layer-wise setting: stages, and a strategy for each layer."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from graphs.documents import read_json
from graphs.files import write_text
from planner.cli.console import Console
from planner.cli.statuses import DONE, NO_PLAN
from planner.cli.text import table
from planner.problem.layerwise.plan import LayerwisePlan, LayerwisePrice, layerwise_plan, price_of
from planner.problem.layerwise.prices import StagePrices
from planner.problem.layerwise.setting import LayerStrategy, LayerwiseSetting, layerwise_setting
from planner.problem.result import Status
from planner.solvers.layerwise import solve_layerwise

MS_PER_S = 1e3


def solve_layerwise_setting(document: Mapping[str, Any], options: argparse.Namespace, console: Console) -> int:
    """Find the best plan, or price the one that is given, and write it."""
    setting = layerwise_setting(document)
    if options.given is not None:
        return _priced(setting, layerwise_plan(read_json(options.given, "plan")), options, console)
    console.searching(f"solving {options.problem}", options.time_limit)
    result = solve_layerwise(setting, options.time_limit)
    if result.plan is None:
        console.error(f"{result.status}: no plan was found within {setting.limit_mb:,} MB a GPU; add memory or GPUs")
        return NO_PLAN
    write_text(json.dumps(result.plan.to_dict(), indent=1) + "\n", options.output)
    best = setting.batch / result.bound_ms * MS_PER_S
    document = {"status": str(result.status), "bound_samples_per_s": best, "wall_s": round(result.wall_s, 3)}
    proof = "" if result.status is Status.OPTIMAL else f"; no plan has more than {best:.7g}"
    said = f"{result.status}: {{}} in {result.wall_s:.1f} s{proof}"
    _show(setting, result.plan, document, said, options, console)
    return DONE


def _priced(setting: LayerwiseSetting, plan: LayerwisePlan, options: argparse.Namespace, console: Console) -> int:
    """Price a plan and write it."""
    write_text(json.dumps(plan.to_dict(), indent=1) + "\n", options.output)
    price = _show(setting, plan, {"status": "given"}, "given: {}", options, console)
    if not price.feasible:
        console.error(
            f"a stage needs {max(price.memory_mb):,} MB of {price.limit_mb:,} MB a GPU; share or recompute more"
        )
        return NO_PLAN
    return DONE


def _show(
    setting: LayerwiseSetting,
    plan: LayerwisePlan,
    document: dict[str, Any],
    said: str,
    options: argparse.Namespace,
    console: Console,
) -> LayerwisePrice:
    """Print a plan, a row for each strategy of each stage, and its price."""
    price = price_of(setting, plan)
    rate = setting.batch / price.step_ms * MS_PER_S
    document |= {"samples_per_s": rate, "step_ms": price.step_ms, "memory_mb": list(price.memory_mb)}
    document |= {"limit_mb": price.limit_mb, "plan": plan.to_dict(), "output": str(options.output)}
    lines = [
        f"layers → {options.output}",
        *table(("stage", "layers", "strategy", "memory, MB"), _rows(setting, plan, price)),
    ]
    price_text = f"{rate:.7g} samples/s, {price.step_ms / MS_PER_S:.7g} s a step, {price.limit_mb:,} MB a GPU"
    console.tell(document, [*lines, said.format(price_text)])
    return price


def _rows(setting: LayerwiseSetting, plan: LayerwisePlan, price: LayerwisePrice) -> Iterator[tuple[str, ...]]:
    yield "", "", f"embedding and head: {_words(plan.outer)}", ""
    first = 0
    for stage, count in enumerate(StagePrices(setting, plan.stages).stage_layers):
        used = Counter(plan.layers[first : first + count])
        for number, (strategy, layers) in enumerate(used.items()):
            yield str(stage), str(layers), _words(strategy), "" if number else f"{price.memory_mb[stage]:,}"
        first += count


def _words(strategy: LayerStrategy) -> str:
    """A strategy as people read it."""
    shared = f"tensor {strategy.tensor}" if strategy.sequence == 1 else f"sequence {strategy.sequence}"
    return f"{shared}, ZeRO {strategy.zero}{', recomputed' if strategy.recompute else ''}"
