"""What training takes, in times of what inference was learned to take: two numbers for each family of operators.

In training a kernel also keeps what its backward pass needs (a pooling where its maxima are), and it may be another
one; the backward pass is about as many forward passes as it has products. Where operators of a family were measured in
training, the medians of both ratios, weighted by time, take the place of these rules.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from costmodels.gradients import backward_products
from costmodels.learning.keys import Described
from costmodels.measured import Step, weighted_median

LEAST_STEPS = 3  # of a family; by fewer nothing is learned


@dataclass(frozen=True)
class Ratios:
    """Of one family, to its learned time in inference.

    Attributes:
        forward: of the forward pass.
        backward: of the backward pass, for each of its products (see `costmodels.gradients.backward_products`).
    """

    forward: float = 1.0
    backward: float = 1.0


def fit_ratios(measured: Iterable[tuple[Described, Step, float]]) -> Ratios:
    """The ratios of one family.

    Args:
        measured: operators, what they took in training, and what they are learned to take in inference, in seconds.
    """
    rows = [(step, seconds, _products(op)) for op, step, seconds in measured]
    back = [(step.backward.seconds / (n * seconds), n * seconds) for step, seconds, n in rows if n]
    if len(rows) < LEAST_STEPS:
        return Ratios()
    forward = weighted_median((step.forward.seconds / seconds, seconds) for step, seconds, _ in rows)
    return Ratios(forward, weighted_median(back) if len(back) >= LEAST_STEPS else 1.0)


def _products(op: Described) -> int:
    return backward_products(t.shape for t, learns in zip(op.inputs, op.gradients, strict=True) if learns)
