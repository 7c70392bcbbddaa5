"""ConfigLayer: what mixes the tokens of a layer, by the names of its tensors and the sizes in its config.

Sizes of attention are compared with the tensors of each layer: heads of keys follow from the keys' product, so that
layers with sizes of their own are described as they are.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from costmodels.language_model.config_fields import ConfigFields
from costmodels.language_model.mixers import (
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    Mixer,
    Recurrence,
)
from costmodels.language_model.tensors import WeightTensor
from graphs.common.errors import InputError

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads")
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
KEY_SIZES = ("head_dim", "attention_head_dim", "kv_channels", "d_kv")
STATE_SIZES = ("mamba_d_state", "ssm_state_size", "state_size", "mamba_state_dim")
NEAR = ("sliding", "local", "chunked")
DEFAULT_RWKV_STATES = 3  # numerator, denominator and greatest exponent of RWKV-4's weighted mean, for each channel

PRODUCTS = {
    "fused": re.compile(r"(^|\.)(qkv_proj|wqkv|c_attn|query_key_value|qkv)\.weight$"),
    "both": re.compile(r"(^|\.)kv_proj\.weight$"),
    "queries": re.compile(r"(^|\.)(q_proj|project_q|wq|query|q)(\.linear)?\.weight$"),
    "keys": re.compile(r"(^|\.)(k_proj|project_k|wk|key|k)(\.linear)?\.weight$"),
    "values": re.compile(r"(^|\.)(v_proj|project_v|wv|value|v)(\.linear)?\.weight$"),
    "output": re.compile(r"(^|\.)(o_proj|out_proj|attention_out|dense|c_proj|wo|output)(\.linear)?\.weight$"),
}
"""Names of the products of attention."""

Named = Mapping[str, WeightTensor]


@dataclass(frozen=True)
class ConfigLayer:
    """A layer of a config."""

    fields: ConfigFields
    hidden: int  # values of a token between layers
    layers: int  # of the model
    number: int

    def mixers(self, tensors: Sequence[WeightTensor]) -> tuple[Mixer, ...]:
        """Return the mixers that these tensors of the layer make up.

        Raises:
            InputError: if they are of no known kind, or sizes are missing.
        """
        named = {tensor.name.lower(): tensor for tensor in tensors if tensor.part == "mixer"}
        self._check_decoder(named)
        found = self._of_latents(named) or self._side_by_side(named)
        if named and not found:
            raise self._unknown(named)
        self._check_shared(found)
        return tuple(found)

    def _of_latents(self, named: Named) -> list[Mixer]:
        """Return attention whose keys and values are one, as latents or entries; nothing for another layer."""
        if named and isinstance(self.fields.first(("compress_rates",)), Mapping):
            return [self._compressed(named)]
        return [self._latent(named) for name in named if "kv_a_proj" in name and name.endswith("weight")]

    def _side_by_side(self, named: Named) -> list[Mixer]:
        found: list[Mixer] = []
        recurrence = next((read for mark, read, _ in RECURRENCES if any(mark in name for name in named)), None)
        if recurrence is not None:
            found.append(recurrence(self, named))
        instead = any(mark in name for mark, _, alone in RECURRENCES for name in named if alone)
        if not instead and any(self._rows(named, kind) for kind in ("fused", "both", "queries", "keys")):
            found.append(self._attention(named))
        return found

    def _latent(self, named: Named) -> LatentAttention:
        indexed = any("indexer" in name for name in named)
        return LatentAttention(
            heads=self._own(HEADS),
            latent=self._own(("kv_lora_rank",)),
            rope_size=self._own(("qk_rope_head_dim",)),
            key_size=self._own(("qk_nope_head_dim",)),
            value_size=self._own(("v_head_dim",)),
            query_latent=self._own(("q_lora_rank",)),
            selected=self._own(("index_topk",)) if indexed else 0,
            index_heads=self._own(("index_n_heads",)) if indexed else 0,
            index_size=self._own(("index_head_dim",)) if indexed else 0,
        )

    def _compressed(self, named: Named) -> CompressedAttention:
        indexed = any("indexer" in name for name in named)
        return CompressedAttention(
            heads=self._own(HEADS),
            key_size=self._key_size(),
            window=self._window(),
            rate=int(self.fields.first(("compress_rates",)).get(self._kind(), 0)),
            overlaps=indexed,
            selected=self._own(("index_topk",)) if indexed else 0,
            index_heads=self._own(("index_n_heads",)) if indexed else 0,
            index_size=self._own(("index_head_dim",)) if indexed else 0,
        )

    def _attention(self, named: Named) -> GroupedAttention:
        """Return the layer's attention, its heads counted by its products' rows."""
        size, heads, output = self._key_size(), self._own(HEADS), self._rows(named, "output")
        if not heads or (output and output % (heads * size) and output % size == 0):
            heads = output // size
        keys, values = self._rows(named, "keys"), self._rows(named, "values")
        if self._rows(named, "fused"):
            key_heads = (self._rows(named, "fused") // size - heads) // 2
        elif self._rows(named, "both"):
            key_heads = self._rows(named, "both") // size // 2
        else:
            key_heads = keys // size or self._own(KEY_HEADS) or heads
        key_heads = max(1, key_heads)
        shared = self.fields.greatest(("num_kv_shared_layers",))
        return GroupedAttention(
            heads,
            key_heads,
            size,
            values // key_heads if keys and values else size,
            self._window(),
            keeps_cache=self.number < self.layers - shared,
        )

    def _rows(self, named: Named, kind: str) -> int:
        """Return the values that a product makes of a token's hidden values; 0 if there is no such product."""
        pattern = PRODUCTS[kind]
        wide = 0 if kind == "output" else self._own(("attention_hidden_size",))  # with the embedding next to them
        return sum(
            tensor.elements // (wide if tensor.shape[-1] == wide else self.hidden)
            for name, tensor in named.items()
            if pattern.search(name) and "mamba" not in name
        )

    def _key_size(self) -> int:
        kind = self._kind()
        own = self._own(("global_head_dim",)) if kind.startswith("full") else 0
        near = self._own(("swa_head_dim",)) if kind.startswith(NEAR) else 0
        return own or near or self._own(KEY_SIZES) or self.hidden // max(1, self._own(HEADS))

    def _kind(self) -> str:
        kinds = self.fields.first(("layer_types", "attention_layers", "layers_block_type"))
        return str(kinds[self.number]) if isinstance(kinds, list | tuple) and self.number < len(kinds) else ""

    def _window(self) -> int:
        if self.fields.first(("use_sliding_window",)) is False:
            return 0
        kind = self._kind()
        names = ("attention_chunk_size",) if kind.startswith("chunked") else ("sliding_window", "window_size")
        window = self.fields.first((*names, "attention_window_size"))
        near = kind.startswith(NEAR) or not kind.startswith(("full", "global", "attention"))
        return window if near and isinstance(window, int) else 0

    def _kimi_delta(self, named: Named) -> Recurrence:
        heads, size = self._needed(("linear_num_heads",)), self._needed(("linear_head_dim",))
        return Recurrence("delta", heads * size**2, _kept(named), heads)

    def _delta(self, named: Named) -> Recurrence:
        heads = self._needed(("linear_num_value_heads", "linear_num_heads"))
        state = heads * self._needed(("linear_key_head_dim",)) * self._needed(("linear_value_head_dim",))
        return Recurrence("delta", state, _kept(named), heads)

    def _state_space(self, named: Named) -> Recurrence:
        """Return a state-space layer: Mamba has a rate for each value of its state, Mamba 2 one for each head."""
        rates = next(tensor for name, tensor in named.items() if name.endswith("a_log"))
        if prod(rates.shape) != max(rates.shape):
            return Recurrence("mamba", rates.elements, _kept(named))
        output = next((tensor for name, tensor in named.items() if name.endswith("out_proj.weight")), None)
        if output is None:
            raise self._unknown(named)
        return Recurrence(
            "mamba2", output.elements // self.hidden * self._needed(STATE_SIZES), _kept(named), rates.elements
        )

    def _rwkv(self, named: Named) -> Recurrence:
        decay = next(tensor for name, tensor in named.items() if "time_decay" in name)
        return Recurrence("rwkv", DEFAULT_RWKV_STATES * decay.elements, 2 * self.hidden)

    def _gated(self, named: Named) -> Recurrence:
        return Recurrence("linear", self._own(("lru_width",)) or self.hidden, _kept(named))

    def _lightning(self, _: Named) -> Recurrence:
        heads = self._needed(HEADS)
        return Recurrence("linear", heads * self._key_size() ** 2, 0, heads)

    def _matrix_memory(self, named: Named) -> Recurrence:
        """Return an mLSTM: each head keeps a matrix of keys by values, the sum of its keys, and a greatest exponent."""
        heads = self._needed(HEADS)
        keys, values = self._rows(named, "keys") // heads, self._rows(named, "values") // heads
        if not keys:  # queries, keys, values and gates in one product
            keys, values = self._needed(("qk_head_dim",)), self._needed(("v_head_dim",))
        return Recurrence("mlstm", heads * (keys * values + keys + 1), 0, heads)

    def _convolution(self, named: Named) -> Recurrence:
        return Recurrence("convolution", 0, _kept(named))

    def _own(self, names: Sequence[str]) -> int:
        """Return a size of the layer: the config's, or the layer's of a list; 0 if there is none."""
        value = self.fields.first(names)
        if isinstance(value, list | tuple) and self.number < len(value):
            value = value[self.number]
        return value if type(value) is int else 0

    def _needed(self, names: Sequence[str]) -> int:
        return self._own(names) or self.fields.count(names, names[0])

    def _check_decoder(self, names: Iterable[str]) -> None:
        crossing = next((name for name in names if name.startswith(("encoder_attn", "crossattention"))), None)
        if crossing is not None:
            raise InputError(
                f"layer {self.number} of '{self.fields.name}' attends to an encoder ('{crossing}'); give a language "
                "model with a decoder alone"
            )

    def _check_shared(self, found: Sequence[Mixer]) -> None:
        """Check that a layer whose attention has the weights of an earlier one has them, as files of weights do not."""
        if self._kind() == "hybrid" and not any(isinstance(mixer, GroupedAttention) for mixer in found):
            raise InputError(
                f"layer {self.number} of '{self.fields.name}' has the attention of an earlier layer, whose weights "
                "files have once; give the model's config.json"
            )

    def _unknown(self, named: Named) -> InputError:
        worst = max(named.values(), key=lambda tensor: tensor.elements)
        return InputError(
            f"layer {self.number} of '{self.fields.name}' mixes tokens in a way that is not known here (its largest "
            f"tensor is '{worst.name}'); give the network as package.module:factory, which is planned operator by "
            "operator"
        )


def _kept(named: Named) -> int:
    """Return the inputs that short convolutions keep: all but the newest of each channel's kernel."""
    return sum(
        tensor.shape[0] * (tensor.shape[-1] - 1)
        for name, tensor in named.items()
        if "conv" in name and len(tensor.shape) == 3
    )


RECURRENCES: tuple[tuple[str, Callable[[ConfigLayer, Named], Recurrence], bool], ...] = (
    ("mlstm", ConfigLayer._matrix_memory, True),
    ("forget_gate", ConfigLayer._kimi_delta, True),
    ("linear_attn", ConfigLayer._delta, True),
    ("a_log", ConfigLayer._state_space, False),
    ("time_decay", ConfigLayer._rwkv, True),
    ("rg_lru", ConfigLayer._gated, False),
    ("output_gate", ConfigLayer._lightning, True),
    ("conv", ConfigLayer._convolution, False),
)
"""Marks in the names of tensors, what they are read as, and whether products of keys belong to it, too."""
