"""Losses of micro-batches on the ranks of a hybrid training, where each counts as much as any other.

Gradients of replicas are averaged while they are computed, so that none can be given another weight afterwards: a mean
over unlike numbers of targets is refused, on all ranks at once.
"""

from typing import Any

import torch
import torch.distributed as dist

from graphs.common.errors import InputError
from graphs.program.program import Program
from planner.runtime.training.comparison import LossComparison, is_compared
from planner.runtime.training.means import UNEVEN, LossShare, MeanRecorder, Weights
from planner.runtime.training.step import Loss, checked_loss, judged


class MicroLosses:
    """The losses of one rank's micro-batches in a step."""

    def __init__(self, program: Program, loss: Loss, samples: int) -> None:
        """Begin without a step; a rank has this number of samples of each micro-batch."""
        self._program, self._loss, self._samples = program, loss, samples
        self._weights = Weights()
        self._shares: list[LossShare] = []
        self._comparison: LossComparison | None = None
        self._trouble = ""  # why the losses cannot be averaged

    def begin(self, step: int, own: int, of_all: int) -> None:
        """Begin a step with some micro-batches of this rank, of all that make up a gradient."""
        self._shares.clear()
        self._trouble = ""
        compares = of_all > 1 and is_compared(step)
        self._comparison = LossComparison(self._program, self._samples, own == 1) if compares else None

    def add(self, outputs: tuple[torch.Tensor, ...], target: Any, counting: MeanRecorder) -> torch.Tensor:
        """Return the loss of a micro-batch; raise InputError if it is none."""
        result = self._program.unflatten(dict(zip(self._program.graph.outputs, outputs, strict=True)))
        with counting:
            loss = checked_loss(self._loss(result, target))
        share = self._weights.share(counting.means_of(loss), loss)
        self._shares.append(share)
        if self._comparison is not None and not self._trouble:
            try:
                self._comparison.look(self._judge, outputs, target, share)
            except InputError as error:  # raised on all ranks, when all have ended the step
                self._trouble = str(error)
        return loss

    def mean(self, device: torch.device, n_last: int, n_batches: int, of_all: int) -> torch.Tensor:
        """Return the mean loss of all micro-batches on every rank; ``n_last`` ranks share the last stage.

        Raise InputError on all ranks if a loss is no mean, or their means count unlike numbers of targets.
        """
        counts = [[mean.count.item() for mean in share.means] for share in self._shares if of_all > 1]
        if any(row != counts[0] for row in counts):
            self._trouble = self._trouble or UNEVEN.format(", ".join(map(str, counts[:4])))
        mark = sum(number * count for number, count in enumerate(counts[0] if counts else (), 1))
        total = sum(share.loss.double().item() for share in self._shares)
        sums = torch.tensor([total, float(bool(self._trouble)), mark, mark * mark], dtype=torch.float64, device=device)
        dist.all_reduce(sums)
        loss, troubles, marks, squares = sums.tolist()
        if troubles:
            texts: list[str] = [""] * dist.get_world_size()
            dist.all_gather_object(texts, self._trouble)
            raise InputError(next(filter(None, texts)))
        if abs(marks * marks - n_last * squares) > 1e-9 * marks * marks:
            raise InputError(UNEVEN.format("replica by replica"))
        return torch.tensor(loss / (n_last * n_batches), dtype=torch.float64)

    def _judge(self, result: Any, target: Any) -> LossShare:
        """Compute the loss once more, without a gradient."""
        return judged(self._loss, self._weights, result, target)
