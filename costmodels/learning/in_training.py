"""What training takes: each family's forward and backward pass, from what inference was learned to take.

In training a kernel also keeps what its backward pass needs (a pooling where its maxima are), and it may be another
one. The backward pass multiplies once for each gradient (see `costmodels.gradients.backward_products`), reads and
writes gradients, and adds those of parameters to what other micro-batches sent back. These amounts are priced, and what
is left is regressed, as in inference (`costmodels.learning.regression`). The time of inference is one of the amounts,
so that much fewer operators have to be measured in training.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.gradients import STOPS, backward_products
from costmodels.learning.features import Features
from costmodels.learning.keys import Described
from costmodels.learning.regression import LEAST_S, Process, fit_process
from costmodels.measured import TrainingMeasurement
from costmodels.table import Floats

LEAST_STEPS = 3  # of a family; by fewer nothing is learned
MOST_STEPS = 600  # of one family; more are thinned out evenly


@dataclass(frozen=True)
class Sought:
    """An operator in training.

    Attributes:
        op: as its key describes it.
        features: of it.
        inference_s: seconds that it was learned to take in inference.
    """

    op: Described
    features: Features
    inference_s: float

    @property
    def products(self) -> int:
        """How many times the work of its forward pass its backward pass has, before anything is measured."""
        return products(self.op)

    @property
    def forward_terms(self) -> tuple[float, ...]:
        """Of which its forward pass is roughly a sum: inference, a call, bytes that move."""
        return self.inference_s, 1.0, self.features.terms[2]

    @property
    def backward_terms(self) -> tuple[float, ...]:
        """Likewise of its backward pass: inference and FLOP for each product, a call, bytes of gradients."""
        _, flop, _, state, *_ = self.features.terms
        into = sum(t.n_bytes for t, learns in zip(self.op.inputs, self.op.gradients, strict=True) if learns)
        out_of = sum(t.n_bytes for t in self.op.outputs)
        added = min(float(into), state)  # gradients of parameters
        return self.products * self.inference_s, self.products * flop, 1.0, float(into + out_of) - added, added

    @property
    def place(self) -> tuple[float, ...]:
        """As in inference, and how many gradients are asked for."""
        return (*self.features.place, 2.0 * self.products)


def products(op: Described) -> int:
    """How many times the work of its forward pass an operator's backward pass has, before anything is measured."""
    if op.operation in STOPS:
        return 0
    return backward_products(t.shape for t, learns in zip(op.inputs, op.gradients, strict=True) if learns)


@dataclass(frozen=True)
class BothWays:
    """Operators of one family in training.

    Attributes:
        forward: their forward passes.
        backward: their backward passes; None if too few were measured.
    """

    forward: Process
    backward: Process | None

    def predict(self, sought: Sequence[Sought]) -> tuple[Floats, Floats, Floats]:
        """Seconds forward and backward and their relative standard error, [n] each."""
        places = np.array([one.place for one in sought])
        forward_s, spread = self.forward.predict(np.array([one.forward_terms for one in sought]), places)
        backward_s = np.array([one.products * one.inference_s for one in sought])
        if self.backward is None:
            return forward_s, backward_s, spread
        learns = np.array([one.products > 0 for one in sought])
        back_s, back_spread = self.backward.predict(np.array([one.backward_terms for one in sought]), places)
        backward_s = np.where(learns, back_s, 0.0)
        return forward_s, backward_s, (forward_s * spread + backward_s * back_spread) / (forward_s + backward_s)


def fit_both_ways(measured: Sequence[tuple[Sought, TrainingMeasurement]]) -> BothWays | None:
    """Learn from operators of one family; None from too few.

    Args:
        measured: operators, and what they took in training.
    """
    measured = measured[:: -(-len(measured) // MOST_STEPS) or 1]
    if len(measured) < LEAST_STEPS:
        return None
    back = [(one, step) for one, step in measured if one.products and step.backward.seconds > 0]
    forward = _process([(one, one.forward_terms, step.forward.seconds) for one, step in measured])
    backward = [(one, one.backward_terms, step.backward.seconds) for one, step in back]
    return BothWays(forward, _process(backward) if len(backward) >= LEAST_STEPS else None)


def _process(rows: Sequence[tuple[Sought, tuple[float, ...], float]]) -> Process:
    return fit_process(
        np.array([terms for _, terms, _ in rows]),
        np.array([one.place for one, _, _ in rows]),
        np.array([max(seconds, LEAST_S) for _, _, seconds in rows]),
    )
