"""The memory of the configuration that needs the least of it, and the options that would make one fit."""

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
    """Memory of the device that lacks the most: bytes that a configuration needs, and bytes that a plan may use."""

    n_bytes: float
    usable_bytes: float

    @property
    def lacking_bytes(self) -> float:
        """Bytes that are missing; negative if there is room."""
        return self.n_bytes - self.usable_bytes


def need_of(prices: ShapePrices) -> Need:
    """Return the need of a shape with its layers divided equally, recomputed in full or in the mode asked for."""
    setting, pipeline = prices.book.setting, prices.shape.pipeline
    mode: RecomputeMode = setting.demands.recompute or "full"
    layers = StageLayers.of(-(-setting.network.layers // pipeline), mode)
    numbers = different_stages(pipeline) if prices.book.alike and not prices.degrees else range(pipeline)
    stages = [prices.of(number) for number in sorted(numbers)]
    return max((Need(stage.bytes_of(layers), stage.limit) for stage in stages), key=lambda need: need.lacking_bytes)


def least_need(setting: TrainingSetting, deadline: Deadline) -> Need | None:
    """Return the need of the shape that lacks the least, or of the first that fits; None if time allowed no shape."""
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
    """Yield the options of ``planner choose`` that each alone make some shape fit the memory."""
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
