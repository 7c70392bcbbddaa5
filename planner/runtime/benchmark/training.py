"""Measure the training steps of a plan and of the reference model, in turns."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.runtime.benchmark.load import Load
from planner.runtime.benchmark.measure import speedup, take_turns


@dataclass(frozen=True)
class StepTimes:
    """The times of steps."""

    steps_s: Mapping[str, tuple[float, ...]]  # seconds of each step; contenders compare pair by pair
    foreign_cores: float  # processors that others used on average; above 0.1 they disturb the figures
    pace: Mapping[str, float] = field(default_factory=dict)  # seconds of the reference computations, if measured

    def step_s(self, name: str) -> float:
        """Return the median of a contender."""
        return statistics.median(self.steps_s[name])

    def speedup(self, name: str, over: str) -> float:
        """Return how many times as fast one contender is as another: the median of the ratios."""
        return speedup(self.steps_s[over], self.steps_s[name])


def measure_steps(
    contenders: Mapping[str, Callable[[], float]],
    rounds: int = 5,
    on_step: Callable[[str, int, int], Any] = lambda *_: None,
    load: Load | None = None,
) -> StepTimes:
    """Let contenders take a step each in every round, after one that does not count, and return their seconds.

    ``on_step`` and ``load`` are those of `measure`.
    """
    for step in contenders.values():
        step()

    def result(steps_s: Mapping[str, Sequence[float]], load: Load) -> StepTimes:
        return StepTimes({name: tuple(own) for name, own in steps_s.items()}, load.foreign_cores(), load.pace)

    return take_turns(contenders, result, rounds, "training", on_step, load or Load())
