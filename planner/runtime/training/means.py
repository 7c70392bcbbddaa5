"""Means: how many targets the loss of a micro-batch is the mean of, so that all targets of a batch count alike.

A cross-entropy leaves out targets (``ignore_index``) or counts them for more (``weight``), and divides by the weights
of the targets that are left. So the mean of the micro-batches' losses is not that of the whole batch::

    8 targets, 8 counted: loss a        whole batch    (8 a + 2 b) / 10
    8 targets, 2 counted: loss b        plain mean     (a + b) / 2

Here the operators that do so are noted while the loss is computed. If one of them is the loss, the micro-batch counts
for as much as it has targets: gradients are added up with these weights, and divided by their sum in the end. If the
loss consists of several terms, one weight is not enough; then all micro-batches must count as many targets.

A mean over a mask that is written by hand, ``(losses * mask).sum() / mask.sum()``, is noted by its last operator: a
quotient of two numbers counts for as much as its denominator. Whether that holds is tried, as it is of every loss, see
`planner.runtime.training.comparison`.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.nn import functional
from torch.nn._reduction import legacy_get_string
from torch.overrides import TorchFunctionMode

from graphs.common.errors import InputError
from graphs.ir import Graph, Op
from graphs.operator_kinds import aten_kinds

FUNCTIONS = frozenset(
    getattr(functional, name, functional.cross_entropy)
    for name in ("cross_entropy", "nll_loss", "linear_cross_entropy")
)
KINDS = aten_kinds("cross_entropy_loss nll_loss_nd nll_loss nll_loss2d")
_aten, _own = torch.ops.aten, torch.Tensor
QUOTIENTS: frozenset[Any] = frozenset(
    (torch.div, torch.divide, torch.true_divide, _own.div, _own.divide, _own.true_divide, _own.__truediv__)
) | {_aten.div.Tensor}
CLAMPS: frozenset[Any] = frozenset(
    (torch.clamp, torch.clamp_min, torch.clip, _own.clamp, _own.clamp_min, _own.clip)
) | {_aten.clamp.default, _aten.clamp_min.default}
MEAN = ("mean", 1)
"""Names of the reduction, for functions and for operators."""

UNEVEN = (
    "a term of the loss is a mean over the targets that count, and these are not as many in each micro-batch ({}), so "
    "that the mean of their losses is not that of the batch; return the cross-entropy alone, or the sum of all terms "
    "divided by the number of targets as a tensor, or plan with one micro-batch"
)


@dataclass(frozen=True)
class Mean:
    """A mean over targets."""

    count: torch.Tensor  # the sum of the weights of the targets, a float64 number on their device
    half: float | torch.Tensor  # about what the count would be if half of the targets were left out
    result: torch.Tensor  # kept, so that no other tensor takes its place in memory
    written: int  # how often the result had been written to

    def is_in(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is the mean itself."""
        return (self.result.data_ptr(), self.written) == (tensor.data_ptr(), tensor._version)


