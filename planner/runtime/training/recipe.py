"""Recipe: how a trainer goes about its steps."""

from dataclasses import dataclass
from math import inf

import torch

from graphs.errors import InputError


@dataclass(frozen=True)
class Recipe:
    """What may be chosen beside the plan.

    Attributes:
        accumulate: calls of `Trainer.step` whose gradients are added up, as of one larger batch, for each step of the
            optimizer.
        clip_norm: the largest norm of all gradients together, over all devices, as in
            ``torch.nn.utils.clip_grad_norm_``; None for any.
        recompute: run each stage forward once more before its way back, instead of keeping what that needs; None for
            what the plan says.
        autocast: the dtype of mixed precision, ``torch.bfloat16``; None for the model's own.
        seed: of dropout and the like. Their numbers follow from it, the step, the micro-batch and the operator, on any
            placement.

    Raises:
        InputError: for a number that is too small, or a dtype that mixed precision cannot use as it is.
    """

    accumulate: int = 1
    clip_norm: float | None = None
    recompute: bool | None = None
    autocast: torch.dtype | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise InputError(f"the gradients of {self.accumulate} steps are to be added up; it must be 1 or more")
        if self.clip_norm is not None and not 0 < self.clip_norm < inf:
            raise InputError(f"the largest norm of the gradients is {self.clip_norm}; it must be a number above 0")
        if self.autocast not in (None, torch.bfloat16):
            raise InputError(
                f"mixed precision with {str(self.autocast).removeprefix('torch.')} needs a scaled loss, "
                "which there is not; use torch.bfloat16"
            )
        if not 0 <= self.seed < 2**63:
            raise InputError(f"the seed is {self.seed}; it must be 0 or more, and less than 2**63")
