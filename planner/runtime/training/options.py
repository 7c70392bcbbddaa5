"""Trainer options: choices for a training that its plan does not make."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Self

import torch

from costmodels.workload import RECOMPUTE_MODES, RecomputeMode, Workload
from graphs.common import checks
from graphs.common.checks import check_fields
from graphs.common.errors import InputError
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.matching import check_same, check_types
from planner.runtime.stages.random_generators import check_seed

WIDEST, SMALLEST = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Scaling:
    """When the scale of the loss changes, and by how much: in float16 small gradients would become 0 without it.

    The scale halves when a gradient overflows, and that step of the optimizers is left out; it doubles after many steps
    without an overflow. Source: Micikevicius et al. 2018, Mixed precision training. The rule and its numbers are those
    of `torch.amp.GradScaler`, which decides for each optimizer alone; here all devices take a step, or none.

    Raises:
        InputError: for numbers with which it would not shrink, not grow, or not stay finite.
    """

    initial: float = 2.0**16  # scale of the first step
    growth: float = 2.0  # factor after ``interval`` steps in a row without an overflow
    backoff: float = 0.5  # factor after an overflow
    interval: int = 2000  # steps of the optimizer

    def __post_init__(self) -> None:
        for what, value, low, high, rule in (
            ("initial scale", self.initial, 0.0, inf, "a number above 0"),
            ("growth of the scale", self.growth, 1.0, inf, "a number above 1"),
            ("backoff of the scale", self.backoff, 0.0, 1.0, "between 0 and 1"),
            ("interval of the scale", self.interval, 0, inf, "1 or more"),
        ):
            if not low < value < high:
                raise InputError(f"the {what} is {value}; it must be {rule}")


@dataclass(frozen=True)
class Scale:
    """The scale of the loss."""

    rule: Scaling  # how it changes
    value: float  # as it is now
    clean: int = 0  # steps in a row without an overflow

    @classmethod
    def of(cls, dtype: torch.dtype | None, rule: Scaling) -> Self | None:
        """Return the scale of the first step; None for a dtype of mixed precision that needs none."""
        return cls(rule, rule.initial) if dtype is torch.float16 else None

    def after(self, finite: bool) -> Self:
        """Return the scale after a step of the optimizers, in which all gradients were finite or not."""
        if not finite:
            return replace(self, value=max(self.value * self.rule.backoff, SMALLEST), clean=0)
        if self.clean + 1 < self.rule.interval:
            return replace(self, clean=self.clean + 1)
        grown = self.value * self.rule.growth
        return replace(self, value=grown if grown <= WIDEST else self.value, clean=0)

    def state_dict(self) -> dict[str, Any]:
        """Return the scale in the form that `torch.amp.GradScaler` saves and loads."""
        return {
            "scale": self.value,
            "growth_factor": self.rule.growth,
            "backoff_factor": self.rule.backoff,
            "growth_interval": self.rule.interval,
            "_growth_tracker": self.clean,
        }

    def loaded(self, state: Mapping[str, Any] | None) -> Self:
        """Return the saved scale, with the rule it was saved with; the scale of the first step if none was saved."""
        if not state:
            return replace(self, value=self.rule.initial, clean=0)
        rule = Scaling(
            self.rule.initial, state["growth_factor"], state["backoff_factor"], int(state["growth_interval"])
        )
        return replace(self, rule=rule, value=float(state["scale"]), clean=int(state["_growth_tracker"]))


def check_wide(parameters: Mapping[str, torch.Tensor]) -> None:
    """Check that gradients can be scaled back in the dtype of their parameters; raise InputError if one is float16."""
    for name, parameter in parameters.items():
        if parameter.dtype is torch.float16:
            raise InputError(
                f"parameter '{name}' is of float16; mixed precision keeps parameters in float32 and computes in "
                "float16: give the model in float32"
            )


MIXED = (torch.bfloat16, torch.float16)
"""The dtypes of mixed precision."""


@dataclass(frozen=True)
class TrainerOptions:
    """Choices for a training that its plan does not make.

    Attributes:
        accumulate: calls of `Trainer.step` whose gradients are added up, as for one larger batch, for each step of
            the optimizer.
        clip_norm: the largest norm of all gradients together, over all devices, as in
            ``torch.nn.utils.clip_grad_norm_``; None for any.
        recompute: what each stage runs forward once more before its backward pass, instead of keeping its activations;
            None for the plan's choice.
        autocast: the dtype of mixed precision, ``torch.bfloat16`` or ``torch.float16``; None for the model's own.
        scaling: scaling of the loss, in float16; a step in which a gradient overflows leaves parameters as they are.
        seed: seed of dropout and the like. Their numbers follow from it, the step, the micro-batch and the operator, on
            any placement.

    Raises:
        InputError: for a number that is too small, or a dtype that mixed precision cannot use.
    """

    accumulate: int = 1
    clip_norm: float | None = None
    recompute: RecomputeMode | None = None
    autocast: torch.dtype | None = None
    scaling: Scaling = field(default_factory=Scaling)
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "the trainer options")
        if self.accumulate < 1:
            raise InputError(f"the gradients of {self.accumulate} steps are to be added up; it must be 1 or more")
        if self.clip_norm is not None and not 0 < self.clip_norm < inf:
            raise InputError(f"the largest norm of the gradients is {self.clip_norm}; it must be a number above 0")
        if self.recompute is not None:
            checks.one_of(self.recompute, "the recomputation", RECOMPUTE_MODES)
        if self.autocast not in (None, *MIXED):
            raise InputError(
                f"there is no mixed precision with {str(self.autocast).removeprefix('torch.')}; "
                "use torch.bfloat16 or torch.float16"
            )
        check_seed(self.seed)

    def under(self, workload: Workload) -> "TrainerOptions":
        """Fill in the workload's choices where nothing was chosen."""
        return self if self.recompute is not None else replace(self, recompute=workload.recompute)


def check_training(plan: Plan, program: Program, loss: object, optimizer: object, trainer_options: object) -> None:
    """Check what is given to a trainer; raise InputError if a type is wrong, or the plan is for another model."""
    check_types(plan, program)
    checks.function(loss, "the loss", "a function of what the model returns and the target, or None")
    checks.function(optimizer, "the optimizer", "a function that makes one from a list of parameters")
    checks.instance(trainer_options, TrainerOptions, "the trainer options", "a TrainerOptions, or None")
    check_same(plan.graph, program.graph)
