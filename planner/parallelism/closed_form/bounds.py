"""Lower bounds for a shape, whatever layers its stages have: seconds of a step and of gradients, bytes of a device."""

from heapq import heapify, heappop, heappush

from planner.parallelism.closed_form.config import EVEN_SCHEDULES, ParallelShape
from planner.parallelism.closed_form.layer_book import ExpertGroup, LayerBook
from planner.parallelism.closed_form.memory import zero_states
from planner.parallelism.closed_form.prices import ShapePrices


def quick_bound_s(book: LayerBook, shape: ParallelShape) -> float:
    """Return a lower bound of a step: the mean number of layers a stage on the fastest device, for every micro-batch.

    The slowest stage takes at least that long, and a step takes at least all micro-batches of the slowest stage. This
    holds for zero-bubble scheduling too, because weight gradients are at most a third of a stage.
    """
    experts = ExpertGroup(shape.expert, shape.stride)
    layer_s = book.fastest(shape.tensor, shape.samples, experts).total_s[book.mode]
    return shape.micro_batches * book.setting.network.layers * layer_s / shape.pipeline


def least_states(book: LayerBook, shape: ParallelShape) -> float:
    """Return a lower bound of the bytes of the fullest device: the states of the mean stage's matrices."""
    network = book.setting.network
    parameters = network.layers * network.product_parameters / (shape.pipeline * shape.tensor)
    experts = network.layers * network.expert_parameters / (shape.pipeline * shape.tensor * shape.expert)
    sizes = (book.setting.state_bytes, book.setting.gradient_bytes)
    own = zero_states(experts, shape.data // shape.expert, shape.zero, *sizes) if experts else 0.0
    return zero_states(parameters, shape.data, shape.zero, *sizes) + own


def streaming_bound_s(prices: ShapePrices) -> float:
    """Return a lower bound of streaming, in seconds: all work, recomputed least, divided equally, or the last stage."""
    network, shape, mode = prices.book.setting.network, prices.shape, prices.book.mode
    if prices.book.alike:
        layer_s, last_s = prices.of(0).layer.total_s[mode], prices.of(shape.pipeline - 1).end_s
        work_s = network.layers * layer_s + (shape.pipeline - 1) * prices.of(0).message_s + last_s
        longest_s = max(work_s / shape.pipeline, last_s + layer_s)
    else:
        layers_s = [stage.layer.total_s[mode] for stage in prices.each]
        work_s = network.layers * min(layers_s)
        longest_s = network.layers / sum(1 / layer_s for layer_s in layers_s)
    return (shape.micro_batches - prices.fill) * longest_s + prices.fill * work_s - prices.shift_s


def least_sync_s(prices: ShapePrices) -> float:
    """Return a lower bound of gradients and optimizer of the slowest stage, however the layers are divided.

    Layers are given out one at a time, each to the stage that is fastest with one more.
    """
    shape, layers = prices.shape, prices.book.setting.network.layers
    if must_be_even(shape):
        return max(stage.sync_s(layers // shape.pipeline) for stage in prices.each)
    queue = [(stage.sync_s(1), stage.number, 1) for stage in prices.each]
    least_s = max(queue)[0]
    queue = [(stage.sync_s(2), stage.number, 2) for stage in prices.each]
    heapify(queue)
    for _ in range(layers - shape.pipeline):
        sync_s, stage, count = heappop(queue)
        least_s = max(least_s, sync_s)
        heappush(queue, (prices.of(stage).sync_s(count + 1), stage, count + 1))
    return least_s


def must_be_even(shape: ParallelShape) -> bool:
    """Return whether all stages must have the same number of layers."""
    return shape.schedule in EVEN_SCHEDULES or shape.pipeline == 1


def sync_bound_s(prices: ShapePrices) -> float:
    """Return a lower bound of gradients and optimizer: some stage has at least the mean number of layers."""
    layers = -(-prices.book.setting.network.layers // prices.shape.pipeline)
    stages = different_stages(prices.shape.pipeline) if prices.book.alike else range(prices.shape.pipeline)
    return min(prices.of(stage).sync_s(layers) for stage in stages)


def different_stages(pipeline: int) -> set[int]:
    """Return the first stage, the last one, and the stage between them that holds the least."""
    return {0, max(0, pipeline - 2), pipeline - 1}
