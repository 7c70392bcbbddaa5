"""Mixtures of experts in closed form: sizes, prices by hand, and the search beside all shapes."""

from dataclasses import replace
from math import inf

import pytest

import planner
from costmodels.cluster.fabric import FabricGroup
from graphs.common.errors import InputError
from planner.parallelism.closed_form.bounds import must_be_even
from planner.parallelism.closed_form.config import (
    Demands,
    ParallelConfig,
    StageLayers,
    TrainingSetting,
    training_setting,
)
from planner.parallelism.closed_form.config_file import config_from_dict, config_to_dict
from planner.parallelism.closed_form.layer_book import ExpertGroup, LayerBook
from planner.parallelism.closed_form.memory import LayerSplit, layer_activations
from planner.parallelism.closed_form.mixture import Mixture, expert_degrees
from planner.parallelism.closed_form.model_file import transformer_of
from planner.parallelism.closed_form.prices import ShapePrices
from planner.parallelism.closed_form.search import choose_config
from planner.parallelism.closed_form.shapes import shapes_of
from planner.parallelism.closed_form.transformer import RMS_NORM, Transformer
from planner.parallelism.exports.parallel_config import export_config
from planner.problem.result import Status
from tests.language_models import MODELS, PARAMETERS
from tests.planner.parallelism.closed_form.settings import A100, a100s, random_setting
from tests.planner.parallelism.closed_form.test_search import divisions, fastest_stage

HIDDEN, WIDTH, COUNT, ACTIVE, LAYERS = 4096, 2048, 8, 2, 4
EXPERT = 3 * HIDDEN * WIDTH
OTHERS = 4 * HIDDEN**2 + COUNT * HIDDEN
MIXTURE = Mixture(
    COUNT, ACTIVE, WIDTH, LAYERS, LAYERS * COUNT * EXPERT, LAYERS * OTHERS, LAYERS * 2 * HIDDEN, LAYERS * ACTIVE * WIDTH
)
NETWORK = Transformer(
    LAYERS, HIDDEN, 32, vocabulary=32000, ffn=ACTIVE * WIDTH, gated=True, norm_vectors=RMS_NORM, biases=False,
    positions=False, dropout=False, mixture=MIXTURE,
)  # fmt: skip


@pytest.mark.parametrize("name", ["Mixtral-8x7B", "Qwen3-30B-A3B", "DeepSeek-V3", "gpt-oss-20b"])
def test_a_config_is_read_with_all_of_its_parameters(name: str) -> None:
    """The closed form leaves out the last norm alone."""
    network = transformer_of(MODELS[name], 2048)
    assert network.parameters == PARAMETERS[name] - network.hidden


