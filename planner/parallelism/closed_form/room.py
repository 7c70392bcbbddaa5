"""What the way to train that needs the least memory takes of a device, and what else would make one fit."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from costmodels.workload import RecomputeMode
from planner.parallelism.closed_form.bounds import different_stages
from planner.parallelism.closed_form.config import StageLayers, TrainingSetting
from planner.parallelism.closed_form.layer_book import LayerBook
from planner.parallelism.closed_form.memory import GRADIENT
from planner.parallelism.closed_form.prices import ShapePrices
from planner.parallelism.closed_form.shapes import shapes_of
from planner.problem.deadline import Deadline

MOST_S = 5.0  # for each change that is tried


class Need(NamedTuple):
    """What a way takes of the device that lacks the most, and what a plan may use of it."""

    n_bytes: float
    usable_bytes: float

    @property
    def lacking_bytes(self) -> float:
        """What is missing; negative if there is room."""
        return self.n_bytes - self.usable_bytes


def need_of(prices: ShapePrices) -> Need:
    """What a shape takes with its layers divided equally, and everything recomputed unless something else is asked."""
    setting, pipeline = prices.book.setting, prices.shape.pipeline
    mode: RecomputeMode = setting.demands.recompute or "full"
    layers = StageLayers.of(-(-setting.network.layers // pipeline), mode)
    numbers = different_stages(pipeline) if prices.book.alike and not prices.degrees else range(pipeline)
    stages = [prices.of(number) for number in sorted(numbers)]
    return max((Need(stage.bytes_of(layers), stage.limit) for stage in stages), key=lambda need: need.lacking_bytes)


def least_need(setting: TrainingSetting, deadline: Deadline) -> Need | None:
    """What the way takes that lacks the least, or the first that lacks nothing; None if there was no time for any."""
    book, least = LayerBook(setting), None
    for shape in shapes_of(setting):
        if deadline.over:
            break
        need = need_of(ShapePrices(book, shape))
        if least is None or need.lacking_bytes < least.lacking_bytes:
            least = need
        if least.lacking_bytes <= 0:
            break
    return least


def what_fits(setting: TrainingSetting) -> Iterator[str]:
    """Options of ``planner choose`` of which each alone leaves room for a way."""
    changes = {
        "--gradients bfloat16": replace(setting, gradient_bytes=GRADIENT),
        "--flash-attention": replace(setting, network=replace(setting.network, flash=True)),
        "--optimizer sgd": replace(setting, optimizer="sgd"),
    }
    for option, changed in changes.items():
        if changed != setting:
            need = least_need(changed, Deadline(MOST_S))
            if need is not None and need.lacking_bytes <= 0:
                yield option
