"""Transformers from JSON: plain numbers, and configs of transformers with the parameters that are published."""

from typing import Any

import pytest

from graphs.common.errors import InputError
from planner.parallelism.closed_form.model_file import transformer_of
from planner.parallelism.closed_form.transformer import Transformer

LLAMA8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
PLAIN = {"n_layer": 12, "n_embd": 768, "n_head": 12}
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}


def test_plain_numbers_are_a_classic_gpt() -> None:
    assert transformer_of({"layers": 48, "hidden": 6144, "heads": 64}) == Transformer(48, 6144, 64)


def test_llamas_config_has_its_parameters() -> None:
    # 8,030,261,248 are published; the last norm, 4096 of them, is left out here
    assert transformer_of(LLAMA8B).parameters == 8_030_261_248 - 4096
    left_out = {name: value for name, value in LLAMA8B.items() if name != "tie_word_embeddings"}
    assert transformer_of(left_out) == transformer_of(LLAMA8B)


def test_gpt2s_config_has_its_parameters() -> None:
    # 124,439,808 are published; the last norm has 2 * 768 of them
    network = transformer_of(GPT2, sequence=1024)
    assert network.parameters == 124_439_808 - 2 * 768
    assert (network.gated, network.dropout, network.untied) == (False, True, False)


def test_options_override_the_file() -> None:
    network = transformer_of(LLAMA8B, sequence=8192, flash=True)
    assert (network.sequence, network.flash) == (8192, True)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"hidden": 64, "heads": 2}, "the model has no layers; add layers or num_hidden_layers"),
        ({**PLAIN, "num_local_experts": 8}, "the model has num_local_experts and no model_type, without which"),
        ({**PLAIN, "is_encoder_decoder": True}, "the model has an encoder and a decoder; choose divides one stack"),
        ({**PLAIN, "n_head": 0}, "the model has n_head = 0; it must be a whole number of 1 or more"),
        ({**PLAIN, "n_head": 7}, "heads = 7 does not divide hidden = 768; the nearest that does is 6"),
    ],
)
def test_what_cannot_be_is_refused(document: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        transformer_of(document)
