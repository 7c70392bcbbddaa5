"""The search for a configuration, beside every configuration there is."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, product
from math import inf

import pytest

from planner.parallelism.closed_form.bounds import must_be_even
from planner.parallelism.closed_form.config import (
    Demands,
    ParallelShape,
    StageDegrees,
    StageLayers,
    TrainingSetting,
    data_degrees,
    tensor_degrees,
)
from planner.parallelism.closed_form.layer_book import LayerBook
from planner.parallelism.closed_form.priced_stage import PricedStage
from planner.parallelism.closed_form.prices import ShapePrices, config_price
from planner.parallelism.closed_form.search import choose_config
from planner.parallelism.closed_form.shapes import shapes_of
from planner.parallelism.closed_form.transformer import Transformer
from planner.problem.result import Status
from tests.planner.parallelism.closed_form.settings import a100s, random_setting, random_unlike_setting

GPT22B = Transformer(48, 6144, 64)


def divisions(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to give each stage a layer or more."""
    if stages == 1:
        yield (layers,)
        return
    for first in range(1, layers - stages + 2):
        for rest in divisions(layers - first, stages - 1):
            yield (first, *rest)


def fastest_s(setting: TrainingSetting) -> float:
    """The shortest step of all shapes and degrees of stages, divisions of the layers and kinds of recomputation."""
    book, best_s = LayerBook(setting), inf
    each = [ShapePrices(book, shape) for shape in shapes_of(setting)]
    for prices in (*each, *unlike_stages(book)):
        for division in divisions(setting.network.layers, prices.shape.pipeline):
            if must_be_even(prices.shape) and len(set(division)) > 1:
                continue
            stages = [fastest_stage(prices.of(stage), layers) for stage, layers in enumerate(division)]
            if None not in stages:
                best_s = min(best_s, prices.price([stage for stage in stages if stage]).step_s)
    return best_s


