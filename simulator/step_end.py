"""The end of a training step: replicas add up their gradients, then each device runs the optimizer.

::

    device 0   ... 0B2 0B3        [optimizer]      a stage's gradients go round as soon as its last backward pass has
    0 → replicas          =sync=                   ended; the optimizer waits for all stages of its device
    device 1   ... 1B3      [optimizer]
    1 → replicas      =sync=
"""

from typing import NamedTuple

import numpy as np

from costmodels.table import Floats
from simulator.lower_schedule import Lowered
from simulator.schedule import B, W

OPTIMIZER, SYNC = "optimizer", "SYNC"
"""What the optimizers of a device are called in a timeline, and the gradients of a stage behind its number."""


class Piece(NamedTuple):
    """Something that happens once in a step.

    Attributes:
        stage: its gradients; or the first stage of the device, for the optimizer.
        device: number of the device.
        start_s: since the step began.
        end_s: since the step began.
    """

    stage: int
    device: int
    start_s: float
    end_s: float


class StepEnd(NamedTuple):
    """Behind the last micro-batch: a sync of each stage, an optimizer on each device, where they take time."""

    syncs: tuple[Piece, ...]
    optimizers: tuple[Piece, ...]

    @property
    def end_s(self) -> float:
        """When all of it has ended; 0 if there is nothing."""
        return max((piece.end_s for piece in (*self.syncs, *self.optimizers)), default=0.0)


def ends_step(label: str) -> bool:
    """Whether a span with this label belongs to the end of a step, and so to no micro-batch."""
    return label == OPTIMIZER or (label.endswith(SYNC) and label.removesuffix(SYNC).isdecimal())


def step_end(lowered: Lowered, end_s: Floats, overlap: bool) -> StepEnd:
    """When stages add up their gradients and devices run their optimizers.

    A device adds up the gradients of one stage after the other, as they become ready; unless it computes while it
    sends, only behind its last action.

    Args:
        lowered: the schedule with its costs.
        end_s: [n_actions], when each action ends.
        overlap: whether devices compute while they send.
    """
    schedule, costs = lowered.schedule, lowered.costs
    if not (schedule.trains and any(cost.sync_s or cost.optimizer_s for cost in costs)):
        return StepEnd((), ())
    last = np.maximum(schedule.position[B], schedule.position[W])
    ready_s = end_s[last].max(axis=1).tolist()  # [n_stages]
    syncs, optimizers = [], []
    for device, actions_end_s in enumerate(schedule.split(end_s)):
        stages = [stage for stage, where in enumerate(schedule.device) if where == device]
        if not stages:
            continue
        computed_s = float(actions_end_s[-1])
        free_s = 0.0 if overlap else computed_s
        for stage in sorted(stages, key=ready_s.__getitem__):
            if costs[stage].sync_s:
                start_s = max(free_s, ready_s[stage])
                free_s = start_s + costs[stage].sync_s
                syncs.append(Piece(stage, device, start_s, free_s))
        start_s, takes_s = max(free_s, computed_s), sum(costs[stage].optimizer_s for stage in stages)
        if takes_s:
            optimizers.append(Piece(stages[0], device, start_s, start_s + takes_s))
    return StepEnd(tuple(syncs), tuple(optimizers))
