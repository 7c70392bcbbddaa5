"""Plan: pipeline stages and a strategy for every layer, with its price; read from and written to JSON.

::

    {"pp": 2, "embedding": {"tp": 2, "sp": 1, "zero": 2},
     "layers": [{"count": 20, "tp": 2, "sp": 1, "zero": 3, "recompute": true}, {"count": 8, "tp": 1, "sp": 4, ..}]}
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from graphs.common.brief import Brief
from graphs.common.errors import InputError
from graphs.common.json_object import JsonObject
from planner.literature.layerwise.prices import StagePrices, step_ms
from planner.literature.layerwise.setting import LayerStrategy, LayerwiseSetting


@dataclass(frozen=True)
class LayerwisePlan(Brief):
    """Stages, the strategy of embedding and head, and those of the layers in their order."""

    stages: int
    outer: LayerStrategy
    layers: tuple[LayerStrategy, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the plan's JSON file."""
        outer = {"tp": self.outer.tensor, "sp": self.outer.sequence, "zero": self.outer.zero}
        layers = [
            {"count": len(list(equal)), "tp": s.tensor, "sp": s.sequence, "zero": s.zero, "recompute": s.recompute}
            for s, equal in groupby(self.layers)
        ]
        return {"pp": self.stages, "embedding": outer, "layers": layers}


@dataclass(frozen=True)
class LayerwisePrice:
    """The price of a plan."""

    step_ms: float  # the time of a step
    memory_mb: tuple[int, ...]  # of one GPU of each stage
    limit_mb: int  # the most that a GPU may hold

    @property
    def feasible(self) -> bool:
        """Whether every stage keeps the limit."""
        return max(self.memory_mb) <= self.limit_mb


def layerwise_plan(document: Mapping[str, Any]) -> LayerwisePlan:
    """Return a plan from the content of its JSON file.

    Raises:
        InputError: if a field is missing or of the wrong kind.
    """
    top = JsonObject("the plan", document)
    layers: list[LayerStrategy] = []
    for position, content in enumerate(top.records("layers")):
        record = JsonObject(f"entry number {position + 1} of the plan's layers", content)
        layers += [_strategy(record, record.flag("recompute"))] * (record.count("count") if record.has("count") else 1)
    return LayerwisePlan(top.count("pp", 1), _strategy(top.object("embedding"), False), tuple(layers))


def _strategy(record: JsonObject, recompute: bool) -> LayerStrategy:
    zero = record.count("zero")
    if zero not in (2, 3):
        raise InputError(f"{record.where} has zero = {zero}; it must be 2 or 3")
    return LayerStrategy(record.count("tp", 1), record.count("sp", 1), zero, recompute)


def price_of(setting: LayerwiseSetting, plan: LayerwisePlan) -> LayerwisePrice:
    """Return the price of a plan under a setting.

    Raises:
        InputError: if the plan has another number of layers, more stages than layers or micro-batches, or a strategy
            that does not fit the GPUs.
    """
    if len(plan.layers) != setting.layers:
        raise InputError(
            f"the plan has {len(plan.layers)} layers, the model has {setting.layers}; give each a strategy"
        )
    if plan.stages > min(setting.layers, setting.micro_batches):
        raise InputError(
            f"the plan has {plan.stages} stages for {setting.layers} layers and {setting.micro_batches} micro-batches; "
            "take fewer stages"
        )
    prices = StagePrices(setting, plan.stages)
    compute, memory = list(prices.outer_ms(plan.outer)), list(prices.outer_mb(plan.outer))
    synced = [0.0] * plan.stages
    rest = iter(plan.layers)
    for stage, count in enumerate(prices.stage_layers):
        for strategy, layers in Counter(islice(rest, count)).items():
            time = prices.layer(strategy)
            compute[stage] += layers * time.plain_ms
            synced[stage] += layers * time.synced_ms
            memory[stage] += layers * prices.layer_mb(strategy, stage)
    used = {*plan.layers, plan.outer}
    buffer_mb = prices.buffer_mb(max(max(s[:2]) for s in used)) if any(s.tensor > 1 for s in used) else 0
    step = step_ms(compute, synced, setting.micro_batches)
    return LayerwisePrice(step, tuple(held + buffer_mb for held in memory), setting.limit_mb)
