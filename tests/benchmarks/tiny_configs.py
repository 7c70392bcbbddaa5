"""Tiny configs of transformers' architectures, derived from their defaults."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

TINY: Mapping[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim", "projection_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_key_value_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff"), 128),
    **dict.fromkeys(("head_dim", "d_kv", "rotary_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 512),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_source_positions"), 64),
    **dict.fromkeys(("image_size",), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **dict.fromkeys(("mm_tokens_per_image",), 4),
}
"""Fields that make a network small, where a config has them and is larger."""

VOCABULARY = TINY["vocab_size"]
TOKENS = ("_token_id", "_token_index", "padding_idx", "_image_token")  # ends of the names of tokens
ROTARY = [2, 3, 3]  # of half a head: numbers turned by time, by row and by column
BACKBONE = {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1]}
"""Instead of a backbone of timm, a library of its own."""


def tiny_config(name: str) -> Mapping[str, Any]:
    """Return the content of a tiny config.json of an architecture.

    The sizes of `TINY`, or all but one kind of them if the network cannot be built with all.
    """
    from transformers import CONFIG_MAPPING

    from graphs.importers.from_config import META, module_of

    default = CONFIG_MAPPING[name]().to_dict()
    for document in _documents(default):
        with suppress(Exception):  # whatever a foreign constructor raises: the next one may do
            module_of({"model_type": name, **document}, META)
            return {"model_type": name, **document}
    return {"model_type": name, **tiny(default, TINY)}


def _documents(default: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield small sizes, and then all but those of one number."""
    yield tiny(default, TINY)
    for kept in dict.fromkeys(TINY.values()):
        yield tiny(default, {key: value for key, value in TINY.items() if value != kept})


def tiny(default: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields of a config, and of those inside of it, that make it small."""
    made: dict[str, Any] = {}
    for key, value in default.items():
        if isinstance(value, dict) and value.get("model_type") == "timm_backbone":
            made[key] = {**BACKBONE, **{k: value[k] for k in ("out_indices",) if k in value}}
        elif key == "rope_parameters" and isinstance(value, dict):
            made[key] = {**value, "mrope_section": ROTARY}  # only networks with pictures read it
        elif isinstance(value, dict) and (inner := tiny(value, sizes)):
            made[key] = {**{k: v for k, v in value.items() if k == "model_type"}, **inner}
        elif isinstance(value, int) and value > sizes.get(key, value):
            made[key] = sizes[key]
        elif str(key).endswith(TOKENS) and isinstance(value, int) and value >= VOCABULARY and "vocab_size" in sizes:
            made[key] = 64 + value % (VOCABULARY - 64)  # tokens of unlike meanings remain unlike
    return made