def unlike_stages(book: LayerBook) -> Iterator[ShapePrices]:
    """Every pipeline whose stages have degrees of their own."""
    setting, total = book.setting, book.setting.n_devices
    for samples in data_degrees(setting.batch, setting.batch):
        known = [
            StageDegrees(data, tensor, zero)
            for tensor in tensor_degrees(setting.network, total)
            for data in data_degrees(samples, total // tensor)
            for zero in range(4 if data > 1 else 1)
        ]
        for number in range(2, min(setting.network.layers, total) + 1):
            shape = ParallelShape(1, 1, number, samples, setting.batch // samples)
            for degrees in product(known, repeat=number):
                if may_follow(degrees, setting):
                    yield ShapePrices(book, shape, degrees)


def may_follow(degrees: Sequence[StageDegrees], setting: TrainingSetting) -> bool:
    """Whether stages on devices that follow each other are within hosts, or begin with one."""
    host = setting.fabric.host_devices
    *firsts, end = accumulate((own.devices for own in degrees), initial=0)
    several = len(setting.fabric.devices) > host
    within = [at % host == 0 or at % host + own.devices <= host for at, own in zip(firsts, degrees, strict=True)]
    return end <= setting.n_devices and (end > host or not several) and all(within)


def fastest_stage(stage: PricedStage, layers: int) -> StageLayers | None:
    """Of all kinds of recomputation of so many layers that fit, the fastest."""
    kinds = (
        StageLayers(layers - selective - full, selective, full)
        for selective in range(layers + 1)
        for full in range(layers + 1 - selective)
    )
    fitting = [kind for kind in kinds if stage.bytes_of(kind) <= stage.limit]
    return min(fitting, key=stage.pass_s, default=None)


@pytest.mark.parametrize("seed", range(1, 13))
def test_nothing_is_faster_than_what_it_finds_nor_than_its_bound(seed: int) -> None:
    setting = random_setting(seed)
    found, best_s = choose_config(setting), fastest_s(setting)
    if best_s == inf:
        assert (found.status, found.rows) == (Status.INFEASIBLE, ())
        return
    assert found.rows[0].price.step_s == pytest.approx(best_s)
    assert found.bound_s <= best_s * (1 + 1e-9)
    assert found.bound_s >= best_s * 0.99


@pytest.mark.parametrize(
    ("seed", "differ"), [(1, False), (3, False), (6, True), (7, True), (12, True), (14, True), (16, True), (20, False)]
)
def test_nothing_is_faster_where_the_best_stages_differ_in_degrees(seed: int, differ: bool) -> None:
    setting = random_unlike_setting(seed)
    found, best_s = choose_config(setting), fastest_s(setting)
    assert found.rows[0].price.step_s == pytest.approx(best_s)
    assert found.rows[0].price == config_price(setting, found.rows[0].config)
    assert best_s * 0.99 <= found.bound_s <= best_s * (1 + 1e-9)
    assert bool(found.rows[0].config.degrees) == differ


def test_samples_of_seven_tokens_leave_no_time_for_stages_of_one_layer() -> None:
    """The words' scores take longer than all layers, so some shapes are too slow however their layers are divided."""
    found = choose_config(TrainingSetting(Transformer(12, 768, 12, 7), a100s(8), 64))
    assert found.status is Status.OPTIMAL


def test_no_row_dominates_another_and_each_costs_what_it_says() -> None:
    setting = TrainingSetting(GPT22B, a100s(16), 64)
    found = choose_config(setting)
    rows = [(row.price.step_s, row.price.peak_bytes, row.config.devices) for row in found.rows]
    assert found.status is Status.OPTIMAL
    assert not [1 for a in rows for b in rows if a != b and all(x <= y for x, y in zip(a, b, strict=True))]
    for row in found.rows:
        price = config_price(setting, row.config)
        assert (price.step_s, price.peak_bytes) == pytest.approx((row.price.step_s, row.price.peak_bytes))
        assert price.peak_bytes <= 80e9
        assert sum(stage.total for stage in row.config.stages) == 48


def test_demands_are_kept() -> None:
    demands = Demands(8, tensor=4, pipeline=2, data=1, samples=2, zero=0, schedule="1f1b", recompute="full")
    found = choose_config(TrainingSetting(GPT22B, a100s(16), 64, demands=demands))
    (row,) = found.rows
    assert row.config.shape[:7] == (1, 4, 2, 2, 32, 0, "1f1b")
    assert row.config.recompute == "full"


def test_a_slow_host_gets_fewer_layers() -> None:
    fast = a100s(4, 2)
    slow = replace(fast.devices[0], kind="half", flops_per_s={"bfloat16": 156e12}, memory_bytes_per_s=1e12)
    fabric = replace(fast, devices=(*fast.devices[:2], slow, slow))
    demands = Demands(data=1, tensor=2, pipeline=2, schedule="1f1b")
    found = choose_config(TrainingSetting(Transformer(12, 4096, 32), fabric, 64, demands=demands))
    first, second = found.rows[0].config.stages
    assert first.total in (8, 9)
    assert first.total + second.total == 12


def test_tensor_parallelism_stays_within_hosts() -> None:
    found = choose_config(TrainingSetting(Transformer(48, 12288, 96), a100s(64, 4), 64))
    assert found.rows[0].config.shape.tensor <= 4


def test_what_fits_nowhere_says_the_least_that_is_needed() -> None:
    found = choose_config(TrainingSetting(GPT22B, a100s(1), 4))
    assert (found.status, found.rows) == (Status.INFEASIBLE, ())
    assert found.least_need is not None
    assert found.least_need.n_bytes > found.least_need.usable_bytes == 80e9


def test_a_fast_and_a_slow_host_divide_their_stages_in_their_own_ways() -> None:
    """Six devices and 32 samples: no equal degrees use them all, stages with their own do."""
    fast = a100s(4, 2)
    slow = replace(fast.devices[0], kind="half", flops_per_s={"bfloat16": 156e12}, memory_bytes_per_s=1e12)
    fabric = replace(fast, devices=(*fast.devices[:2], *(slow,) * 4))
    setting = TrainingSetting(Transformer(12, 4096, 32), fabric, 32)
    found, alike = choose_config(setting), choose_config(replace(setting, demands=Demands(samples=1)))
    config = found.rows[0].config
    assert found.status is Status.OPTIMAL
    assert [own.devices for own in config.degrees] == [2, 4]
    assert config.devices == 6
    assert found.rows[0].price.step_s < 0.98 * alike.rows[0].price.step_s
    assert found.rows[0].price == config_price(setting, config)
