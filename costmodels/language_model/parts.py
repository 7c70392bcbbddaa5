"""Says which part of a language model a tensor belongs to, by the name that transformers or llama.cpp gives it."""

import re
from collections.abc import Sequence

from costmodels.language_model.tensors import Part

_NORM = re.compile(r"norm|(^|\.)ln(_|\d|\.|$)|_ln\.|layer_scal|sub_ln")
_SHARED = re.compile(r"shared_?expert|shared_mlp|residual_mlp|shexp|_expert_|latent_proj")
_EXPERTS = re.compile(r"(^|\.)(local_)?experts(\.|$)|_exps(\.|$)|_chexps(\.|$)")
_ROUTER = re.compile(r"router|(^|\.)gate\.|ffn_gate_inp|exp_probs_b|e_score|expert_bias|moe_statics")
_STREAMS = re.compile(r"(^|\.)(attn|ffn)_hc\.")  # weights that join several residual streams
_ELSEWHERE = re.compile(r"layernorm\.mlp|^(altup|laurel|per_layer|inp_gate|proj\.|post_norm)")
_DENSE = re.compile(
    r"(^|\.)(mlps?|mlp_block|ffn\w*|feed_?forward|fc\d|fc_in|fc_out|block_sparse_moe|moe|channel_mix\w*|c_fc|w[123])(\.|$)"
    r"|^mixer\.(up|down|gate)_proj|^intermediate\.dense|^output\.dense"
)
_MIXER = re.compile(
    r"att|lstm|^linear\.|mamba|mixer|ssm|conv|temporal|recurrent|time_mix|wkv|rope|sink|(^|\.)(lru|q|k|v|o|qkv)(_|\.)|sconv"
)
_VISION = re.compile(r"vision|visual|image|audio|projector|connector|^mm\.|^v\.|tower|resampler|perceiver|qformer")
_DRAFT = re.compile(r"(^|\.)mtp|nextn|eh_proj|enorm|hnorm|shared_head")
_EMBEDDING = re.compile(r"embed(?!_out)|^w\.weight|(^|\.)w[tp]e\.|embd(?!_norm)|tok_embeddings|word_embeddings")
_HEAD = re.compile(r"lm_head|embed_out|(^|\.)output\.|(^|\.)head\.|cls\.")


def part_in_layer(name: str, shape: Sequence[int]) -> Part:
    """Return the part of a tensor of a layer, by its name within the layer; "other" for an unknown one."""
    rules: tuple[tuple[bool, Part], ...] = (
        (bool(_NORM.search(name)) and len(shape) <= 1, "norm"),
        (bool(_STREAMS.search(name)), "norm"),
        (bool(_ELSEWHERE.search(name)), "other"),
        (bool(_SHARED.search(name)), "shared"),
        (bool(_EXPERTS.search(name)) and not _ROUTER.search(name) and "attention" not in name, "experts"),
        (bool(_ROUTER.search(name)) and "attention" not in name, "router"),
        (bool(_DENSE.search(name)), "dense"),
        (bool(_MIXER.search(name)), "mixer"),
    )
    return next((part for fits, part in rules if fits), "other")


def part_besides_layers(name: str) -> Part:
    """Return the part of a tensor that belongs to no layer; "other" for an unknown one."""
    rules: tuple[tuple[re.Pattern[str], Part], ...] = (
        (_VISION, "vision"),
        (_DRAFT, "draft"),
        (re.compile(r"norm|(^|\.)ln"), "norm"),
        (_EMBEDDING, "embedding"),
        (_HEAD, "head"),
    )
    return next((part for pattern, part in rules if pattern.search(name)), "other")
