"""Parameters of language models: those of transformers' network, and published ones, to the last one."""

from typing import Any

import pytest

from costmodels.language_model.feed_forward import Dense, Experts
from costmodels.language_model.from_config import model_of_config
from costmodels.language_model.mixers import GroupedAttention, LatentAttention, Recurrence
from graphs.common.errors import InputError
from graphs.importers.from_config import headed_module
from tests.language_models import MODELS, PARAMETERS

FEW = (
    *("Llama-3-8B", "Llama-3.2-3B", "Llama-4-Scout", "Mistral-Nemo-12B", "Mixtral-8x7B", "Qwen2.5-7B"),
    *("Qwen3-30B-A3B", "Qwen3-Next-80B-A3B", "Gemma-3-12B", "Phi-3-mini", "gpt-oss-20b", "DeepSeek-V2-Lite"),
    *("DeepSeek-V3", "GLM-4.5-Air", "Command-R7B", "Falcon-7B", "GPT-2-XL", "OPT-6.7B", "BLOOM-7B"),
    *("Mamba2-2.7B", "Jamba-v0.1", "LFM2-1.2B", "Falcon-H1-7B"),
)
"""Models of different families; tests/benchmarks/language_model_parameters.py has all."""


@pytest.mark.parametrize("name", FEW)
def test_parameters_are_those_of_transformers_and_the_published_ones(name: str) -> None:
    model = model_of_config(MODELS[name], name)
    network = headed_module(MODELS[name])
    assert model.parameters == sum(weight.numel() for weight in network.parameters())
    assert model.parameters == PARAMETERS.get(name, model.parameters)
    names = {whole for whole, _ in model.named_tensors()}
    assert names == {whole for whole, _ in network.named_parameters()}


def test_there_are_models_of_many_families() -> None:
    assert len(MODELS) >= 40
    assert len({config["model_type"] for config in MODELS.values()}) >= 25
    assert set(PARAMETERS) <= set(MODELS)
    assert set(FEW) <= set(MODELS)


def test_active_parameters_of_a_mixture() -> None:
    """Two of eight experts of 3 · 4096 · 14336 elements stay in each of 32 layers: 46.7 B less 6 · 32 experts."""
    model = model_of_config(MODELS["Mixtral-8x7B"])
    assert model.active_parameters == 46_702_792_704 - 32 * 6 * 3 * 4096 * 14336
    assert model.layers[0].feed_forward == Experts(count=8, active=2, width=14336, gated=True)
    assert model.layers[0].active_share == 0.25


def test_layers_differ_and_equal_ones_are_one_object() -> None:
    model = model_of_config(MODELS["DeepSeek-V3"])
    latent = LatentAttention(128, latent=512, rope_size=64, key_size=128, value_size=128, query_latent=1536)
    assert [layer.feed_forward for layer in model.layers[:4]] == [
        Dense(18432),
        Dense(18432),
        Dense(18432),
        Experts(256, 8, 2048, shared_width=2048),
    ]
    assert {layer.mixers for layer in model.layers} == {(latent,)}
    assert len({id(layer) for layer in model.layers}) == 2
    gemma = model_of_config(MODELS["Gemma-3-12B"])
    windows = [mixer.window for layer in gemma.layers for mixer in layer.mixers if isinstance(mixer, GroupedAttention)]
    assert windows == [1024, 1024, 1024, 1024, 1024, 0] * 8


def test_caches_and_states_of_a_sequence() -> None:
    """Keys and values: 2 · 8 heads · 128 values · 2 bytes · 32 layers are 128 KiB a token of Llama 3 8B.

    Latents of DeepSeek V3 have 512 + 64 values; the state of Qwen3-Next's linear layers is 32 · 128 · 128 in float32,
    with 3 inputs of 8,192 channels; layers with a window of 1,024 keep no more tokens.
    """
    assert model_of_config(MODELS["Llama-3-8B"]).cache_bytes(8192, 2) == 8192 * 128 * 1024
    assert model_of_config(MODELS["DeepSeek-V3"]).cache_bytes(1000, 2) == 61 * 576 * 2 * 1000
    qwen = model_of_config(MODELS["Qwen3-Next-80B-A3B"])
    constant = 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
    assert qwen.cache_bytes(4096, 2) == constant + 12 * 2 * 2 * 256 * 2 * 4096
    gemma = model_of_config(MODELS["Gemma-3-12B"])
    assert gemma.cache_bytes(32768, 2) == 2 * 8 * 256 * 2 * (40 * 1024 + 8 * 32768)


def test_several_mixers_side_by_side_and_none() -> None:
    layer = model_of_config(MODELS["Falcon-H1-7B"]).layers[0]
    assert [type(mixer) for mixer in layer.mixers] == [Recurrence, GroupedAttention]
    assert model_of_config(MODELS["Mamba2-2.7B"]).layers[0].feed_forward is None


def test_parts_of_a_model_add_up() -> None:
    model = model_of_config(MODELS["gpt-oss-20b"])
    assert model.part_parameters("experts") == 24 * 32 * (2880 * 5760 + 5760 + 2880 * 2880 + 2880)
    assert model.part_parameters("router") == 24 * (32 * 2880 + 32)
    assert model.part_parameters("embedding") == model.part_parameters("head") == 201088 * 2880
    assert model.head_flops == 2 * 201088 * 2880
    assert model.bytes == 2 * model.parameters


def test_tied_heads_are_counted_once() -> None:
    model = model_of_config(MODELS["Llama-3.2-1B"])
    assert model.tied
    assert model.part_parameters("head") == 0
    assert model.head_flops == 2 * 128256 * 2048


def test_a_model_published_with_code_of_its_own_is_read_by_its_architecture() -> None:
    config = {**MODELS["Kimi-K2"], "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    assert model_of_config(config).parameters == 1_026_408_209_408


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"hidden_size": 8}, "the config names no architecture: it has no model_type; add it"),
        (
            {"model_type": "t5"},
            "has an encoder and a decoder; give a language model with a decoder alone, or",
        ),
        ({"model_type": "lama"}, "'lama' is none that transformers"),
        ({"model_type": "llama", "num_hidden_layers": 0}, "num_hidden_layers is 0"),
        (
            {"model_type": "llama", "num_hidden_layers": 1, "quantization_config": {"quant_method": "aqlm"}},
            "the weights of 'llama' are quantised by 'aqlm', whose formats are not known here; take one of awq",
        ),
    ],
)
def test_bad_configs_are_named(config: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        model_of_config(config)
    assert text in str(error.value)
    assert "\n" not in str(error.value)
