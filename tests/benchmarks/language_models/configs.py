"""Sizes of public language models, in the words of their config.json; only what memory and time depend on."""

from typing import Any

Config = dict[str, Any]


def _llama(family: str, sizes: str, vocabulary: int, **more: Any) -> Config:
    """Return a dense model: ``sizes`` are its layers, hidden, heads, key-value heads and width."""
    layers, hidden, heads, kv_heads, width = map(int, sizes.split())
    return {
        "model_type": family,
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": width,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "max_position_embeddings": 131072,
        **more,
    }


def _latent(layers: int, hidden: int, heads: int, experts: int, **more: Any) -> Config:
    return {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": experts,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "vocab_size": 129280,
        "tie_word_embeddings": False,
        "max_position_embeddings": 163840,
        **more,
    }


def _gpt_oss(layers: int, experts: int) -> Config:
    return {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 2880,
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
        "vocab_size": 201088,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "attention_bias": True,
        "tie_word_embeddings": False,
        "max_position_embeddings": 131072,
    }


def _qwen_moe(sizes: str, experts: int, active: int, width: int, **more: Any) -> Config:
    own = _llama("qwen3_moe", sizes, 151936, head_dim=128)
    return own | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": experts,
        "num_experts_per_tok": active,
        "moe_intermediate_size": width,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        **more,
    }


def _qwen_linear(family: str, sizes: str, vocabulary: int, experts: int, values: int) -> Config:
    """Return a mixture in which three of four layers have linear attention."""
    own = _qwen_moe(sizes, experts, 10, 0)
    layers = own["num_hidden_layers"]
    return own | {
        "model_type": family,
        "architectures": ["Qwen3NextForCausalLM" if family == "qwen3_next" else "Qwen3_5MoeForCausalLM"],
        "vocab_size": vocabulary,
        "head_dim": 256,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4),
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": values,
        "moe_intermediate_size": own["intermediate_size"],
        "shared_expert_intermediate_size": own["intermediate_size"],
    }


LLAMA_8B = _llama("llama", "32 4096 32 8 14336", 128256)
LLAMA_70B = _llama("llama", "80 8192 64 8 28672", 128256)
QWEN3_32B = _llama("qwen3", "64 5120 64 8 25600", 151936, head_dim=128)
DEEPSEEK = _latent(61, 7168, 128, 256)

CONFIGS: dict[str, Config] = {
    "LLaMA-2-7B": _llama("llama", "32 4096 32 32 11008", 32000),
    "LLaMA-2-13B": _llama("llama", "40 5120 40 40 13824", 32000),
    "LLaMA-3-8B": LLAMA_8B,
    "LLaMA-3-70B": LLAMA_70B,
    "Llama-1-30B": _llama("llama", "60 6656 52 52 17920", 32000),
    "Llama-3-60B": _llama("llama", "69 8192 64 8 28672", 128256),
    "Qwen2.5-Coder-7B": _llama("qwen2", "28 3584 28 4 18944", 152064),
    "Qwen2.5-14B": _llama("qwen2", "48 5120 40 8 13824", 152064),
    "Qwen2.5-72B": _llama("qwen2", "80 8192 64 8 29568", 152064),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "Qwen3-Next-80B-A3B": _qwen_linear("qwen3_next", "48 2048 16 2 512", 151936, 512, 32),
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA_8B,
    "nvidia/Llama-3.1-8B-Instruct-FP8": LLAMA_8B,
    "meta-llama/Llama-3.1-70B": LLAMA_70B,
    "meta-llama/Llama-3.3-70B-Instruct": LLAMA_70B,
    "meta-llama/Llama-3.1-405B": _llama("llama", "126 16384 128 8 53248", 128256),
    "Qwen/Qwen3-8B": _llama("qwen3", "36 4096 32 8 12288", 151936, head_dim=128),
    "Qwen/Qwen3-14B": _llama("qwen3", "40 5120 40 8 17408", 151936, head_dim=128),
    "Qwen/Qwen3-32B": QWEN3_32B,
    "nvidia/Qwen3-32B-NVFP4": QWEN3_32B,
    "Qwen/Qwen3-30B-A3B": _qwen_moe("48 2048 32 4 6144", 128, 8, 768),
    "Qwen/Qwen3-235B-A22B": _qwen_moe("94 4096 64 4 12288", 128, 8, 1536),
    "Qwen/Qwen3-480B-A35B": _qwen_moe("62 6144 96 8 8192", 160, 8, 2560),
    "Qwen/Qwen3.5-397B-A17B": _qwen_linear("qwen3_5_moe_text", "60 4096 32 2 1024", 248320, 512, 64),
    "deepseek-ai/DeepSeek-V3": DEEPSEEK,
    "deepseek-ai/DeepSeek-V3.1": DEEPSEEK,
    "nvidia/DeepSeek-V3.1-NVFP4": DEEPSEEK,
    "deepseek-ai/DeepSeek-R1": DEEPSEEK,
    "moonshotai/Kimi-K2.5": _latent(61, 7168, 64, 384, first_k_dense_replace=1, vocab_size=163840),
    "zhipuai/GLM-5": _latent(78, 6144, 64, 256, q_lora_rank=2048, qk_nope_head_dim=192, v_head_dim=256)
    | {
        "model_type": "glm_moe_dsa",
        "architectures": ["GlmMoeDsaForCausalLM"],
        "intermediate_size": 12288,
        "vocab_size": 154880,
        "index_topk": 2048,
        "index_n_heads": 32,
        "index_head_dim": 128,
    },
    "MiniMaxAI/MiniMax-M2.5": _llama("minimax_m2", "62 3072 48 8 1536", 200064, head_dim=128)
    | {"architectures": ["MiniMaxM2ForCausalLM"], "num_local_experts": 256, "num_experts_per_tok": 8},
    "openai/gpt-oss-120b": _gpt_oss(36, 128),
    "openai/gpt-oss-20b": _gpt_oss(24, 32),
}
"""Configurations by the names that the measurements use, from the models' public config.json."""

ENDINGS = ("FP8", "NVFP4", "FP4", "AWQ", "Instruct")


def config_of(name: str) -> Config | None:
    """Return the configuration of a model, by its name in any case, without what only says how it was packed."""
    known = {each.casefold(): config for each, config in CONFIGS.items()}
    short = {each.casefold().rpartition("/")[2]: config for each, config in CONFIGS.items()}
    key = name.casefold().replace("qwen-", "qwen")
    for _ in range(len(ENDINGS)):
        if key in known or key.rpartition("/")[2] in short:
            return known.get(key, short.get(key.rpartition("/")[2]))
        key = next(
            (key.removesuffix(f"-{end.casefold()}") for end in ENDINGS if key.endswith(f"-{end.casefold()}")), key
        )
    return None
