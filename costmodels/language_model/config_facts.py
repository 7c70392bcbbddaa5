"""Facts of a language model that its config.json says, or the config of transformers that was made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from costmodels.architecture import Architecture
from costmodels.language_model.config_fields import ConfigFields
from costmodels.language_model.config_mixers import ConfigLayer
from costmodels.language_model.mixers import Mixer
from costmodels.language_model.model import ModelDescription
from costmodels.language_model.tensors import WeightTensor
from graphs.common.errors import InputError

HIDDEN = ("hidden_size", "n_embd", "d_model", "model_dim")
LAYERS = ("num_layers", "num_hidden_layers", "n_layer", "n_layers", "num_transformer_layers")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
ACTIVE = (
    *("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts"),
    *("num_selected_experts", "experts_per_token", "expert_top_k", "top_k"),
)
SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    "intermediate_size",
)
"""Sizes that nearly every config.json of a decoder has."""
TRAINED = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len", "n_ctx")


class ConfigFacts:
    """Facts of a config; the content of a config.json, or transformers' record of it.

    Args:
        name: of the model, in messages.
        config: the content, or the record.
        tied: whether the head is the embedding's weights; as the config says if left out.
        document: the content of which the record was made.

    Raises:
        InputError: if the config has no hidden size, layers or vocabulary, or is of an encoder and a decoder.
    """

    def __init__(
        self, name: str, config: Any, tied: bool | None = None, document: Mapping[str, Any] | None = None
    ) -> None:
        top = ConfigFields(name, config)
        if top.first(("is_encoder_decoder",)):
            raise InputError(
                f"'{name}' has an encoder and a decoder; give a language model with a decoder alone, or a function "
                "that makes the network to planner plan --goal generation"
            )
        self.name, self.fields = name, top.text()
        self.hidden = self.fields.count(HIDDEN, "hidden size")
        self.layers = self.fields.count(LAYERS, "number of layers")
        self.vocabulary = self.fields.count(("vocab_size", "padded_vocab_size"), "vocabulary")
        self.experts = self.fields.greatest(EXPERTS)
        self.active_experts = self.fields.greatest(ACTIVE)
        self.trained_tokens = self.fields.greatest(TRAINED)
        own = self.fields.first(("tie_word_embeddings",))
        self.tied = bool(top.first(("tie_word_embeddings",)) if own is None else own) if tied is None else tied
        self.architecture: Architecture | None = None
        self._said = None if document is None else ConfigFields(name, document).text()

    def assumed(self, model: ModelDescription) -> ModelDescription:
        """Return the model with the sizes that the config.json leaves out, for which transformers' defaults were taken.

        The window of attention is one of them if a layer has a window.
        """
        if self._said is None:
            return model
        alias: Mapping[str, str] = getattr(self.fields.config, "attribute_map", {})
        windowed = any(getattr(mixer, "window", 0) for layer in model.layers for mixer in layer.mixers)
        names = (*SIZES, "sliding_window") if windowed else SIZES
        missing = [name for name in names if self._said.first((name, alias.get(name, name))) is None]
        defaults = {name: getattr(type(self.fields.config), alias.get(name, name), None) for name in missing}
        return replace(
            model, assumed=tuple(f"{name}={value}" for name, value in defaults.items() if type(value) is int)
        )

    def mixers(self, layer: int, tensors: Sequence[WeightTensor]) -> tuple[Mixer, ...]:
        """Return the mixers of a layer: several side by side, or none, as its tensors have it."""
        return ConfigLayer(self.fields, self.hidden, self.layers, layer).mixers(tensors)
