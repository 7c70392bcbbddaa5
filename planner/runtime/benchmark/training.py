"""Measure the training steps of a plan and of the reference model, in turns."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.runtime.benchmark.measure import speedup, take_turns


@dataclass(frozen=True)
class StepTimes:
    """The times of steps."""

    steps_s: Mapping[str, tuple[float, ...]]  # seconds of each step; contenders compare pair by pair
    foreign_cores: float  # processors that others used on average; above 0.1 they disturb the figures

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
    pids: Sequence[int] = (),
) -> StepTimes:
    """Let contenders take a step each in every round, after one that does not count.

    Args:
        contenders: each takes a step and returns its seconds.
        rounds: steps of each that count.
        on_step: called with (what, done, total) after every step.
        pids: other processes of this host that work for a contender.
    """
    for step in contenders.values():
        step()
    return take_turns(
        contenders,
        lambda steps_s, foreign_cores: StepTimes({name: tuple(own) for name, own in steps_s.items()}, foreign_cores),
        rounds,
        "training",
        on_step,
        pids,
    )
