"""Networks of transformers that nobody looks at while working on the model of costs; for the end.

Each is built from its default configuration with fewer layers and random weights.
"""

from typing import Any

import torch
from torch import nn

LAYERS = 4
TOKENS = 64

TEXT = ("roberta", "distilbert", "albert", "electra", "opt", "gpt_neo", "bloom", "qwen2", "mpnet", "xlnet", "phi")
VISION = ("convnext", "deit", "dinov2", "swin", "regnet", "segformer", "mobilenet_v2")
UNLISTED = [f"tests.benchmarks.unlisted:{name}" for name in (*TEXT, *VISION)]

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def _text(kind: str) -> Made:
    from transformers import AutoConfig, AutoModel

    config: Any = AutoConfig.for_model(kind)
    for name in ("num_hidden_layers", "n_layers", "n_layer", "num_layers"):
        if hasattr(config, name):
            setattr(config, name, LAYERS)
    if kind == "gpt_neo":
        config.attention_types = [[["global", "local"], LAYERS // 2]]
        config.attention_layers = ["global", "local"] * (LAYERS // 2)
    config.use_cache = False
    torch.manual_seed(0)
    return AutoModel.from_config(config), (torch.ones(1, TOKENS, dtype=torch.long),)


def _vision(kind: str) -> Made:
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    config: Any = AutoConfig.for_model(kind)
    return AutoModel.from_config(config), (torch.randn(1, 3, 224, 224),)


def __getattr__(name: str) -> Any:
    """A factory for each name."""
    if name in TEXT:
        return lambda: _text(name)
    if name in VISION:
        return lambda: _vision(name)
    raise AttributeError(name)
