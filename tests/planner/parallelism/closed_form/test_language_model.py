"""Language models from configs: their parameters beside those of the network itself, and what is refused."""

from typing import Any

import pytest

from graphs.common.errors import InputError
from graphs.importers.from_config import headed_module
from planner.parallelism.closed_form.model_file import transformer_of
from planner.parallelism.closed_form.transformer import Transformer

SIZES = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 1000}
LLAMA = SIZES | {
    "model_type": "llama",
    "intermediate_size": 640,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FALCON = SIZES | {"model_type": "falcon", "alibi": False, "bias": False, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"n_embd": 256, "n_layer": 3, "n_head": 8, "vocab_size": 1000, "bos_token_id": 1, "eos_token_id": 2}
XLNET = {"model_type": "xlnet", "d_model": 256, "n_layer": 3, "n_head": 8, "d_inner": 1024, "vocab_size": 1000}
OPT = LLAMA | {"model_type": "opt", "ffn_dim": 1024, "max_position_embeddings": 512}

FAMILIES: dict[str, dict[str, Any]] = {
    "grouped heads": LLAMA | {"num_key_value_heads": 2},
    "biases of all products": LLAMA | {"attention_bias": True, "mlp_bias": True},
    "tied by default, one key head, wide heads": LLAMA
    | {"model_type": "gemma", "head_dim": 64, "num_key_value_heads": 1},
    "biases of queries, keys and values": LLAMA | {"model_type": "qwen2"},
    "norms of heads": LLAMA | {"model_type": "qwen3", "head_dim": 64, "num_key_value_heads": 2},
    "fused products": LLAMA | {"model_type": "phi3"},
    "norms of queries": LLAMA | {"model_type": "olmo2"},
    "four norms": LLAMA | {"model_type": "gemma2", "head_dim": 64, "num_key_value_heads": 2},
    "gated though its norms have shifts": LLAMA | {"model_type": "stablelm"},
    "norms without parameters": LLAMA | {"model_type": "olmo"},
    "rotated positions, plain products": LLAMA | {"model_type": "starcoder2"},
    "squared ReLU": LLAMA | {"model_type": "nemotron", "num_key_value_heads": 2},
    "one key head": FALCON | {"multi_query": True, "new_decoder_architecture": False},
    "a new decoder": FALCON | {"num_kv_heads": 2, "new_decoder_architecture": True},
    "learned positions": GPT2 | {"model_type": "gpt2", "n_positions": 512},
    "one key head, learned positions": GPT2 | {"model_type": "gpt_bigcode", "n_positions": 512},
    "parallel parts": GPT2 | {"model_type": "gptj", "rotary_dim": 16},
    "more rows than positions": OPT | {"word_embed_proj_dim": 256},
    "positions by distance": GPT2 | {"model_type": "bloom", "hidden_size": 256},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_the_parameters_of_its_network(name: str) -> None:
    # the last norm is left out, and so are norms of queries: under half a percent even of networks as small as these
    own = sum(tensor.numel() for tensor in headed_module(FAMILIES[name]).parameters())
    assert transformer_of(FAMILIES[name], 256).parameters == pytest.approx(own, rel=0.005)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (
            OPT | {"word_embed_proj_dim": 64},
            "OPTForCausalLM has .* besides the layers, where 1,000 words and 512 posit",
        ),
        (
            {"model_type": "jamba", "num_hidden_layers": 8},
            "layers of the model differ in what mixes tokens",
        ),
        (SIZES | {"model_type": "vit", "vocab_size": None}, "the model has no vocabulary; choose divides language mod"),
        (LLAMA | {"architectures": ["LlamaModel"]}, "'LlamaModel' does not read words and tell words; give it as pac"),
        (XLNET, "XLNetLMHeadModel has .* a layer has .*, where 8 heads and 8 of keys of 32 values and a feed-forward"),
        (
            {"model_type": "t5"},
            "the model has an encoder and a decoder; choose divides one stack of equal layers: give it",
        ),
        (
            LLAMA | {"model_type": "lama"},
            "the model type 'lama' is none that transformers .* has; did you mean 'llama'?",
        ),
        (LLAMA | {"model_type": "modernbert"}, "other parameters than layer 0; choose divides equal layers: give"),
    ],
)
def test_a_network_that_the_closed_form_does_not_describe_is_refused(document: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        transformer_of(document, 256)


def test_a_sample_is_no_longer_than_learned_positions() -> None:
    document = FAMILIES["learned positions"]
    assert transformer_of(document).sequence == 512  # not the usual 2,048
    with pytest.raises(
        InputError, match="a sequence of 513 tokens is longer than the 512 learned positions; take a sho"
    ):
        transformer_of(document, 513)
    assert transformer_of(LLAMA | {"max_position_embeddings": 512}, 1024).sequence == 1024  # rotated positions go on


def test_a_window_leaves_the_scores_within_it() -> None:
    # pairs of 8 tokens: 36 = (8^2 + 8) / 2 under a causal mask; a window of 3 leaves 1 + 2 + 6 * 3 = 21, 15 fewer. As
    # 64 count for the 36, 15 fewer pairs are (5^2 + 5) / 2 of the triangle that is left out, which counts as 5^2
    network = transformer_of(LLAMA | {"model_type": "mistral", "sliding_window": 3}, 8, flash=True)
    assert network.window == 3
    assert network.attention_flops(2) == 4 * 2 * (8**2 - 5**2) * 256
    whole = transformer_of(LLAMA | {"model_type": "mistral", "sliding_window": None}, 8, flash=True)
    assert whole.attention_flops(2) == 4 * 2 * 8**2 * 256


def test_windows_of_some_layers_count_where_a_sample_is_shorter() -> None:
    mixed = LLAMA | {"model_type": "gemma2", "head_dim": 32, "num_key_value_heads": 8, "sliding_window": 64}
    assert transformer_of(mixed, 64).window == 0
    with pytest.raises(
        InputError, match="only some layers of the model attend to 64 tokens, and a sample has 65; choose"
    ):
        transformer_of(mixed, 65)


def test_details_are_read_for_other_trainers() -> None:
    document = LLAMA | {"rope_theta": 500000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": True}
    network = transformer_of(document, 256)
    assert isinstance(network, Transformer)
    own = network.architecture
    assert own is not None
    assert (own.rotary_base, own.norm_epsilon, own.activation, own.other_biases) == (500000.0, 1e-5, "silu", True)
