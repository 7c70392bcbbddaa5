"""Memory of training a transformer: the figures that the papers print."""

import pytest

from graphs.common.errors import InputError
from planner.parallelism.closed_form.memory import LayerSplit, layer_activations, zero_states
from planner.parallelism.closed_form.transformer import Transformer
from tests.benchmarks.transformer_memory import (
    deepspeed_states,
    first_stage_activations,
    layer_states,
    megatron_activations,
    megatron_states,
)

GIB = 1 << 30
GPT22B = Transformer(48, 6144, 64)
GPT175B = Transformer(96, 12288, 96)
PLAIN = LayerSplit(8)
SHARED = LayerSplit(8, sequence_parallel=True, recompute="selective")


@pytest.mark.parametrize(("stage", "printed"), [(0, "120.0"), (1, "31.4"), (2, "16.6"), (3, "1.9")])
def test_zero_holds_what_its_first_figure_prints(stage: int, printed: str) -> None:
    assert f"{zero_states(7.5e9, 64, stage) / 1e9:.1f}" == printed


def test_deepspeed_counts_float32_gradients_and_what_is_gathered() -> None:
    # 18 / 64 of 7.5e9, and 2 bytes of all or 4 of the largest layer
    assert deepspeed_states(7.5e9, 64, 2) == 18 * 7.5e9 / 64 + 2 * 7.5e9
    assert deepspeed_states(7.5e9, 64, 3, 2e8) == 18 * 7.5e9 / 64 + 4 * 2e8


@pytest.mark.parametrize(
    ("network", "samples", "pipeline", "chunks", "before", "after"),
    [(GPT22B, 4, 1, 1, 59.25, 9.5625), (GPT175B, 1, 8, 3, 66.84375, 12.3515625)],
)
def test_activations_of_the_first_stage_are_the_published_bars(
    network: Transformer, samples: int, pipeline: int, chunks: int, before: float, after: float
) -> None:
    assert layer_states(network, 8, pipeline) / GIB == 45.5625
    assert first_stage_activations(network, samples, PLAIN, pipeline, chunks) / GIB == before
    assert first_stage_activations(network, samples, SHARED, pipeline, chunks) / GIB == after


def test_a_layer_keeps_34_and_the_scores() -> None:
    # s b h (34 + 5 a s / h), and with tensor parallelism s b h (10 + 24 / t + 5 a s / (h t))
    sbh, scores = 2048 * 4 * 6144, 5 * 64 * 2048 / 6144
    assert layer_activations(GPT22B, 4, LayerSplit()) == pytest.approx(sbh * (34 + scores))
    assert layer_activations(GPT22B, 4, PLAIN) == pytest.approx(sbh * (10 + (24 + scores) / 8))
    assert layer_activations(GPT22B, 4, LayerSplit(8, recompute="full")) == 2 * sbh


def test_flash_attention_keeps_as_much_as_selective_recomputation() -> None:
    flash = Transformer(48, 6144, 64, flash=True)
    assert layer_activations(flash, 4, LayerSplit(8, True)) == layer_activations(GPT22B, 4, SHARED)


def test_grouped_heads_and_gated_products_keep_what_they_read() -> None:
    # two norms and two products read 8 s b h whole; queries and what they weigh 4 h, keys and values h, 3 f twice
    network = Transformer(
        32, 4096, 32, 8192, kv_heads=8, ffn=14336, gated=True, norm_vectors=1, dropout=False, flash=True
    )
    assert layer_activations(network, 1, LayerSplit()) == 8192 * (8 * 4096 + 5 * 4096 + 6 * 14336)


def test_megatrons_own_reckoning() -> None:
    assert megatron_states(GPT22B, 8, 1) == 49_651_605_504
    assert megatron_states(GPT175B, 8, 16, 8, distributed=True) == pytest.approx(10.78420608e9, rel=1e-12)
    assert megatron_activations(GPT22B, 4, 8, 1) == pytest.approx(10.508836864e9, rel=1e-12)
    assert megatron_activations(GPT175B, 1, 8, 8, 3) == pytest.approx(13.2949162666667e9)
    assert megatron_activations(GPT175B, 1, 8, 16, micro_batches=8) == pytest.approx(5.159010304e9, rel=1e-12)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "printed"),
    [(24, 2304, 24, "1.7"), (96, 16384, 128, "310.1"), (128, 25600, 160, "1008.0")],
)
def test_parameters_are_those_that_were_printed(layers: int, hidden: int, heads: int, printed: str) -> None:
    assert f"{Transformer(layers, hidden, heads).parameters / 1e9:.1f}" == printed


def test_a_step_takes_the_published_flop() -> None:
    layers, hidden, tokens = 48, 6144, 4 * 2048
    flops = 96 * tokens * layers * hidden**2 * (1 + 2048 / (6 * hidden) + 51200 / (16 * layers * hidden))
    assert GPT22B.step_flops(4, recompute=True) == pytest.approx(flops)


def test_heads_that_do_not_divide_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"heads = 60 does not divide hidden = 6144; the nearest that does is 64"):
        Transformer(48, 6144, 60)
    with pytest.raises(InputError, match=r"kv_heads = 7 does not divide heads = 64; the nearest that does is 8"):
        Transformer(48, 6144, 64, kv_heads=7)
