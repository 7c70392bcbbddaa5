"""Returned losses: which numbers among a network's outputs are no means over its samples, by the operators they are of.

A network that returns its loss hands on one number for a micro-batch, of which nobody can tell what it would be for the
whole batch. So the way back from it is read, up to where many numbers become one::

    logits ──cross_entropy(mean)──► a ──mul 0.5──► ─┐
    weights ──square──► ──sum──► (no sample) ───────┴──add──► loss      a mean of means, and what is the same for all
    logits ──cross_entropy(sum)──► b ──► loss                           a sum: twice as large for twice the samples
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import prod

from graphs.ir import Graph, Op
from graphs.operator_kinds import aten_kinds

VIEWS = aten_kinds("view reshape squeeze unsqueeze alias contiguous to")
LINEAR = VIEWS | aten_kinds("expand clone detach select _to_copy neg add sub rsub stack cat")
"""Operators that make a mean of a mean, or of several."""

CROSS_ENTROPIES = aten_kinds("cross_entropy_loss nll_loss_nd nll_loss nll_loss2d")
OTHER_LOSSES = aten_kinds("kl_div binary_cross_entropy binary_cross_entropy_with_logits")
MEAN, SUM = 1, 2


@dataclass(frozen=True)
class ReturnedLosses:
    """The numbers that a network returns."""

    graph: Graph  # the network

    @cached_property
    def no_means(self) -> Mapping[str, Op]:
        """The outputs that are no means over samples, with the operator that makes them something else."""
        found = {}
        for name in self.graph.outputs:
            tensor = self.graph.tensor[name]
            if not tensor.shape and "float" in tensor.dtype and (op := self._odd(name)) is not None:
                found[name] = op
        return found

    @cached_property
    def _writer(self) -> Mapping[str, Op]:
        return {name: op for op in self.graph.ops for name in op.outputs}

    @cached_property
    def _sampled(self) -> frozenset[str]:
        """The tensors that depend on an input of the network."""
        found = set(self.graph.inputs)
        for op in self.graph.ops:
            if not found.isdisjoint(op.inputs):
                found.update(op.outputs)
        return frozenset(found)

    def _odd(self, name: str, whole: bool = True) -> Op | None:
        """Return the operator on the way to a number that makes it no mean; is it the ``whole`` of an output?"""
        op = self._writer.get(name)
        if name not in self._sampled or op is None:
            return None
        is_mean = self._is_mean(op, whole)
        if is_mean is not None:
            return None if is_mean else op
        combined = self._combined(op)
        if not combined:
            return op
        whole = whole and _kind(op) in VIEWS
        return next((odd for each in combined if (odd := self._odd(each, whole)) is not None), None)

    def _is_mean(self, op: Op, whole: bool) -> bool | None:
        """Return whether an operator makes a mean of many numbers; None if that depends on the numbers it reads."""
        kind = _kind(op)
        if kind in CROSS_ENTROPIES and op.inputs[1] not in self._sampled:
            return False  # each sample has a target of its own, so samples are compared with each other
        if kind.endswith("_loss") or kind in CROSS_ENTROPIES | OTHER_LOSSES:
            return dict(op.attrs).get("reduction", MEAN) != SUM
        if kind == "aten.div" and not self._sampled.isdisjoint(op.inputs[1:]):
            return whole  # a mean over a mask counts for its denominator, if it is all of the loss, see `means`
        return True if kind == "aten.mean" or (kind == "aten.div" and self._is_mean_of_sum(op)) else None

    def _combined(self, op: Op) -> list[str]:
        """Return the numbers of which an operator makes a sum or a multiple; none if it computes something else."""
        kind, read = _kind(op), [each for each in op.inputs if each in self._sampled]
        scaled = kind in ("aten.mul", "aten.div") and len(read) == 1 and prod(self.graph.tensor[read[0]].shape) == 1
        if kind in LINEAR or scaled:
            return read
        writer = self._writer.get(read[0])
        return read if kind == "aten.sum" and writer is not None and _kind(writer) in ("aten.stack", "aten.cat") else []

    def _is_mean_of_sum(self, op: Op) -> bool:
        """Return whether a division makes a mean of a sum: by the number of samples, or of numbers in all of them."""
        total, number = self._writer.get(op.inputs[0]), dict(op.attrs).get("other")
        if total is None or not isinstance(number, int | float):
            return False
        shape = self.graph.tensor[total.inputs[0]].shape
        rest = range(1, len(shape))
        sizes = {
            shape[0] * prod(shape[axis] for axis in axes)
            for count in range(len(shape))
            for axes in combinations(rest, count)
            if shape
        }
        return number in sizes


def _kind(op: Op) -> str:
    return op.kind.rpartition(".")[0]
