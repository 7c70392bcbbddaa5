"""Scaling: in float16 the loss is multiplied before its backward pass, so that small gradients do not become 0.

The scale halves when a gradient overflows, and that step of the optimizers is left out; it doubles after many steps
without an overflow. Source: Micikevicius et al. 2018, Mixed precision training. The rule and its numbers are those of
`torch.amp.GradScaler`, which decides for each optimizer alone; here the optimizers of all devices take a step, or none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Self

import torch

from graphs.errors import InputError

WIDEST, SMALLEST = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Scaling:
    """When the scale of the loss changes, and by how much.

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
