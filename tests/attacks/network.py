"""A network so small that commands with a fault spend their time on their own work."""

import torch
from torch import nn


def small() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return three layers, and an input of two samples."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (torch.randn(2, 8),)


def llama() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return a language model of two layers with random weights, and an input of four tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM  # late: other commands do without

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 29}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(**sizes, **heads, max_position_embeddings=32)
    return LlamaForCausalLM(config).eval(), (torch.ones(1, 4, dtype=torch.long),)
