"""Transformers as the transformers library builds them, with its random weights.

Each takes the library's configuration of its family for another size; without one it is a published size. The
networks run without a key-value cache, which `torch.export` can't follow.
"""

from copy import deepcopy
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from examples.networks.factory import Network, build

if TYPE_CHECKING:  # the library takes a second to import, and only some of the networks need it
    from transformers import (
        BertConfig,
        GPT2Config,
        LlamaConfig,
        MixtralConfig,
        PreTrainedConfig,
        T5Config,
        ViTConfig,
        WhisperConfig,
    )

    Config = TypeVar("Config", bound=PreTrainedConfig)


def bert_base(batch: int = 1, length: int = 128, config: "BertConfig | None" = None) -> Network:
    """BERT-base, uncased (Devlin et al. 2019), with its pooler: 109,482,240 parameters; words [batch, length]."""
    from transformers import BertConfig, BertModel

    chosen = config or BertConfig()
    return build(lambda: BertModel(chosen), lambda: (_words(chosen, batch, length),))


class TwoTowers(nn.Module):
    """Two encoders that share nothing, and a judge of what both have read."""

    def __init__(self, config: "BertConfig") -> None:
        super().__init__()
        from transformers import BertModel

        self.question = BertModel(config)
        self.passage = BertModel(config)
        self.judge = nn.Linear(2 * config.hidden_size, 2)

    def forward(self, question: Tensor, passage: Tensor) -> Tensor:
        """Words [batch, length] each, to logits [batch, 2]."""
        read = self.question(question).pooler_output, self.passage(passage).pooler_output
        return self.judge(torch.cat(read, dim=1))  # type: ignore[no-any-return]  # a tensor


def two_tower(batch: int = 1, length: int = 128, config: "BertConfig | None" = None) -> Network:
    """Whether a passage answers a question: a BERT-Small (Turc et al. 2019) for each, as in Karpukhin et al. 2020.

    57,529,346 parameters; words [batch, length] of the questions and of the passages to logits [batch, 2].
    """
    from transformers import BertConfig

    chosen = config or BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)
    return build(lambda: TwoTowers(chosen), lambda: (_words(chosen, batch, length), _words(chosen, batch, length)))


def gpt2(batch: int = 1, length: int = 128, config: "GPT2Config | None" = None) -> Network:
    """GPT-2 small (Radford et al. 2019): 124,439,808 parameters; words [batch, length] to logits."""
    from transformers import GPT2Config, GPT2LMHeadModel

    chosen = _without_cache(config or GPT2Config())
    return build(lambda: GPT2LMHeadModel(chosen), lambda: (_words(chosen, batch, length),))


def vit_b16(batch: int = 1, config: "ViTConfig | None" = None) -> Network:
    """ViT-B/16 (Dosovitskiy et al. 2021) for 1000 classes: 86,567,656 parameters; images [batch, 3, 224, 224]."""
    from transformers import ViTConfig, ViTForImageClassification

    chosen = config or ViTConfig()
    if config is None:
        chosen.num_labels = 1000
    size = chosen.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return build(
        lambda: ViTForImageClassification(chosen), lambda: (torch.randn(batch, chosen.num_channels, height, width),)
    )


def llama(batch: int = 1, length: int = 128, config: "LlamaConfig | None" = None) -> Network:
    """Llama 3.2 1B (Llama team 2024): 1,235,814,400 parameters, 4.9 GB; words [batch, length] to logits."""
    from transformers import LlamaConfig, LlamaForCausalLM

    chosen = _without_cache(
        config
        or LlamaConfig(
            vocab_size=128_256,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            max_position_embeddings=131_072,
            tie_word_embeddings=True,
        )
    )
    return build(lambda: LlamaForCausalLM(chosen), lambda: (_words(chosen, batch, length),))


def mixtral(batch: int = 1, length: int = 128, config: "MixtralConfig | None" = None) -> Network:
    """A mixture of experts with a quarter of Mixtral 8x7B's width, depth and heads; words [batch, length] to logits.

    The smallest published Mixtral (Jiang et al. 2024) takes 187 GB; this one has 791,233,536 parameters, 3.2 GB.
    Give it `MixtralConfig()` for the published one.
    """
    from transformers import MixtralConfig, MixtralForCausalLM

    chosen = _without_cache(
        config
        or MixtralConfig(
            hidden_size=1024,
            intermediate_size=3584,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=2,
        )
    )
    return build(lambda: MixtralForCausalLM(chosen), lambda: (_words(chosen, batch, length),))


def t5(batch: int = 1, length: int = 128, config: "T5Config | None" = None) -> Network:
    """T5-small (Raffel et al. 2020): 60,506,624 parameters.

    The inputs are the words [batch, length], their attention mask, and the words of the answer [batch, length].
    """
    from transformers import T5Config, T5ForConditionalGeneration

    chosen = _without_cache(config or T5Config())

    def inputs() -> tuple[Tensor, ...]:
        words = _words(chosen, batch, length)
        return words, torch.ones_like(words), _words(chosen, batch, length)

    return build(lambda: T5ForConditionalGeneration(chosen), inputs)


def whisper(batch: int = 1, length: int = 128, config: "WhisperConfig | None" = None) -> Network:
    """Whisper tiny (Radford et al. 2022): 37,760,640 parameters.

    The inputs are 30 s of sound as log-mel features [batch, 80, 3000], their attention mask, and the words so far
    [batch, length].
    """
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    chosen = _without_cache(config or WhisperConfig())
    n_frames = 2 * chosen.max_source_positions  # the second convolution of the encoder halves them

    def inputs() -> tuple[Tensor, ...]:
        sound = torch.randn(batch, chosen.num_mel_bins, n_frames)
        return sound, torch.ones(batch, n_frames, dtype=torch.long), _words(chosen, batch, length)

    return build(lambda: WhisperForConditionalGeneration(chosen), inputs)


def _without_cache(config: "Config") -> "Config":
    copy = deepcopy(config)
    copy.use_cache = False
    return copy


def _words(config: "PreTrainedConfig", batch: int, length: int) -> Tensor:
    return torch.randint(config.vocab_size, (batch, length))