def test_the_mean_layer_of_a_model_with_dense_layers() -> None:
    """Three of DeepSeek V3's 61 layers have 18,432 values in place of 8 + 1 experts of 2,048."""
    network = transformer_of(MODELS["DeepSeek-V3"], 4096)
    assert network.mixture is not None
    assert network.mixture.layers == 58
    assert network.mixture.ffn_values == 3 * 18432 + 58 * 9 * 2048
    assert network.expert_parameters == 58 * 256 * 3 * 7168 * 2048 / 61
    assert (network.heads, network.head_dim) == (128, (128 + 64 + 128) // 2)


def test_flop_are_of_active_experts() -> None:
    tokens = 2048
    assert NETWORK.product_flops(1) == 2 * tokens * (OTHERS + ACTIVE * EXPERT)
    assert NETWORK.expert_flops(1) == 2 * tokens * ACTIVE * EXPERT
    assert NETWORK.parameters == LAYERS * (OTHERS + COUNT * EXPERT + 2 * HIDDEN) + 32000 * HIDDEN


def test_activations_have_what_experts_read_and_write() -> None:
    dense = replace(NETWORK, mixture=None)
    more = layer_activations(NETWORK, 2, LayerSplit(2, True)) - layer_activations(dense, 2, LayerSplit(2, True))
    assert more == 4 * 2 * 2048 * ACTIVE * HIDDEN / 2


def test_an_all_to_all_takes_both_ports() -> None:
    """Of 8 parts, 3 go to the host's others at 300 GB/s and 4 to the other host at 25 GB/s, the slower of the two."""
    fabric = a100s(8, 4)
    assert fabric.all_to_all(8e9, FabricGroup(1, 8)) == pytest.approx(7 * (2e-6 + 1e9 / 300e9))
    assert fabric.all_to_all(8e9, FabricGroup(2, 4)) == pytest.approx(4 * (5e-6 + 1e9 / 25e9))


def test_a_layer_has_two_all_to_alls_in_each_pass() -> None:
    setting = TrainingSetting(NETWORK, a100s(8), 16)
    book = LayerBook(setting)
    apart, divided = book.price(0, 1, 1), book.price(0, 1, 1, ExpertGroup(8, 1))
    n_bytes = 2 * 2048 * ACTIVE * HIDDEN
    once_s = 7 * (2e-6 + n_bytes / 8 / (300e9 * setting.efficiency.inside))
    assert divided.total_s[0] - divided.computing_s[0] == pytest.approx(4 * once_s)
    assert divided.total_s[2] - divided.computing_s[2] == pytest.approx(6 * once_s)
    assert apart.total_s == apart.computing_s


def test_few_tokens_wait_for_the_weights_of_experts() -> None:
    """64 tokens take 2 · 64 · 2 experts' FLOP; all 8 experts' weights are read in a longer time."""
    few = replace(NETWORK, sequence=64)
    book = LayerBook(TrainingSetting(few, a100s(8), 16))
    read_s = 2 * COUNT * EXPERT / (2039e9 * 0.81)
    others_s = 2 * 64 * OTHERS / (312e12 * 0.685)
    assert book.price(0, 1, 1).products_s == pytest.approx(others_s + read_s)
    assert book.price(0, 1, 1, ExpertGroup(4, 1)).products_s == pytest.approx(others_s + read_s / 4)


def test_states_of_experts_are_divided_by_their_group_and_its_replicas() -> None:
    """8 replicas, experts over 4: the others' states have 8 replicas, and each expert's 2."""
    setting = TrainingSetting(NETWORK, a100s(8), 16)
    shape = next(
        each
        for each in shapes_of(setting)
        if (each.data, each.tensor, each.zero, each.expert, each.samples) == (8, 1, 1, 4, 1)
    )
    plain = shape._replace(expert=1)
    layers = StageLayers(LAYERS, 0, 0)
    saved = ShapePrices(LayerBook(setting), plain).of(0).bytes_of(layers)
    saved -= ShapePrices(LayerBook(setting), shape).of(0).bytes_of(layers)
    experts = LAYERS * COUNT * EXPERT
    assert saved == pytest.approx(experts * (2 + 4 + 12 / 8) - experts / 4 * (2 + 4 + 12 / 2))


def test_degrees_divide_experts_and_replicas() -> None:
    assert list(expert_degrees(MIXTURE, 12)) == [1, 2, 4]
    assert list(expert_degrees(None, 12)) == [1]
    setting = TrainingSetting(NETWORK, a100s(8), 16, demands=Demands(expert=4))
    assert {shape.expert for shape in shapes_of(setting)} == {4}
    assert {shape.data for shape in shapes_of(setting)} == {4, 8}


@pytest.mark.parametrize("seed", range(1, 9))
def test_no_shape_is_faster_than_what_the_search_finds(seed: int) -> None:
    """The bound is up to 3 % lower where devices differ: it takes shortest stages and shortest updates apart."""
    drawn = random_setting(seed)
    setting = replace(drawn, network=NETWORK)
    found, book, best_s = choose_config(setting), LayerBook(setting), inf
    for shape in shapes_of(setting):
        prices = ShapePrices(book, shape)
        for division in divisions(LAYERS, shape.pipeline):
            stages = [fastest_stage(prices.of(stage), layers) for stage, layers in enumerate(division)]
            if None not in stages and not (must_be_even(shape) and len(set(division)) > 1):
                best_s = min(best_s, prices.price([stage for stage in stages if stage]).step_s)
    if best_s == inf:
        assert found.status is Status.INFEASIBLE
        return
    assert found.rows[0].price.step_s == pytest.approx(best_s)
    assert best_s * 0.97 <= found.bound_s <= best_s * (1 + 1e-9)


def test_memory_calls_for_experts_that_are_divided() -> None:
    """A device of 12 GB cannot hold 8 experts of each layer with their states, and four replicas divide them."""
    small = replace(A100, memory_bytes=11e9)
    fabric = replace(a100s(8), devices=(small,) * 8)
    found = choose_config(TrainingSetting(NETWORK, fabric, 64, demands=Demands(tensor=1, pipeline=1)))
    assert found.rows
    assert all(row.config.shape.expert > 1 for row in found.rows if row.config.shape.zero < 3)


def test_a_row_has_its_degree_in_its_file_and_is_refused_where_nothing_runs_it() -> None:
    setting = TrainingSetting(NETWORK, a100s(8), 16, demands=Demands(expert=2))
    config = choose_config(setting).rows[0].config
    assert config.shape.expert == 2
    assert config_from_dict(config_to_dict(config)) == config
    plain = ParallelConfig(config.shape._replace(expert=1), config.stages)
    assert "expert" not in config_to_dict(plain)["parallel"]
    with pytest.raises(InputError, match="the model is a mixture of experts"):
        export_config(setting, config, "megatron-args")


def test_wrong_demands_and_mixtures_are_named() -> None:
    cluster = planner.catalogue_cluster("A100-SXM-80GB", 8, "NVLink3")
    with pytest.raises(InputError, match="expert = 3 does not fit a network without experts on 8 replicas; the near"):
        training_setting(replace(NETWORK, mixture=None), cluster, 8, Demands(expert=3))
    with pytest.raises(
        InputError, match="expert = 3 does not fit 8 experts on 8 replicas; the nearest that works is 2"
    ):
        training_setting(NETWORK, cluster, 8, Demands(expert=3))
    with pytest.raises(InputError, match="9 of 8 experts are active; give at most 8"):
        replace(MIXTURE, active=9)
