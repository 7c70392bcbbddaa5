"""Public language models as their config.json has them: the fields that sizes follow from, by name of the model.

``PARAMETERS`` are published totals: of the safetensors index on the hub, or of the model's card to the last parameter.
"""

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]


def _config(kind: str, hidden: int, layers: int, heads: int, ffn: int, words: int, **others: Any) -> Config:
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": words,
        "dtype": "bfloat16",
        **others,
    }


def _deep(layers: int, hidden: int, heads: int, ffn: int, words: int, **others: Any) -> Config:
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    return _config("deepseek_v3", hidden, layers, heads, ffn, words, num_key_value_heads=heads, **{**latent, **others})


KV8: Config = {"num_key_value_heads": 8}
UNTIED: Config = {"tie_word_embeddings": False}
SLIDING = ["sliding_attention"]
FULL = ["full_attention"]

MODELS: Mapping[str, Config] = {
    "Llama-2-7B": _config("llama", 4096, 32, 32, 11008, 32000),
    "Llama-2-70B": _config("llama", 8192, 80, 64, 28672, 32000, **KV8),
    "Llama-3-8B": _config("llama", 4096, 32, 32, 14336, 128256, max_position_embeddings=8192, **KV8),
    "Llama-3.1-70B": _config("llama", 8192, 80, 64, 28672, 128256, **KV8),
    "Llama-3.1-405B": _config("llama", 16384, 126, 128, 53248, 128256, **KV8),
    "Llama-3.2-1B": _config("llama", 2048, 16, 32, 8192, 128256, head_dim=64, tie_word_embeddings=True, **KV8),
    "Llama-3.2-3B": _config("llama", 3072, 28, 24, 8192, 128256, head_dim=128, tie_word_embeddings=True, **KV8),
    "Llama-4-Scout": _config(
        *("llama4_text", 5120, 48, 40, 8192, 202048),
        intermediate_size_mlp=16384, head_dim=128, num_local_experts=16, num_experts_per_tok=1,
        interleave_moe_layer_step=1, attention_chunk_size=8192, **KV8,
    ),
    "Mistral-7B-v0.1": _config("mistral", 4096, 32, 32, 14336, 32000, sliding_window=4096, **KV8),
    "Mistral-Small-24B": _config("mistral", 5120, 40, 32, 32768, 131072, head_dim=128, sliding_window=None, **KV8),
    "Mistral-Nemo-12B": _config("mistral", 5120, 40, 32, 14336, 131072, head_dim=128, sliding_window=None, **KV8),
    "Mixtral-8x7B": _config("mixtral", 4096, 32, 32, 14336, 32000, num_local_experts=8, num_experts_per_tok=2, **KV8),
    "Mixtral-8x22B": _config("mixtral", 6144, 56, 48, 16384, 32768, num_local_experts=8, num_experts_per_tok=2, **KV8),
    "Qwen2-72B": _config("qwen2", 8192, 80, 64, 29568, 152064, **KV8),
    "Qwen2.5-0.5B": _config("qwen2", 896, 24, 14, 4864, 151936, num_key_value_heads=2, tie_word_embeddings=True),
    "Qwen2.5-7B": _config("qwen2", 3584, 28, 28, 18944, 152064, num_key_value_heads=4),
    "Qwen1.5-MoE-A2.7B": _config(
        *("qwen2_moe", 2048, 24, 16, 5632, 151936),
        num_key_value_heads=16, moe_intermediate_size=1408, shared_expert_intermediate_size=5632, num_experts=60,
        num_experts_per_tok=4,
    ),
    "Qwen3-0.6B": _config("qwen3", 1024, 28, 16, 3072, 151936, head_dim=128, tie_word_embeddings=True, **KV8),
    "Qwen3-8B": _config("qwen3", 4096, 36, 32, 12288, 151936, head_dim=128, **KV8),
    "Qwen3-32B": _config("qwen3", 5120, 64, 64, 25600, 151936, head_dim=128, **KV8),
    "Qwen3-30B-A3B": _config(
        *("qwen3_moe", 2048, 48, 32, 6144, 151936),
        num_key_value_heads=4, head_dim=128, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8,
    ),
    "Qwen3-235B-A22B": _config(
        *("qwen3_moe", 4096, 94, 64, 12288, 151936),
        num_key_value_heads=4, head_dim=128, moe_intermediate_size=1536, num_experts=128, num_experts_per_tok=8,
    ),
    "Qwen3-Next-80B-A3B": _config(
        *("qwen3_next", 2048, 48, 16, 5120, 151936),
        num_key_value_heads=2, head_dim=256, num_experts=512, num_experts_per_tok=10, moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
    ),
    "Gemma-7B": _config("gemma", 3072, 28, 16, 24576, 256000, num_key_value_heads=16, head_dim=256),
    "Gemma-2-9B": _config(
        "gemma2", 3584, 42, 16, 14336, 256000, num_key_value_heads=8, head_dim=256, sliding_window=4096
    ),
    "Gemma-3-12B": _config(
        "gemma3_text", 3840, 48, 16, 15360, 262208, num_key_value_heads=8, head_dim=256, sliding_window=1024
    ),
    "Phi-2": _config("phi", 2560, 32, 32, 10240, 51200),
    "Phi-3-mini": _config("phi3", 3072, 32, 32, 8192, 32064, num_key_value_heads=32, sliding_window=2047),
    "Phi-4": _config("phi3", 5120, 40, 40, 17920, 100352, num_key_value_heads=10),
    "Phi-3.5-MoE": _config(
        *("phimoe", 4096, 32, 32, 6400, 32064),
        num_local_experts=16, num_experts_per_tok=2, attention_bias=True, lm_head_bias=True, **KV8,
    ),
    "gpt-oss-20b": _config(
        *("gpt_oss", 2880, 24, 64, 2880, 201088),
        head_dim=64, num_local_experts=32, num_experts_per_tok=4, sliding_window=128, **KV8,
        layer_types=(SLIDING + FULL) * 12,
    ),
    "gpt-oss-120b": _config(
        *("gpt_oss", 2880, 36, 64, 2880, 201088),
        head_dim=64, num_local_experts=128, num_experts_per_tok=4, sliding_window=128, **KV8,
        layer_types=(SLIDING + FULL) * 18,
    ),
    "DeepSeek-V2-Lite": _config(
        *("deepseek_v2", 2048, 27, 16, 10944, 102400),
        num_key_value_heads=16, q_lora_rank=None, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128,
        v_head_dim=128, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408,
        first_k_dense_replace=1,
    ),
    "DeepSeek-V3": _deep(61, 7168, 128, 18432, 129280),
    "Kimi-K2": _deep(61, 7168, 64, 18432, 163840, n_routed_experts=384, first_k_dense_replace=1),
    "OLMo-2-7B": _config("olmo2", 4096, 32, 32, 11008, 100352, num_key_value_heads=32),
    "OLMoE-1B-7B": _config("olmoe", 2048, 16, 16, 1024, 50304, num_key_value_heads=16, num_experts=64),
    "GLM-4-9B": _config("glm4", 4096, 40, 32, 13696, 151552, num_key_value_heads=2, head_dim=128),
    "GLM-4.5-Air": _config(
        *("glm4_moe", 4096, 46, 96, 10944, 151552),
        head_dim=128, moe_intermediate_size=1408, n_routed_experts=128, num_experts_per_tok=8, n_shared_experts=1,
        first_k_dense_replace=1, attention_bias=True, use_qk_norm=False, **KV8,
    ),
    "Command-R-35B": _config("cohere", 8192, 40, 64, 22528, 256000, num_key_value_heads=64),
    "Command-R7B": _config("cohere2", 4096, 32, 32, 14336, 256000, sliding_window=4096, **KV8),
    "StableLM-2-12B": _config(
        "stablelm", 5120, 40, 32, 13824, 100352, use_parallel_residual=True, qk_layernorm=True, **KV8
    ),
    "Falcon-7B": _config(
        *("falcon", 4544, 32, 71, 18176, 65024),
        multi_query=True, parallel_attn=True, bias=False, new_decoder_architecture=False,
    ),
    "Falcon-40B": _config(
        "falcon", 8192, 60, 128, 32768, 65024, num_kv_heads=8, new_decoder_architecture=True, bias=False
    ),
    "GPT-NeoX-20B": _config("gpt_neox", 6144, 44, 64, 24576, 50432),
    "GPT-J-6B": {"model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50400},
    "GPT-2-XL": {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "vocab_size": 50257},
    "OPT-6.7B": {
        "model_type": "opt", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "ffn_dim": 16384,
        "vocab_size": 50272,
    },
    "BLOOM-7B": {"model_type": "bloom", "hidden_size": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880},
    "MPT-7B": {"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432},
    "StarCoder2-3B": _config("starcoder2", 3072, 30, 24, 12288, 49152, num_key_value_heads=2, sliding_window=4096),
    "Granite-3-8B": _config("granite", 4096, 40, 32, 12800, 49155, tie_word_embeddings=True, **KV8),
    "Granite-3-3B-A800M": _config(
        *("granitemoe", 1536, 32, 24, 512, 49155),
        num_local_experts=40, num_experts_per_tok=8, tie_word_embeddings=True, **KV8,
    ),
    "Nemotron-4-15B": _config("nemotron", 6144, 32, 48, 24576, 256000, **KV8),
    "Mamba-2.8B": {
        "model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, "vocab_size": 50280,
        "intermediate_size": 5120, "time_step_rank": 160,
    },
    "Mamba2-2.7B": {
        "model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 128, "head_dim": 64,
        "num_heads": 80, "n_groups": 1, "vocab_size": 50288, "tie_word_embeddings": True,
    },
    "Jamba-v0.1": _config("jamba", 4096, 32, 32, 14336, 65536, num_experts=16, num_experts_per_tok=2, **KV8),
    "MiniMax-M2": _config(
        *("minimax_m2", 3072, 62, 48, 1536, 200064),
        head_dim=128, num_local_experts=256, num_experts_per_tok=8, use_qk_norm=True, **KV8,
    ),
    "ERNIE-4.5-21B-A3B": _config(
        *("ernie4_5_moe", 2560, 28, 20, 12288, 103424),
        num_key_value_heads=4, moe_num_experts=64, moe_k=6, moe_intermediate_size=1536, moe_num_shared_experts=2,
        moe_layer_start_index=1, tie_word_embeddings=True,
    ),
    "SmolLM3-3B": _config("smollm3", 2048, 36, 16, 11008, 128256, num_key_value_heads=4, tie_word_embeddings=True),
    "LFM2-1.2B": _config(
        *("lfm2", 2048, 16, 32, 12288, 65536),
        **KV8, full_attn_idxs=[2, 5, 8, 10, 12, 14], block_ff_dim=12288, block_auto_adjust_ff_dim=True,
    ),
    "Falcon-H1-7B": _config("falcon_h1", 3072, 44, 12, 12288, 130048, num_key_value_heads=2, head_dim=128),
    "DeepSeek-V4-Flash": {"model_type": "deepseek_v4", "dtype": "bfloat16"},  # sizes are the defaults of transformers
    "Zamba-7B": {"model_type": "zamba", "dtype": "bfloat16"},
    "xLSTM-7B": {"model_type": "xlstm", "dtype": "bfloat16"},
}  # fmt: skip

PARAMETERS: Mapping[str, int] = {
    "Llama-2-7B": 6_738_415_616,
    "Llama-2-70B": 68_976_648_192,
    "Llama-3-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.1-405B": 405_853_388_800,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Mistral-Small-24B": 23_572_403_200,
    "Mistral-Nemo-12B": 12_247_782_400,
    "Mixtral-8x7B": 46_702_792_704,
    "Mixtral-8x22B": 140_630_071_296,
    "Qwen2-72B": 72_706_203_648,
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-235B-A22B": 235_093_634_560,
    "Gemma-7B": 8_537_680_896,
    "Gemma-2-9B": 9_241_705_984,
    "Phi-2": 2_779_683_840,
    "Phi-3-mini": 3_821_079_552,
    "Phi-4": 14_659_507_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "DeepSeek-V2-Lite": 15_706_484_224,
    "DeepSeek-V3": 671_026_404_352,
    "OLMo-2-7B": 7_298_617_344,
    "OLMoE-1B-7B": 6_919_161_856,
    "GPT-2-XL": 1_557_611_200,
    "OPT-6.7B": 6_658_473_984,
    "BLOOM-7B": 7_069_016_064,
    "StarCoder2-3B": 3_030_371_328,
    "SmolLM3-3B": 3_075_098_624,
    "Mamba-2.8B": 2_768_345_600,
}
