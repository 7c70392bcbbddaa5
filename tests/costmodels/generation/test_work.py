"""Work of a pass, by hand: bytes over bandwidth, FLOP over peaks, messages, and which experts a batch reads."""

import pytest

from costmodels.generation.memory import compute_bytes
from costmodels.generation.rates import engines, families, prices_of, rates_of
from costmodels.generation.serving import Requests, Served, steady_state
from costmodels.generation.stages import prompt_seconds
from costmodels.generation.work import LayerShare, Machine, Tokens, imbalance, layer_work, pass_demand, works_of
from tests.planner.generation import small

MACHINE = Machine(1e12, {"float32": 1e13, "float16": 1e14}, link_bytes_per_s=1e11, host_devices=8)


def test_a_dense_layer_reads_its_weights_and_its_cache() -> None:
    work = layer_work(small.layer(1024, 2048), 1024)
    elements = 1024 * 1024 * 2 + 2 * 512 * 1024 + 3 * 1024 * 2048
    demand = pass_demand(work, MACHINE, LayerShare(), Tokens.decode(3, 100), 2.0)
    assert demand["weights"] == pytest.approx(2 * elements / 1e12)
    assert demand["rows 16 bits"] == pytest.approx(3 * 2 * elements / 1e14)
    assert demand["cache"] == pytest.approx(3 * 100 * 2 * 2 * 256 * 2.0 / 1e12)  # 2 heads, keys and values of 256
    assert demand["attention"] == pytest.approx(3 * 2 * 4 * 512 * 100 / 1e14)
    assert demand["layers"] == 1
    assert "reduces" not in demand


def test_devices_that_share_a_layer_add_up_twice() -> None:
    work = layer_work(small.layer(1024, 2048), 1024)
    whole = pass_demand(work, MACHINE, LayerShare(), Tokens.decode(3, 100), 2.0)
    part = pass_demand(work, MACHINE, LayerShare(2), Tokens.decode(3, 100), 2.0)
    assert part["weights"] == pytest.approx(whole["weights"] / 2)
    assert part["reduces"] == 2
    assert part["reduced"] == pytest.approx(2 * 2 * 1 / 2 * 3 * 1024 * 2 / 1e11)


def test_a_batch_reads_the_experts_that_it_is_expected_to_take() -> None:
    work = layer_work(small.layer(1024, 512, experts=8), 1024)
    each = 3 * 1024 * 512 * 2
    one, many = (pass_demand(work, MACHINE, LayerShare(), Tokens.decode(n, 1), 2.0) for n in (1, 3))
    assert one["experts"] == pytest.approx(2 * each / 1e12)
    assert many["experts"] == pytest.approx(8 * (1 - (6 / 8) ** 3) * each / 1e12)
    away = pass_demand(work, MACHINE, LayerShare(), Tokens.decode(1, 1), 2.0, away=True)
    assert "experts" not in away


def test_the_fullest_of_equal_parts_has_more_than_the_mean() -> None:
    assert imbalance(1, 100) == 1
    assert imbalance(8, 1e9) == pytest.approx(1, abs=1e-3)
    assert 1 < imbalance(8, 800) < imbalance(8, 80) <= 8


def test_chunks_of_a_prompt_follow_each_other_through_stages() -> None:
    """Three chunks, stages of 2 and 3 s: the second one is never idle once it has begun, so 2 + 3 · 3 s."""
    assert prompt_seconds([[2.0, 3.0]] * 3, overlaps=True) == 11.0
    assert prompt_seconds([[2.0, 3.0]] * 3, overlaps=False) == 15.0


def test_scores_take_memory_where_attention_keeps_them() -> None:
    model = small.model(*[small.layer(1024, 2048)] * 2)
    assert compute_bytes(model, 512) == 512 * 4 * (4 * 2048 + 8000)
    assert compute_bytes(model, 512, 1000) - compute_bytes(model, 512) == 512 * 4 * 4 * 1000


def test_every_rate_has_a_meaning() -> None:
    for family in families():
        assert family.source
        assert all(figure > 0 or key == "unpacking" for key, figure in family.figures.items())
        for key in ("weights", "experts", "cache"):
            assert 0 < family.figures[key] <= 1, (family.name, key)
    for engine in engines().values():
        low, high = engine.decode_range
        assert low < 1 < high
        for family in families():
            if engine.name in family.engines:
                assert all(price >= 0 for price in prices_of(engine, family).values())


def test_a_device_that_nobody_measured_is_estimated() -> None:
    assert rates_of("llama-cpp", small.device("a", 100, "RTX-3090")).origin == "fitted"
    assert rates_of("llama-cpp", small.device("a", 100, "my card")).origin == "estimated"
    assert rates_of("vllm", small.device("a", 100, "L4")).origin == "estimated"
    assert rates_of("llama-cpp", small.device("a", 100, "cpu")).family.name == "processors"


def test_a_steady_state_carries_the_prompts_of_other_requests() -> None:
    model = small.model(*[small.layer(1024, 2048)] * 4)
    rates = rates_of("vllm", small.device("a", 100, "H100-SXM-80GB"))
    served = Served(model, works_of(model), MACHINE, LayerShare(), 2.0)
    short, long = (steady_state(served, rates, Requests(prompt, 100, 8), 1e9) for prompt in (10, 1000))
    assert short.running == long.running == 8
    assert long.token_s > short.token_s
    full = steady_state(served, rates, Requests(1000, 100, 8), served.weight_bytes() + 2.5 * served.cache_bytes(1100))
    assert full.running == pytest.approx(2.5)
    assert full.first_token_s > long.first_token_s  # the others wait for a place
