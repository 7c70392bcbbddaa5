"""Bytes of caches and states: those that transformers' own objects have after a pass, for small models of families.

Between passes transformers keeps one token fewer than a window has, since the next one is computed with it, and of a
short convolution as many inputs as its kernel has, of which the next token needs all but the oldest.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from costmodels.language_model.from_config import model_of_config
from costmodels.language_model.mixers import CompressedAttention, GroupedAttention, Mixer, Recurrence
from costmodels.language_model.read import read_language_model
from graphs.common.errors import InputError
from graphs.importers.from_config import headed_module
from tests.weight_files import write_safetensors

Config = Mapping[str, Any]

TOKENS = 31  # more than each window, and one fewer than full buffers of compressed attention
FLOAT_BYTES = 4

SMALL: Config = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "dtype": "float32",
}
KV: Config = {"num_key_value_heads": 2}
NEAR: Config = {**KV, "sliding_window": 8, "head_dim": 32}
EXPERTS: Config = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ROUTED: Config = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1}
LATENT: Config = {
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "q_lora_rank": 24,
    "num_key_value_heads": 4,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    **ROUTED,
}
STATES: Config = {**KV, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 8}
INDEX: Config = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
COMPRESSED = ["heavily_compressed_attention", "compressed_sparse_attention"]

FAMILIES: Mapping[str, tuple[int, Config]] = {
    "llama": (0, KV),
    "gpt2": (0, {"n_embd": 64, "n_layer": 4, "n_head": 4}),
    "bloom": (0, {"n_layer": 4, "n_head": 4}),
    "mistral": (0, {**KV, "sliding_window": 8}),
    "gemma2": (0, NEAR),
    "gemma3_text": (0, {**NEAR, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}),
    "llama4_text": (0, {**KV, **EXPERTS, "attention_chunk_size": 8, "head_dim": 16, "intermediate_size_mlp": 96}),
    "gpt_oss": (0, {**NEAR, **EXPERTS}),
    "qwen3_moe": (0, {**KV, **EXPERTS, "head_dim": 32}),
    "deepseek_v3": (0, LATENT),
    "deepseek_v32": (0, {**LATENT, **INDEX}),
    "deepseek_v4": (
        0,
        {
            "num_key_value_heads": 1,
            "head_dim": 32,
            "q_lora_rank": 24,
            "sliding_window": 8,
            **ROUTED,
            **INDEX,
            "o_groups": 2,
            "o_lora_rank": 16,
            "hc_mult": 2,
            "num_hash_layers": 1,
            "layer_types": COMPRESSED * 2,
            "compress_rates": dict(zip(COMPRESSED, (8, 4), strict=True)),
        },
    ),
    "minimax": (0, {**KV, **EXPERTS, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"] * 2}),
    "rwkv": (0, {"attention_hidden_size": 64}),
    "xlstm": (
        0,
        {
            "hidden_size": 256,
            "num_heads": 4,
            "chunkwise_kernel": "chunkwise--native_autograd",
            "sequence_kernel": "native_sequence__native",
            "step_kernel": "native",
        },
    ),
    "lfm2": (3, {**KV, "layer_types": ["conv", "full_attention"] * 2, "block_multiple_of": 32}),
    "qwen3_next": (
        4,
        {
            **KV,
            **EXPERTS,
            "head_dim": 32,
            "shared_expert_intermediate_size": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
    ),
    "mamba": (4, {"state_size": 8}),
    "mamba2": (4, {"state_size": 8, "head_dim": 32, "num_heads": 4, "n_groups": 1}),
    "jamba": (
        4,
        {
            **KV,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "mamba_d_state": 8,
            "use_mamba_kernels": False,
        },
    ),
    "bamba": (4, {**STATES, "attn_layer_indices": [1]}),
    "falcon_h1": (4, {**STATES, "mamba_d_ssm": 128, "head_dim": 16}),
    "granitemoehybrid": (
        4,
        {**STATES, **EXPERTS, "layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 32},
    ),
    "zamba": (
        4,
        {
            "num_key_value_heads": 4,
            "num_hidden_layers": 6,
            "layers_block_type": ["mamba", "mamba", "hybrid"] * 2,
            "mamba_d_state": 8,
            "n_mamba_heads": 2,
            "use_mamba_kernels": False,
            "tie_word_embeddings": True,  # or else transformers shares no layer's weights
        },
    ),
    "zamba2": (
        4,
        {
            "num_key_value_heads": 4,
            "num_hidden_layers": 6,
            "layers_block_type": ["mamba", "hybrid"] * 3,
            "hybrid_layer_ids": [1, 3, 5],
            "mamba_d_state": 8,
            "n_mamba_heads": 4,
            "mamba_headdim": 32,
            "num_mem_blocks": 2,
            "adapter_rank": 8,
            "use_shared_attention_adapter": True,
            "tie_word_embeddings": True,  # or else transformers shares no layer's weights
        },
    ),
}
"""Kernels of short convolutions, and configs, by family."""


def kept_bytes(mixer: Mixer, kernel: int) -> float:
    """Return the bytes of a mixer's cache as transformers keeps it."""
    if isinstance(mixer, GroupedAttention | CompressedAttention) and mixer.window:
        mixer = replace(mixer, window=mixer.window - 1)
    if isinstance(mixer, Recurrence) and kernel:
        mixer = replace(mixer, convolution=mixer.convolution // (kernel - 1) * kernel)
    return mixer.cache_bytes(TOKENS, FLOAT_BYTES)


def tensors_in(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Yield the tensors of real numbers in a cache, each once."""
    if id(value) in seen or "Config" in type(value).__name__:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(each, seen)
    elif hasattr(value, "__dict__"):
        yield from tensors_in(vars(value), seen)


@pytest.mark.parametrize("family", FAMILIES)
def test_caches_are_those_of_transformers(family: str) -> None:
    kernel, own = FAMILIES[family]
    config = {"model_type": family, **SMALL, **own}
    model = model_of_config(config)
    assert model.parameters == sum(weight.numel() for weight in headed_module(config).parameters())
    torch.manual_seed(0)
    network = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).eval()
    with torch.no_grad():
        out = network(torch.zeros(1, TOKENS, dtype=torch.long), use_cache=True)
    (cache,) = (out[name] for name in ("past_key_values", "cache_params", "state") if out.get(name) is not None)
    expected = sum(kept_bytes(mixer, kernel) for layer in model.layers for mixer in layer.mixers)
    assert expected == sum(tensor.numel() * FLOAT_BYTES for tensor in tensors_in(cache, set()))


def test_caches_of_deepseek_v4_by_hand() -> None:
    """Of 4,096 tokens, a layer with an entry for 4 has 1,024 entries of 512 + 128 values, and 128 tokens of 512.

    It keeps values and gates of 3 tokens that wait, in two series, and of the 4 tokens before them in one.
    """
    model = model_of_config({"model_type": "deepseek_v4"})
    sparse, heavy = model.layers[3].mixers[0], model.layers[2].mixers[0]
    assert (sparse.cache_bytes(4096, 1), heavy.cache_bytes(4096, 1)) == (
        128 * 512 + (1024 + 3 * 4 + 4 * 2) * (512 + 128),
        128 * 512 + (32 + 127 * 2) * 512,
    )
    assert sparse.read_bytes(4096, 1) == (128 + 512) * 512 + 1024 * 128
    assert model.layers[0].feed_forward == replace(model.layers[3].feed_forward, shared_width=2048)  # type: ignore[type-var]


def test_weights_of_an_earlier_layer_count_once() -> None:
    model = model_of_config({"model_type": "zamba2", **SMALL, **FAMILIES["zamba2"][1]})
    first, again = model.layers[1], model.layers[5]
    shared = [tensor for tensor in again.tensors if tensor.owner == 1]
    assert {tensor.name for tensor in shared} < {tensor.name for tensor in first.tensors}
    assert again.parameters == sum(tensor.elements for tensor in again.tensors) - sum(
        tensor.elements for tensor in shared
    )
    assert len(dict(model.named_tensors())) == len(list(model.named_tensors()))


def test_files_of_weights_lack_those_that_layers_share(tmp_path: Path) -> None:
    config = {"model_type": "zamba", **SMALL, **FAMILIES["zamba"][1]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    stored = {name: ("F32", tuple(weight.shape)) for name, weight in headed_module(config).named_parameters()}
    write_safetensors(tmp_path / "model.safetensors", stored)
    with pytest.raises(
        InputError, match=r"^layer 5 of '.*' has the attention of an earlier layer, whose weights files"
    ):
        read_language_model(tmp_path)
    first, again = (read_language_model(tmp_path / "config.json").layers[number] for number in (2, 5))
    assert first.mixers == again.mixers
    assert again.parameters < first.parameters
