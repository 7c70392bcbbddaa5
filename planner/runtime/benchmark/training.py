"""Measure training steps: a plan's against the reference model's, in turns."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.problem.result import Interrupted
from planner.runtime.benchmark.measure import Load


@dataclass(frozen=True)
class StepTimes:
    """What steps took.

    Attributes:
        steps_s: for each contender the seconds of its steps; those of two contenders compare pair by pair.
        foreign_cores: processors that other processes used on average meanwhile; above 0.1 the figures are disturbed.
    """

    steps_s: Mapping[str, tuple[float, ...]]
    foreign_cores: float

    def step_s(self, name: str) -> float:
        """The median of a contender."""
        return statistics.median(self.steps_s[name])

    def speedup(self, name: str, over: str) -> float:
        """How many times as fast one contender is as another: the median of the ratios."""
        return statistics.median(a / b for a, b in zip(self.steps_s[over], self.steps_s[name], strict=True))


def measure_steps(
    contenders: Mapping[str, Callable[[], float]],
    rounds: int = 5,
    on_step: Callable[[str, int, int], Any] = lambda *_: None,
    pids: Sequence[int] = (),
) -> StepTimes:
    """Let contenders take turns, a step each, behind one that does not count.

    Args:
        contenders: each takes a step and returns its seconds.
        rounds: steps of each that count.
        on_step: hears (what, done, total) after every step.
        pids: other processes of this host that work for a contender.

    Raises:
        Interrupted: on Ctrl-C, with the rounds until then.
    """
    for step in contenders.values():
        step()
    steps_s: dict[str, list[float]] = {name: [] for name in contenders}
    load = Load(pids)
    try:
        for number in range(rounds):
            for turn, (name, step) in enumerate(contenders.items()):
                steps_s[name].append(step())
                on_step(f"training {name}", number * len(contenders) + turn + 1, rounds * len(contenders))
    except KeyboardInterrupt as stopped:
        whole = min(map(len, steps_s.values()))
        if not whole:
            raise
        done = {name: tuple(values[:whole]) for name, values in steps_s.items()}
        raise Interrupted(StepTimes(done, load.foreign_cores())) from stopped
    return StepTimes({name: tuple(values) for name, values in steps_s.items()}, load.foreign_cores())
