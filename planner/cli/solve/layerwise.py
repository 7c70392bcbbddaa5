"""``planner solve`` for a layer-wise setting: stages, and a strategy for each layer."""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from graphs.common.documents import read_json
from planner.cli.console import Console
from planner.cli.solve.solution import Solution, no_solution, proof, searched, until_then
from planner.cli.statuses import NO_PLAN
from planner.cli.text import table
from planner.literature.layerwise.plan import LayerwisePlan, LayerwisePrice, layerwise_plan, price_of
from planner.literature.layerwise.prices import StagePrices
from planner.literature.layerwise.setting import LayerStrategy, LayerwiseSetting, layerwise_setting
from planner.literature.layerwise.solve import solve_layerwise

MS_PER_S = 1e3


def solve_layerwise_setting(document: Mapping[str, Any], options: argparse.Namespace, console: Console) -> Solution:
    """Return the best plan, or the one that is given, and its price."""
    setting = layerwise_setting(document)
    if options.given is not None:
        plan = layerwise_plan(read_json(options.given, "plan"))
        price = price_of(setting, plan)
        answer = _answer(setting, plan, price, {"status": "given"}, "given: {}")
        needs = f"a stage needs {max(price.memory_mb):,} MB of {price.limit_mb:,} MB a GPU; share or recompute more"
        return answer if price.feasible else answer._replace(trouble=needs, status=NO_PLAN)
    console.on_search(f"solving {options.problem}", options.time_limit)
    result, interrupted = searched(lambda: solve_layerwise(setting, options.time_limit))
    if result.plan is None:
        return no_solution(
            f"{result.status}: no plan was found within {setting.limit_mb:,} MB a GPU; add memory or GPUs"
        )
    best = setting.batch / result.bound_ms * MS_PER_S if result.bound_ms > 0 else None
    status = "interrupted" if interrupted else str(result.status)
    found = {"status": status, "bound_samples_per_s": best, "wall_s": round(result.wall_s, 3)}
    proved = proof(result.status, "nothing is proved" if best is None else f"no plan has more than {best:.7g}")
    said = f"{status}: {{}} in {result.wall_s:.1f} s{proved}"
    solution = _answer(setting, result.plan, price_of(setting, result.plan), found, said)
    return until_then(solution, options.output) if interrupted else solution


def _answer(
    setting: LayerwiseSetting, plan: LayerwisePlan, price: LayerwisePrice, document: dict[str, Any], said: str
) -> Solution:
    """Return a plan, a row for each strategy of each stage, and its price, which ``said`` has a place for."""
    rate = setting.batch / price.step_ms * MS_PER_S
    document |= {"samples_per_s": rate, "step_ms": price.step_ms, "memory_mb": list(price.memory_mb)}
    document |= {"limit_mb": price.limit_mb, "plan": plan.to_dict()}
    rows = table(("stage", "layers", "strategy", "memory, MB"), _rows(setting, plan, price))
    text = f"{rate:.7g} samples/s, {price.step_ms / MS_PER_S:.7g} s a step, {price.limit_mb:,} MB a GPU"
    return Solution("layers", plan.to_dict(), document, [*rows, said.format(text)], indent=1)


def _rows(setting: LayerwiseSetting, plan: LayerwisePlan, price: LayerwisePrice) -> Iterator[tuple[str, ...]]:
    yield "", "", f"embedding and head: {_words(plan.outer)}", ""
    first = 0
    for stage, count in enumerate(StagePrices(setting, plan.stages).stage_layers):
        used = Counter(plan.layers[first : first + count])
        for number, (strategy, layers) in enumerate(used.items()):
            yield str(stage), str(layers), _words(strategy), "" if number else f"{price.memory_mb[stage]:,}"
        first += count


def _words(strategy: LayerStrategy) -> str:
    """Return a strategy as people read it."""
    shared = f"tensor {strategy.tensor}" if strategy.sequence == 1 else f"sequence {strategy.sequence}"
    return f"{shared}, ZeRO {strategy.zero}{', recomputed' if strategy.recompute else ''}"
