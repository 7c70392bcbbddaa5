"""Tiny mixtures of experts of transformers, with random weights."""

from functools import cache
from typing import Any

import torch
import transformers

from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program

hf: Any = transformers
COMMON = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
TWO_OF_FOUR = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 6, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": TWO_OF_FOUR,
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "head_dim": 8},
    "olmoe": {"num_experts": 5, "num_experts_per_tok": 2},
    "gpt_oss": {**TWO_OF_FOUR, "head_dim": 8, "sliding_window": 8},  # with biases, and gates between other gates
    "deepseek_v3": {**ROUTED, **LATENT, "moe_intermediate_size": 24, "num_key_value_heads": 4},
    "granitemoe": TWO_OF_FOUR,
    "glm4_moe": {**ROUTED, "moe_intermediate_size": 24, "head_dim": 8},
    "llama4_text": {"num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 8, "intermediate_size_mlp": 48},
}


def mixture(family: str, dtype: torch.dtype = torch.float32, **sizes: Any) -> Any:
    """A model whose router has distinct scores, so that the order of sums decides on no expert."""
    torch.manual_seed(0)
    config = hf.AutoConfig.for_model(family, **{**COMMON, **MIXTURES[family], **sizes})
    model = hf.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    for parameter in model.parameters():
        parameter.data *= 3 if parameter.dim() > 1 else 1
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data = torch.randn_like(parameter)
    return model


def tokens(rows: int = 2, length: int = 7, seed: int = 0) -> torch.Tensor:
    """Random tokens."""
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(seed))


@cache
def imported(family: str, training: bool = False, **sizes: Any) -> Program:
    """The network for the tokens."""
    inputs = {"input_ids": tokens(), "use_cache": False}
    return program_from_module(mixture(family, **sizes), inputs, name=family, training=training)
