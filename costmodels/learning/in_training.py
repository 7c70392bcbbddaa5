"""Predicts the forward and backward passes of each family in training from predictions in inference.

In training a kernel also keeps data for its backward pass (a pooling the positions of its maxima), and may be another
kernel. The backward pass has a product for each gradient (see `costmodels.operators.views.backward_products`), reads
and writes gradients, and adds those of parameters to the gradients of other micro-batches. These amounts get prices,
and the residual is regressed, as in inference (`costmodels.learning.regression`). The time in inference is one of the
amounts, so that much fewer operators have to be measured in training.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.learning.features import Features
from costmodels.learning.regression import LEAST_S, Process, fit_process
from costmodels.measured import TrainingMeasurement
from costmodels.operators.keys import KeyContent
from costmodels.operators.views import STOPS, backward_products
from graphs.common.arrays import Floats

LEAST_STEPS = 3  # least measurements of a family
MOST_STEPS = 600  # most measurements of a family; more are thinned out evenly


@dataclass(frozen=True)
class Query:
    """An operator in training."""

    op: KeyContent  # the operator, from its key
    features: Features  # features of the operator
    inference_s: float  # predicted seconds in inference

    @property
    def products(self) -> int:
        """An estimate of the work of its backward pass, as a multiple of the work of its forward pass."""
        if self.op.operation in STOPS:
            return 0
        pairs = zip(self.op.inputs, self.op.gradients, strict=True)
        return backward_products(t.shape for t, learns in pairs if learns)

    @property
    def forward_terms(self) -> tuple[float, ...]:
        """Amounts of work of the forward pass: seconds in inference, a call, bytes that move."""
        return self.inference_s, 1.0, self.features.terms[2]

    @property
    def backward_terms(self) -> tuple[float, ...]:
        """Amounts of the backward pass: seconds in inference and FLOP for each product, a call, bytes of gradients."""
        _, flop, _, state, *_ = self.features.terms
        into = sum(t.n_bytes for t, learns in zip(self.op.inputs, self.op.gradients, strict=True) if learns)
        out_of = sum(t.n_bytes for t in self.op.outputs)
        added = min(float(into), state)  # gradients of parameters
        return self.products * self.inference_s, self.products * flop, 1.0, float(into + out_of) - added, added

    @property
    def place(self) -> tuple[float, ...]:
        """The place in inference, and the number of products."""
        return (*self.features.place, 2.0 * self.products)


@dataclass(frozen=True)
class PassModels:
    """Operators of one family in training."""

    forward: Process  # their forward passes
    backward: Process | None  # their backward passes; None if too few were measured

    def predict(self, sought: Sequence[Query]) -> tuple[Floats, Floats, Floats]:
        """Return the seconds forward and backward and their relative standard error, [n] each."""
        places = np.array([op.place for op in sought])
        forward_s, spread = self.forward.predict(np.array([op.forward_terms for op in sought]), places)
        backward_s = np.array([op.products * op.inference_s for op in sought])
        if self.backward is None:
            return forward_s, backward_s, spread
        learns = np.array([op.products > 0 for op in sought])
        back_s, back_spread = self.backward.predict(np.array([op.backward_terms for op in sought]), places)
        backward_s = np.where(learns, back_s, 0.0)
        return forward_s, backward_s, (forward_s * spread + backward_s * back_spread) / (forward_s + backward_s)


def fit_both_ways(measured: Sequence[tuple[Query, TrainingMeasurement]]) -> PassModels | None:
    """Fit the processes of one family to measured operators in training; None for too few operators."""
    measured = measured[:: -(-len(measured) // MOST_STEPS) or 1]
    if len(measured) < LEAST_STEPS:
        return None
    back = [(op, step) for op, step in measured if op.products and step.backward.seconds > 0]
    forward = _process([(op, op.forward_terms, step.forward.seconds) for op, step in measured])
    backward = [(op, op.backward_terms, step.backward.seconds) for op, step in back]
    return PassModels(forward, _process(backward) if len(backward) >= LEAST_STEPS else None)


def _process(rows: Sequence[tuple[Query, tuple[float, ...], float]]) -> Process:
    return fit_process(
        np.array([terms for _, terms, _ in rows]),
        np.array([op.place for op, _, _ in rows]),
        np.array([max(seconds, LEAST_S) for _, _, seconds in rows]),
    )
