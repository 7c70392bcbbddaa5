"""Means: how many targets the loss of a micro-batch is the mean of, so that all targets of a batch count alike.

A cross-entropy leaves out targets (``ignore_index``) or counts them for more (``weight``), and divides by the weights
of the targets that are left. So the mean of the micro-batches' losses is not that of the whole batch::

    8 targets, 8 counted: loss a        whole batch    (8 a + 2 b) / 10
    8 targets, 2 counted: loss b        plain mean     (a + b) / 2

Here the operators that do so are noted while the loss is computed. If one of them is the loss, the micro-batch counts
for as much as it has targets: gradients are added up with these weights, and divided by their sum in the end. If the
loss consists of several terms, one weight is not enough; then all micro-batches must count as many targets.
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

from graphs.errors import InputError

FUNCTIONS = frozenset(
    getattr(functional, name, functional.cross_entropy)
    for name in ("cross_entropy", "nll_loss", "linear_cross_entropy")
)
KINDS = frozenset(f"aten.{name}" for name in ("cross_entropy_loss", "nll_loss_nd", "nll_loss", "nll_loss2d"))
MEAN = ("mean", 1)
"""Names of the reduction, for functions and for operators."""

UNEVEN = (
    "a term of the loss is a mean over the targets that count, and these are not as many in each micro-batch ({}), so "
    "that the mean of their losses is not that of the batch; return the cross-entropy alone, or divide its sum "
    "(reduction='sum') by a number that is the same for all"
)


@dataclass(frozen=True)
class Mean:
    """A mean over targets."""

    count: torch.Tensor  # the sum of the weights of the targets, a float64 number on their device
    half: float | torch.Tensor  # about what the count would be if half of the targets were left out
    location: tuple[int, int]  # address of the result in memory, and how often that had been written to


class Counting(TorchFunctionMode):
    """Notes the means of cross-entropies that are computed inside, on this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[Mean] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch's, and note its mean, if it computes one."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        arguments = _arguments(func, args, kwargs)
        if arguments and arguments["reduction"] in MEAN and not arguments["target"].is_floating_point():
            self.means.append(_mean(arguments, result))
        return result


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


class Weights:
    """How much the micro-batches of a training count for, over all of its steps."""

    def __init__(self) -> None:
        self._unit: torch.Tensor | None = None  # of the first micro-batch, so that equal ones count for exactly 1
        self._row: list[float] | None = None  # how many targets the terms of a loss count, in all micro-batches

    def outcome(self, shares: Sequence[LossShare], beside: Sequence[Sequence[Mean]] = ()) -> Outcome:
        """Combine the micro-batches of a step, in their order; ``beside`` has the means of other stages, if any.

        Raise InputError if the mean of the losses is not that of the batch, and no weights make it so.
        """
        losses = torch.stack([share.loss for share in shares]) if len(shares) > 1 else shares[0].loss
        weights = [share.weight for share in shares if share.weight is not None]
        weighed = self._unit is not None and len(weights) == len(shares)
        others = beside or [()] * len(shares)
        self.check_even([(*row, *(() if weighed else share.means)) for row, share in zip(others, shares, strict=True)])
        if self._unit is None or not weighed:
            return Outcome(losses.mean(), len(shares))
        each, unit = torch.stack(weights), self._unit.item()
        if bool((each == each[0]).all()):
            loss = losses.mean()
        else:
            loss = (torch.where(each > 0, losses * each, 0.0).sum() / each.sum()).to(losses.dtype)
        return Outcome(loss, unit * each.sum().item(), unit)

    def share(self, means: Sequence[Mean], loss: torch.Tensor) -> LossShare:
        """Weigh a micro-batch; it counts as much as any other if the loss itself is no mean that was noted."""
        if len(means) != 1 or means[0].location != _location(loss):
            return LossShare(loss.detach(), tuple(means))
        count = means[0].count
        if self._unit is None:
            self._unit = count.where(count > means[0].half, means[0].half)  # a small unit would make others too large
        return LossShare(loss.detach(), tuple(means), count / self._unit)

    def check_even(self, rows: Sequence[Sequence[Mean]]) -> None:
        """Raise InputError if means beside the loss differ among micro-batches whose gradients are added up."""
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
        return Mean(counted.sum().double(), target.numel() / 2, _location(result))
    weight = weight.detach().double()
    count = weight[target.where(counted, 0)].where(counted, 0.0).sum()
    return Mean(count, target.numel() / 2 * weight.mean(), _location(result))


def _location(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version
