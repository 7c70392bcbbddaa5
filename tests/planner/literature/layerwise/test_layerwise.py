"""Layer-wise plans: prices by hand, plans as JSON, and what is said of bad input."""

from typing import Any

import pytest

from graphs.common.errors import InputError
from planner.literature.layerwise.plan import LayerwisePlan, layerwise_plan, price_of
from planner.literature.layerwise.prices import StagePrices, step_ms
from planner.literature.layerwise.setting import LayerStrategy, layerwise_setting
from tests.planner.literature.layerwise.settings import small

REPLICAS = LayerStrategy(1, 1)
TENSOR = LayerStrategy(2, 1)
SEQUENCE = LayerStrategy(1, 2)


def prices(stages: int = 1, **fields: Any) -> StagePrices:
    return StagePrices(layerwise_setting(small(**fields)), stages)


class TestTimes:
    def test_replicas_overlap_gradients_with_the_backward_pass(self) -> None:
        """1 sample each: 10 + 20 ms; gradients 1/2 · 100 MB / 10 = 5 ms."""
        time = prices().layer(REPLICAS)
        assert time == pytest.approx((30.0, 10 + 20 + 0.25 * 5))

    def test_zero_3_gathers_parameters_too(self) -> None:
        assert prices().layer(REPLICAS._replace(zero=3)).plain_ms == pytest.approx(30 + 2.5)

    def test_tensor_parallelism(self) -> None:
        """2 samples shared by 2: 10 + 20 ms; six all-gathers of 2 MB, each half of 2 ms; no replicas, no gradients."""
        assert prices().layer(TENSOR) == pytest.approx((36.0, 36.0))

    def test_recomputation_repeats_the_forward_pass_and_its_messages(self) -> None:
        """10 + 30 ms; 1.5 times four all-to-alls of 2 MB, of 1 ms each."""
        assert prices().layer(SEQUENCE._replace(recompute=True)).plain_ms == pytest.approx(40 + 6.0)

    def test_stages_send_activations(self) -> None:
        """2 samples on one GPU: 20 + 40 ms; 2 · 2 stages · 2 MB / (2 MB/ms) / 2 layers."""
        assert prices(2).layer(REPLICAS).plain_ms == pytest.approx(60 + 2.0)

    def test_embedding_and_head(self) -> None:
        """4 + 8 ms; under ZeRO 3, 1/2 · 400/8 MB / 10 / 2 = 1.25 ms to gather, hidden up to 1.25 / 1.25 ms, twice."""
        assert prices().outer_ms(REPLICAS) == pytest.approx((12.0,))
        assert prices().outer_ms(REPLICAS._replace(zero=3)) == pytest.approx((12 + 2 * (1.25 - 1.0),))
        assert prices().outer_ms(TENSOR) == pytest.approx((12 + 2.0,))  # two all-gathers of 2 MB
        assert prices(2).outer_ms(REPLICAS) == pytest.approx((12.0, 12.0))  # 2 samples, half on each stage

    def test_a_step(self) -> None:
        assert step_ms([10.0], [12.0], 4) == pytest.approx(40 + 2)  # the last gradients are late by 2
        assert step_ms([10.0, 20.0], [0.0, 0.0], 4) == pytest.approx(10 + 4 * 20)
        assert step_ms([20.0, 10.0], [0.0, 0.0], 4) == pytest.approx(20 + 3 * 20)


class TestMemory:
    def test_a_layer(self) -> None:
        """4 · 100 MB of states, 5/4 · (7/8 · 0.503 + 1/8) of them under ZeRO 2; samples of 200 MB."""
        assert prices().layer_mb(REPLICAS, 0) == 483  # 282.6 + 200
        assert prices().layer_mb(REPLICAS._replace(zero=3), 0) == 452  # 5/4 · 0.503 · 400 + 200
        assert prices().layer_mb(TENSOR, 0) == 200 + 2 * 100
        assert prices().layer_mb(TENSOR._replace(recompute=True), 0) == 200 + 2 * 5
        assert prices(2).layer_mb(REPLICAS, 0) == 400 + 2 * 200 * 2  # two micro-batches in flight

    def test_a_plan(self) -> None:
        price = price_of(layerwise_setting(small()), LayerwisePlan(1, TENSOR, (TENSOR, TENSOR)))
        buffer_mb = 2  # 2 samples of a micro-batch, 1 MB each
        assert price.memory_mb == (100 + 200 + 2 * 20 + 2 * 400 + buffer_mb,)
        assert price.limit_mb == 8000
        assert price.feasible
        assert price.step_ms == pytest.approx(2 * (14 + 2 * 36))


def test_a_plan_as_json() -> None:
    plan = LayerwisePlan(1, TENSOR, (REPLICAS, REPLICAS, SEQUENCE._replace(recompute=True)))
    document = plan.to_dict()
    assert document["layers"][0] == {"count": 2, "tp": 1, "sp": 1, "zero": 2, "recompute": False}
    assert layerwise_plan(document) == plan


class TestBadInput:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"batch": 1}, "batch is 1 and chunks is 2; give each micro-batch a sample at least"),
            ({"chunks": 0}, "the file has chunks = 0; it must be a whole number of 1 or more"),
            ({"model": {"layers": 2, "hidden": 1}}, "model of the file has no sequence; add it, a whole number"),
            (
                {"p2p_MB_per_ms": {"two": 1}},
                "p2p_MB_per_ms of the file has the key 'two'; it must be a number of ranks",
            ),
            ({"p2p_MB_per_ms": {"2": 0}}, "p2p_MB_per_ms of the file has 2 = 0; it must be a number above 0"),
        ],
    )
    def test_a_setting(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError) as error:
            layerwise_setting(small(**fields))
        assert str(error.value).startswith(message)

    def test_a_table_without_a_number_of_ranks(self) -> None:
        with pytest.raises(InputError, match="p2p_MB_per_ms has no value for 2 ranks; add it"):
            prices(2, p2p_MB_per_ms={}).layer(REPLICAS)

    @pytest.mark.parametrize(
        ("plan", "message"),
        [
            (LayerwisePlan(1, TENSOR, (TENSOR,)), "the plan has 1 layers, the model has 2; give each a strategy"),
            (
                LayerwisePlan(4, TENSOR, (TENSOR,) * 2),
                "the plan has 4 stages for 2 layers and 2 micro-batches; take fewer",
            ),
            (
                LayerwisePlan(2, TENSOR, (TENSOR,) * 2),
                "tensor 2 × sequence 1 on 2 stages does not fit 2 GPUs and 2 samples",
            ),
        ],
    )
    def test_a_plan_that_does_not_fit(self, plan: LayerwisePlan, message: str) -> None:
        with pytest.raises(InputError) as error:
            price_of(layerwise_setting(small()), plan)
        assert str(error.value).startswith(message)

    def test_a_stage_of_zero_that_does_not_exist(self) -> None:
        document = LayerwisePlan(1, TENSOR, (TENSOR,)).to_dict()
        document["embedding"]["zero"] = 1
        with pytest.raises(InputError, match="embedding of the plan has zero = 1; it must be 2 or 3"):
            layerwise_plan(document)
