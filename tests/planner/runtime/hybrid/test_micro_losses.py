"""Losses of micro-batches of a hybrid training count alike, or are refused on all ranks."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # it is public
from torch.nn import functional as F  # noqa: N812  # its usual name

from graphs.common.errors import InputError
from planner.runtime.hybrid.micro_losses import MicroLosses
from planner.runtime.training.means import MeanRecorder
from planner.runtime.training.step import Loss
from tests.planner.runtime.training.nets import program_of


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def step(loss: Loss, targets: list[list[int]]) -> float:
    """The loss of micro-batches with these targets; the outputs of the network are given."""
    losses = MicroLosses(program_of("skips"), loss, 2)
    torch.manual_seed(0)
    losses.begin(0, len(targets), len(targets))
    for target in targets:
        losses.add((outputs(),), torch.tensor(target), MeanRecorder())
    return losses.mean(torch.device("cpu"), 1, len(targets), len(targets)).item()


def outputs() -> torch.Tensor:
    return torch.randn(2, 3, dtype=torch.float64, requires_grad=True)


def test_a_mean_over_as_many_targets_in_each() -> None:
    value = step(F.cross_entropy, [[0, 1], [2, 2]])
    torch.manual_seed(0)
    assert value == pytest.approx(F.cross_entropy(torch.cat([outputs(), outputs()]), torch.tensor([0, 1, 2, 2])).item())


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (F.cross_entropy, r"not as many in each micro-batch \(\[2\.0\], \[1\.0\]\)"),
        (lambda y, t: (y[:, 0] * (t >= 0)).sum() / (t >= 0).sum(), r"not as many in each .* \(\[2\.0\], \[1\.0\]\)"),
        (lambda y, _: y.square().sum(), "so it is no plain mean over samples"),
    ],
    ids=["cross-entropy", "over a mask", "a sum"],
)
def test_what_is_no_plain_mean_is_refused(loss: Loss, text: str) -> None:
    with pytest.raises(InputError, match=text):
        step(loss, [[0, 1], [2, -100]])
