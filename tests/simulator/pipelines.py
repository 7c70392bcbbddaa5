"""Schedules and costs for tests, and a picture of a run."""

import re
from collections.abc import Sequence

from hypothesis import strategies as st

from simulator.lower_schedule import StageCost
from simulator.pipeline import PipelineRun
from simulator.schedule import Action, Computation, Schedule


def equal_stages(n_stages: int, forward_s: float, input_grad_s: float, weight_grad_s: float) -> list[StageCost]:
    """Stages that are all the same, with free messages; each micro-batch keeps 1000 bytes for I, then 1 for W."""
    return [StageCost(forward_s, input_grad_s, weight_grad_s, saved_bytes=1000, kept_bytes=1)] * n_stages


def peaks(run: PipelineRun) -> list[int]:
    """[n_devices], the most that each device keeps."""
    return [saved.peak_bytes for saved in run.saved]


def drawn(run: PipelineRun) -> list[str]:
    """A line for each device with a cell for each second: the action that starts, - while it goes on, or a dot."""
    lines = []
    for name in run.devices:
        cells = ["."] * round(run.makespan_s)
        for span in run.timeline.spans:
            if span.resource == name:
                first, behind = round(span.start_s), round(span.end_s)
                cells[first:behind] = [span.label] + ["-"] * (behind - first - 1)
        lines.append(" ".join(f"{cell:3}" for cell in cells).rstrip())
    return lines


def needs(action: Action, n_stages: int, split: Sequence[bool]) -> list[Action]:
    """What an action waits for; ``split[stage]`` says whether a stage goes back in two parts."""
    stage, computation, micro_batch = action
    if computation == "F":
        return [Action(stage - 1, "F", micro_batch)] if stage else []
    if computation == "W":
        return [Action(stage, "I", micro_batch)]
    after = [Action(stage + 1, "I" if split[stage + 1] else "B", micro_batch)] if stage + 1 < n_stages else []
    return [Action(stage, "F", micro_batch), *after]


@st.composite
def schedules(draw: st.DrawFn, runnable: bool = True) -> Schedule:
    """Stages anywhere on four devices, in any order that runs; or perhaps not, then only each stage's own is right."""
    n_stages, micro_batches = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    device = [draw(st.integers(0, 3)) for _ in range(n_stages)]
    split = [draw(st.booleans()) for _ in range(n_stages)]
    trains = draw(st.booleans())
    left = [
        Action(stage, computation, micro_batch)
        for stage in range(n_stages)
        for computation in _computations(split[stage], trains)
        for micro_batch in range(micro_batches)
    ]
    rows: list[list[Action]] = [[] for _ in range(4)]
    while left:
        waiting = set(left)
        ready = [
            action
            for action in left
            if waiting.isdisjoint(
                need for need in needs(action, n_stages, split) if runnable or need.stage == action.stage
            )
        ]
        action = draw(st.sampled_from(ready))
        left.remove(action)
        rows[device[action.stage]].append(action)
    return Schedule(tuple(tuple(row) for row in rows))


def _computations(split: bool, trains: bool) -> Sequence[Computation]:
    if not trains:
        return ("F",)
    return ("F", "I", "W") if split else ("F", "B")


def stage_costs(n_stages: int, whole: bool = False) -> st.SearchStrategy[list[StageCost]]:
    """Any costs; whole seconds, if sums have to be exact."""
    seconds: st.SearchStrategy[float] = st.integers(0, 5) if whole else st.floats(0, 5)
    cost = st.builds(StageCost, *[seconds] * 5, *[st.integers(0, 9)] * 2)
    return st.lists(cost, min_size=n_stages, max_size=n_stages)


CIRCLE = re.compile(r"device (\d+) at (\w+) for (\w+)")
"""One of the waiting devices in the message of a deadlock."""
