"""Comparison: whether a loss of micro-batches comes to the loss of the whole batch.

A training in micro-batches follows the mean of their losses. That is the loss of the whole batch only if the loss is a
mean over samples. Whether it is, no function says, so that it is tried::

    micro-batch 0   outputs 0, target 0 ──loss──► a ┐
    micro-batch 1   outputs 1, target 1 ──loss──► b ┴──► (a + b) / 2, or weighed by their targets
    both together   outputs, targets    ──loss──────────► must be the same

A sum of losses, a mean whose number of targets nobody noted, a loss that compares samples with each other and one that
keeps count of its calls are recognised. Steps 0, 1, 2, 4, 8 and so on are looked at, since the first batch may be even
by chance; a loss is called up to four times more for a micro-batch there.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphs.common.errors import InputError
from graphs.program.program import Program
from planner.runtime.training.means import LossShare, combined, weights_of
from planner.runtime.training.returned_losses import ReturnedLosses

NO_MEAN = (
    "the loss of {} micro-batches together is {:.6g}, and their own losses come to {:.6g}, so it is no plain mean over "
    "samples: a sum (reduction='sum'), a mean over another number of targets in each, or a comparison of samples with "
    "each other; return the mean over all samples or targets (a cross-entropy alone, or the sum divided by the number "
    "of targets, as a tensor), or plan with one micro-batch"
)
STATE = (
    "the loss of the same micro-batch is {:.6g} and, called again, {:.6g}, so it keeps state between calls, which each "
    "micro-batch would change; keep it outside of the loss, or plan with one micro-batch"
)

RETURNED = (
    "model '{}' returns a loss that is no plain mean over samples, by its operator '{}' ({}), so micro-batches do not "
    "come to the loss of the whole batch; return the mean over all samples or targets, return the outputs and pass "
    "loss=, or plan with one micro-batch"
)

Judge = Callable[[Any, Any], LossShare]
"""Computes the loss of outputs and a target, without a gradient."""

Axis = Callable[[torch.Tensor], int]
"""Finds the axis of the samples in an output."""


@dataclass(frozen=True)
class ComputedMicroBatch:
    """A micro-batch with its loss."""

    result: Any  # what the network has returned, without gradients, as the loss takes it
    target: Any  # its target
    share: LossShare  # its loss, and how much it counts for


def is_compared(step: int) -> bool:
    """Return whether losses are compared in a step: 0, 1, 2, 4, 8 and so on."""
    return step & (step - 1) == 0


class LossComparison:
    """Compares micro-batches that succeed each other on one device."""

    def __init__(self, program: Program, samples: int, alone: bool) -> None:
        """Begin without a micro-batch; each will have this number of samples, and may be ``alone`` in its step."""
        self._program, self._samples, self._alone = program, samples, alone
        self._before: ComputedMicroBatch | None = None
        self._draws = False  # whether the loss draws random numbers, so that nothing can be compared

    def look(self, judge: Judge, outputs: Sequence[torch.Tensor], target: Any, share: LossShare) -> None:
        """Compare a micro-batch with the one before; with its own halves if it is alone in its step.

        Raise InputError if its loss keeps state, or is no mean.
        """
        if self._draws:
            return
        alone, named = self._alone, dict(zip(self._program.graph.outputs, map(torch.detach, outputs), strict=True))
        now = ComputedMicroBatch(self._program.unflatten(named), target, share)
        before, self._before = self._before, None if alone else now
        if before is None:
            self._draws = not _is_fixed(judge, now)
            self._check_returned(judge, named, target)
        if self._draws:
            self._before = None
        elif before is not None:
            self._compare_both(judge, before, now)
        elif alone and self._samples % 2 == 0:
            self._compare_halves(judge, now)

    def _check_returned(self, judge: Judge, outputs: Mapping[str, torch.Tensor], target: Any) -> None:
        """Raise InputError if the loss reads a number that the network returns and that is no mean."""
        for name, op in ReturnedLosses(self._program.graph).no_means.items():
            spoilt = {**outputs, name: torch.full_like(outputs[name], math.nan)}
            value = _judged(judge, self._program.unflatten(spoilt), target)
            if value is not None and value.loss.isnan():
                raise InputError(RETURNED.format(self._program.graph.name, op.name, op.kind))

    def _compare_both(self, judge: Judge, one: ComputedMicroBatch, other: ComputedMicroBatch) -> None:
        shares = (one.share, other.share)
        target = _joined(one.target, other.target, _first, shares)
        results = (
            _joined(one.result, other.result, axis, shares, keeps)
            for axis in (_first, self._axis(0), self._axis(1))
            for keeps in (False, True)
        )
        wholes = (share for result in results if (share := _judged(judge, result, target)) is not None)
        _check("two", wholes, shares, one)

    def _compare_halves(self, judge: Judge, whole: ComputedMicroBatch) -> None:
        halves = [
            _judged(judge, *(self._half(each, number) for each in (whole.result, whole.target))) for number in range(2)
        ]
        shares = [share for share in halves if share is not None]
        if len(shares) == len(halves):
            _check("the halves of", iter([whole.share]), shares, whole)

    def _axis(self, which: int) -> Axis:
        """Return what finds the first axis of a tensor that is as long as there are samples, or the second such one."""

        def axis(tensor: torch.Tensor) -> int:
            found = [number for number, size in enumerate(tensor.shape) if size == self._samples]
            return found[min(which, len(found) - 1)] if found else 0

        return axis

    def _half(self, tree: Any, number: int) -> Any:
        """Return one half of the samples of all tensors that have them first."""
        return pytree.tree_map_only(
            torch.Tensor,
            lambda x: x.chunk(2)[number] if x.ndim and len(x) and len(x) % self._samples == 0 else x,
            tree,
        )


def _check(which: str, wholes: Iterator[LossShare], parts: Sequence[LossShare], like: ComputedMicroBatch) -> None:
    """Raise InputError if none of the losses of a whole, as it may have been put together, is that of its parts.

    Parts with terms that count unlike numbers of targets are refused elsewhere, see `Weights.check_even`.
    """
    terms = [[mean.count.item() for mean in share.means] for share in parts]
    if not weights_of(parts) and terms[0] != terms[-1]:
        return
    expected, found = combined(parts), []
    for whole in wholes:
        if _close(whole.loss, expected, like):
            return
        found.append(whole.loss.item())
    if found:
        raise InputError(NO_MEAN.format(which, found[0], expected.item()))


def _first(_: torch.Tensor) -> int:
    """Return the axis of the samples in most tensors."""
    return 0


def _is_fixed(judge: Judge, computed: ComputedMicroBatch) -> bool:
    """Return whether a loss has the same value when it is called again; not if it draws random numbers.

    Raise InputError if it has another value without them.
    """
    result, target = computed.result, computed.target
    if _close(judge(result, target).loss, computed.share.loss, computed):
        return True
    seeded = []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            seeded.append(judge(result, target).loss)
    if _close(seeded[0], seeded[1], computed):
        return False
    raise InputError(STATE.format(computed.share.loss.item(), seeded[-1].item()))


def _judged(judge: Judge, result: Any, target: Any) -> LossShare | None:
    """Return the loss of another number of samples; None if it takes only those of a micro-batch."""
    try:
        return judge(result, target)
    except Exception:  # any error of the user's function: it says nothing about micro-batches, which it takes
        return None


def _joined(one: Any, other: Any, axis: Axis, shares: Sequence[LossShare], keeps: bool = False) -> Any:
    """Return two trees of tensors as one; numbers, such as the network's own losses, are combined as losses are.

    With ``keeps``, a tensor that is in both, such as a parameter that the network returns, stays as it is.
    """

    def join(x: Any, y: Any) -> Any:
        if not isinstance(x, torch.Tensor) or (keeps and x.data_ptr() == y.data_ptr()):
            return x
        if x.ndim:
            return torch.cat([x, y], axis(x))
        if not x.is_floating_point():
            return x
        return combined([replace(share, loss=loss) for share, loss in zip(shares, (x, y), strict=True)])

    leaves, spec = pytree.tree_flatten(one)
    return pytree.tree_unflatten(list(map(join, leaves, pytree.tree_leaves(other))), spec)


def _close(loss: torch.Tensor, expected: torch.Tensor, like: ComputedMicroBatch) -> bool:
    """Return whether two losses differ by rounding only, in the narrowest dtype that took part."""
    if not loss.isfinite():
        return True  # diverged: nothing can be said
    outputs = [x for x in pytree.tree_leaves(like.result) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    types = [loss.dtype, *(x.dtype for x in outputs)]
    if torch.is_autocast_enabled(loss.device.type):
        types.append(torch.get_autocast_dtype(loss.device.type))
    rounding = max(torch.finfo(dtype).eps for dtype in types)
    size = max(abs(loss.item()), abs(expected.item()), abs(like.share.loss.item()))
    terms = max((x.abs().max().item() for x in outputs if x.numel()), default=1.0)  # may cancel each other
    return abs(loss.item() - expected.item()) <= math.sqrt(rounding) * size + 4 * rounding * max(1.0, terms)