class MeanRecorder(TorchFunctionMode):
    """Notes the means of cross-entropies that are computed inside, on this thread, and the quotients of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[Mean] = []
        self._quotients: list[Mean] = []
        self._clamped: list[tuple[torch.Tensor, torch.Tensor]] = []  # numbers, and what they were before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch's, and note its mean, if it computes one."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        arguments = _arguments(func, args, kwargs)
        if arguments and arguments["reduction"] in MEAN and not arguments["target"].is_floating_point():
            self.means.append(_mean(arguments, result))
        elif func in CLAMPS and _is_number(result):
            self._clamped.append((result, args[0]))
        elif func in QUOTIENTS and len(args) == 2 and all(map(_is_number, (*args, result))):
            learned = args[1].requires_grad  # which no number of targets is
            self._quotients.extend(() if learned else (self._quotient(args[1], result),))
        return result

    def means_of(self, loss: torch.Tensor) -> list[Mean]:
        """Return the means on the way to a loss; a quotient, where it is the loss and no cross-entropy was computed."""
        return self.means or [quotient for quotient in self._quotients if quotient.is_in(loss)]

    def _quotient(self, denominator: torch.Tensor, result: torch.Tensor) -> Mean:
        """Note a mean that divides by how much counts, or by 1 if nothing does."""
        count = next((before for after, before in self._clamped if after is denominator), denominator)
        size = denominator.detach().double().abs() / 2
        return Mean(count.detach().double().abs(), size.where(size > 0, 1.0), result.detach(), result._version)


@dataclass(frozen=True)
class LossShare:
    """The part of a micro-batch in the loss of its step."""

    loss: torch.Tensor  # the loss of the micro-batch
    means: tuple[Mean, ...] = ()  # that were computed on the way to it
    weight: torch.Tensor | None = None  # how much the micro-batch counts for; None for as much as any other


@dataclass(frozen=True)
class Outcome:
    """The loss of all micro-batches of a step."""

    loss: torch.Tensor  # the mean over all that counts
    total: float  # how much counts: targets, or micro-batches if these count alike
    unit: float = 1.0  # the weight with which a gradient counts once

    def factor(self, n_batches: int) -> float:
        """Return the factor for gradients that were added up, each as one of ``n_batches`` micro-batches."""
        return self.unit * n_batches / self.total if self.total > 0 else 1.0


def weights_of(shares: Sequence[LossShare]) -> list[torch.Tensor]:
    """Return how much each micro-batch counts for; nothing if they count alike."""
    weights = [share.weight for share in shares if share.weight is not None]
    return weights if len(weights) == len(shares) else []


def combined(shares: Sequence[LossShare]) -> torch.Tensor:
    """Return the mean of the losses over all that counts."""
    losses = torch.stack([share.loss for share in shares]) if len(shares) > 1 else shares[0].loss
    each = torch.stack(weights_of(shares) or [torch.ones(())])
    if bool((each == each[0]).all()):
        return losses.mean()
    return (torch.where(each > 0, losses * each, 0.0).sum() / each.sum()).to(losses.dtype)


class Weights:
    """How much the micro-batches of a training count for, over all of its steps."""

    def __init__(self) -> None:
        self._unit: torch.Tensor | None = None  # of the first micro-batch, so that equal ones count for exactly 1
        self._row: list[float] | None = None  # how many targets the terms of a loss count, in all micro-batches

    def outcome(self, shares: Sequence[LossShare], beside: Sequence[Sequence[Mean]] = ()) -> Outcome:
        """Combine the micro-batches of a step, in their order; `beside` has the means of other stages, if any.

        Raise InputError if the mean of the losses is not that of the batch, and no weights make it so.
        """
        weights = weights_of(shares)
        others = beside or [()] * len(shares)
        self.check_even([(*row, *(() if weights else share.means)) for row, share in zip(others, shares, strict=True)])
        loss = combined(shares)
        if self._unit is None or not weights:
            return Outcome(loss, len(shares))
        unit = self._unit.item()
        return Outcome(loss, unit * torch.stack(weights).sum().item(), unit)

    def share(self, means: Sequence[Mean], loss: torch.Tensor) -> LossShare:
        """Weigh a micro-batch; it counts as much as any other if the loss itself is no mean that was noted."""
        if len(means) != 1 or not means[0].is_in(loss):
            return LossShare(loss.detach(), tuple(means))
        count = means[0].count
        if self._unit is None:
            self._unit = count.where(count > means[0].half, means[0].half)  # a small unit would make others too large
        return LossShare(loss.detach(), tuple(means), count / self._unit)

    def check_even(self, rows: Sequence[Sequence[Mean]]) -> None:
        """Raise InputError if means other than the loss differ among micro-batches whose gradients are added up."""
        if not any(rows):
            return
        counts = [[mean.count.item() for mean in row] for row in rows]
        if any(row != (self._row or counts[0]) for row in counts):
            raise InputError(UNEVEN.format(", ".join(map(str, counts[:4]))))
        self._row = counts[0]

    def fresh(self) -> None:
        """Forget the steps so far: their gradients are used, or gone."""
        self._row = None

    @property
    def mark(self) -> float:
        """A number that is the same for micro-batches whose means count as many targets."""
        return sum(number * count for number, count in enumerate(self._row or (), 1))


def averages(graph: Graph, op: Op) -> bool:
    """Return whether an operator may compute a mean that leaves out targets."""
    is_quotient = op.kind == "aten.div.Tensor" and not graph.tensor[op.outputs[0]].shape
    return is_quotient or op.kind.rpartition(".")[0] in KINDS


def _arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a cross-entropy by name; nothing for another function."""
    if isinstance(func, OpOverload):
        if func._schema.name.replace("::", ".") not in KINDS:
            return {}
        arguments = func._schema.arguments
        defaults = {argument.name: argument.default_value for argument in arguments}
        return defaults | dict(zip(defaults, args, strict=False)) | dict(kwargs)
    if func not in FUNCTIONS:
        return {}
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    old = (bound.arguments.get("size_average"), bound.arguments.get("reduce"))
    return bound.arguments | ({} if old == (None, None) else {"reduction": legacy_get_string(*old, emit_warning=False)})


def _mean(arguments: Mapping[str, Any], result: torch.Tensor) -> Mean:
    """Add up the weights of the targets that are not left out."""
    target: torch.Tensor = arguments["target"]
    weight: torch.Tensor | None = arguments["weight"]
    ignored = arguments["ignore_index"]
    counted = torch.ones_like(target, dtype=torch.bool) if ignored is None else target != ignored
    if weight is None:
        return Mean(counted.sum().double(), target.numel() / 2, result.detach(), result._version)
    weight = weight.detach().double()
    count = weight[target.where(counted, 0)].where(counted, 0.0).sum()
    return Mean(count, target.numel() / 2 * weight.mean(), result.detach(), result._version)


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0
