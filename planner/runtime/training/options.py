"""Trainer options: what may be chosen for a training beside its plan."""

from dataclasses import dataclass, field, replace
from math import inf

import torch

from costmodels.workload import Workload
from graphs import checks
from graphs.checks import check_fields
from graphs.errors import InputError
from planner.runtime.stages.random_generators import check_seed
from planner.runtime.training.scaling import Scaling

MIXED = (torch.bfloat16, torch.float16)
"""The dtypes of mixed precision."""


@dataclass(frozen=True)
class TrainerOptions:
    """What may be chosen beside the plan.

    Attributes:
        accumulate: calls of `Trainer.step` whose gradients are added up, as for one larger batch, for each step of
            the optimizer.
        clip_norm: the largest norm of all gradients together, over all devices, as in
            ``torch.nn.utils.clip_grad_norm_``; None for any.
        recompute: run each stage forward once more before its backward pass, instead of keeping its activations; None
            for the plan's choice.
        autocast: the dtype of mixed precision, ``torch.bfloat16`` or ``torch.float16``; None for the model's own.
        scaling: scaling of the loss, in float16; a step in which a gradient overflows leaves parameters as they are.
        seed: seed of dropout and the like. Their numbers follow from it, the step, the micro-batch and the operator, on
            any placement.

    Raises:
        InputError: for a number that is too small, or a dtype that mixed precision cannot use.
    """

    accumulate: int = 1
    clip_norm: float | None = None
    recompute: bool | None = None
    autocast: torch.dtype | None = None
    scaling: Scaling = field(default_factory=Scaling)
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "the trainer options")
        if self.accumulate < 1:
            raise InputError(f"the gradients of {self.accumulate} steps are to be added up; it must be 1 or more")
        if self.clip_norm is not None and not 0 < self.clip_norm < inf:
            raise InputError(f"the largest norm of the gradients is {self.clip_norm}; it must be a number above 0")
        if self.autocast not in (None, *MIXED):
            raise InputError(
                f"there is no mixed precision with {str(self.autocast).removeprefix('torch.')}; "
                "use torch.bfloat16 or torch.float16"
            )
        check_seed(self.seed)

    def under(self, workload: Workload) -> "TrainerOptions":
        """Fill in the workload's choices where nothing was chosen."""
        return self if self.recompute is not None else replace(self, recompute=workload.recompute)


def check_tools(loss: object, optimizer: object, trainer_options: object) -> None:
    """Check the types of a loss, an optimizer and trainer options; raise InputError if one is wrong."""
    checks.function(loss, "the loss", "a function of what the model returns and the target, or None")
    checks.function(optimizer, "the optimizer", "a function that makes one from a list of parameters")
    checks.instance(trainer_options, TrainerOptions, "the trainer options", "a TrainerOptions, or None")
