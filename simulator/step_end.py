"""The end of a training step: replicas add up their gradients, then each device runs the optimizer.

::

    device 0   ... 0B2 0B3        [optimizer]      the sync of a stage's gradients follows its last backward pass;
    0 → replicas          =sync=                   the optimizer waits for all stages of its device
    device 1   ... 1B3      [optimizer]
    1 → replicas      =sync=
"""

from typing import NamedTuple

import numpy as np

from costmodels.table import Floats
from simulator.lower_schedule import Lowered
from simulator.schedule import B, W

OPTIMIZER, SYNC = "optimizer", "SYNC"
"""Labels in a timeline: of a device's optimizers, and of the sync of a stage's gradients, after the stage's number."""


class Piece(NamedTuple):
    """A sync or an optimizer, which runs once in a step."""

    stage: int  # the stage of the gradients, or the first stage of the optimizer's device
    device: int  # number of the device
    start_s: float  # seconds since the start of the step
    end_s: float  # seconds since the start of the step


class StepEnd(NamedTuple):
    """The syncs of the stages and the optimizers of the devices after the last micro-batch, if they take time."""

    syncs: tuple[Piece, ...]
    optimizers: tuple[Piece, ...]

    @property
    def end_s(self) -> float:
        """Second of the end; 0 if there are no pieces."""
        return max((piece.end_s for piece in (*self.syncs, *self.optimizers)), default=0.0)


def ends_step(label: str) -> bool:
    """Whether a span with this label belongs to the end of a step, and to no micro-batch."""
    return label == OPTIMIZER or (label.endswith(SYNC) and label.removesuffix(SYNC).isdecimal())


def step_end(lowered: Lowered, end_s: Floats, overlap: bool) -> StepEnd:
    """The times at which stages add up their gradients and devices run their optimizers.

    A device adds up the gradients of one stage after the other as they become ready, or after its last action if it
    does not overlap computing and sending. Actions end at ``end_s``, [n_actions].
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
