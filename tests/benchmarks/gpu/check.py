"""The record of a check, the table of all, and the bars that they share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch

from planner.runtime.verification.deviation import TOLERANCE, deviation
from tests.benchmarks.bars import Bar, at_least, at_most
from tests.benchmarks.gpu.networks import Size

NEAR = 0.25  # share by which a predicted time or memory may miss

Bars: TypeAlias = Iterator[Bar]
"""Each yielded as soon as it is known."""


@dataclass(frozen=True)
class Check:
    """A question to a GPU."""

    limit_s: float  # after which its process is ended
    run: Callable[[Size], Bars]


CHECKS: dict[str, Check] = {}


def check(name: str, limit_s: float) -> Callable[[Callable[[Size], Bars]], Callable[[Size], Bars]]:
    """Enter a check by its name."""

    def entered(run: Callable[[Size], Bars]) -> Callable[[Size], Bars]:
        CHECKS[name] = Check(limit_s, run)
        return run

    return entered


def said(name: str, holds: bool) -> Bar:
    """A bar for what is either so or not."""
    return at_least(name, float(holds), 1.0)


def near(name: str, predicted: float, measured: float) -> Bar:
    """A bar for how far a prediction is from what was measured, as a share of it."""
    print(f"       {name}: predicted {predicted:.4g}, measured {measured:.4g}", flush=True)
    return at_most(f"{name}: |predicted / measured - 1|", abs(predicted / measured - 1), NEAR)


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors are equal but for rounding."""
    return deviation(a, b, TOLERANCE.get(a.dtype, 0.0)) is None
