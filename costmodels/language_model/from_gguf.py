"""Reads a language model from the header of a .gguf, or of all its shards: sizes from its keys, formats from tensors.

::

    general.architecture = "llama"
    llama.block_count, .embedding_length, .attention.head_count, .attention.head_count_kv, .attention.key_length, …
    blk.0.attn_q.weight  q4_K  [4096, 4096]        blk.0.ffn_gate_exps.weight  q4_K  [128, 768, 2048]

Which layers have a window is not in most files: llama.cpp knows it by the architecture, and so does `WINDOWS`.

Sources: llama.cpp's gguf-py/gguf/constants.py (keys, tensors) and src/llama-model.cpp (windows), August 2026.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodels.architecture import Architecture
from costmodels.language_model.assembly import assembled
from costmodels.language_model.gguf_header import GgufHeader, read_gguf_header
from costmodels.language_model.mixers import GroupedAttention, LatentAttention, Mixer, Recurrence
from costmodels.language_model.model import ModelDescription
from costmodels.language_model.stored_tensor import StoredTensor
from costmodels.language_model.tensors import WeightTensor
from graphs.common.errors import InputError, nearest

WINDOWS: Mapping[str, int] = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "cohere2": 4,
    "cohere2moe": 4,
    "llama4": 4,
    "olmo2": 4,
    "exaone4": 4,
    "exaone-moe": 4,
    "plamo3": 8,
    "smallthinker": 4,
    "afmoe": 4,
}
"""Architectures of which every n-th layer sees all tokens and the others have the window."""

NO_WINDOW = ("phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "llama", "mistral3", "mistral4")
"""Architectures of which llama.cpp keeps all tokens, whatever the file's window."""

LLAMA4_CHUNK = 8192  # tokens, which llama.cpp has as a constant
ENCODERS = (
    "bert",
    "modern-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "jina-bert-v2",
    "jina-bert-v3",
    "t5",
    "t5encoder",
    "clip",
)


def model_of_gguf(path: Path) -> ModelDescription:
    """Return the language model of a .gguf; any shard stands for all.

    Raises:
        InputError: if the header is damaged, a shard or a key is missing, or a layer or a type is not known here.
    """
    header = read_gguf_header(path)
    facts = GgufFacts(path, header)
    unknown = next((tensor for tensor in header.tensors if 0 in tensor.shape), None)
    if unknown is not None:
        raise InputError(f"the tensor '{unknown.name}' of '{path}' has the shape {unknown.shape}; load the file again")
    return assembled(header.tensors, facts)


class GgufFacts:
    """Facts of a .gguf, from its key-value pairs.

    Raises:
        InputError: if a key is missing or of another kind.
    """

    def __init__(self, path: Path, header: GgufHeader) -> None:
        self.pairs, self.path = header.pairs, path
        family = self.pairs.get("general.architecture")
        if not isinstance(family, str):
            raise InputError(f"'{path}' names no architecture (general.architecture); take a .gguf of a language model")
        self.family = family
        if self.family in ENCODERS:
            raise InputError(f"'{path}' holds '{self.family}', which is no decoder; take a .gguf of a language model")
        self.name = str(path)
        self.hidden = self._needed("embedding_length")
        draft = self._number("nextn_predict_layers")
        self.layers = self._needed("block_count") - draft
        words = next((tensor for tensor in header.tensors if tensor.name == "token_embd.weight"), None)
        if words is None:
            raise InputError(
                f"'{path}' has no token_embd.weight{_guess(header.tensors)}; take a .gguf of a language model"
            )
        self.vocabulary = words.shape[0]
        self.experts, self.active_experts = self._number("expert_count"), self._number("expert_used_count")
        self.tied = not any(tensor.name == "output.weight" for tensor in header.tensors)
        self.trained_tokens = self._number("context_length")
        self.architecture: Architecture | None = None

    def mixers(self, layer: int, tensors: Sequence[WeightTensor]) -> tuple[Mixer, ...]:
        """Return the mixers of a layer: several side by side, or none, as its tensors have it."""
        names = {tensor.name: tensor for tensor in tensors if tensor.part == "mixer"}
        found: list[Mixer] = []
        if any(name.startswith("attn_kv_a_mqa") for name in names):
            found.append(self._latent(layer, names))
        elif any(re.match(r"attn_(q|k|qkv)\.weight", name) for name in names) and not self._is_delta(names):
            found.append(self._attention(layer, names))
        if any(re.match(r"ssm_|shortconv|time_mix", name) for name in names):
            found.append(self._recurrence(names))
        if names and not found:
            worst = max(names.values(), key=lambda tensor: tensor.elements)
            raise InputError(
                f"layer {layer} of '{self.path}' ({self.family}) mixes tokens in a way that is not known here (its "
                f"largest tensor is '{worst.name}'); take the model's config.json"
            )
        return tuple(found)

    def _is_delta(self, names: Mapping[str, WeightTensor]) -> bool:
        """Return whether a product of queries, keys and values belongs to linear attention."""
        return any(name.startswith(("ssm_beta", "ssm_ba", "ssm_alpha")) for name in names)

    def _attention(self, layer: int, names: Mapping[str, WeightTensor]) -> GroupedAttention:
        heads = self._of_layer("attention.head_count", layer)
        key_size = self._number("attention.key_length") or self.hidden // max(1, heads)
        value_size = self._number("attention.value_length") or key_size
        window = self._window(layer)
        if window and self._number("attention.key_length_swa"):
            key_size = self._number("attention.key_length_swa")
            value_size = self._number("attention.value_length_swa") or key_size
        keys = names.get("attn_k.weight")
        key_heads = self._of_layer("attention.head_count_kv", layer) or heads
        if keys is not None and keys.elements // self.hidden != key_heads * key_size:
            raise InputError(
                f"layer {layer} of '{self.path}' has keys of {keys.elements // self.hidden:,} values, and its keys say "
                f"{key_heads} key-value heads of {key_size}; the file contradicts itself: convert the model again"
            )
        shared = self._number("attention.shared_kv_layers")
        return GroupedAttention(
            heads, key_heads, key_size, value_size, window, keeps_cache=layer < self.layers - shared
        )

    def _latent(self, layer: int, names: Mapping[str, WeightTensor]) -> LatentAttention:
        rope = self._number("rope.dimension_count")
        whole = self._number("attention.key_length_mla") or self._number("attention.key_length")
        indexed = any(name.startswith("indexer") for name in names)
        return LatentAttention(
            heads=self._of_layer("attention.head_count", layer),
            latent=self._needed("attention.kv_lora_rank"),
            rope_size=rope,
            key_size=whole - rope,
            value_size=self._number("attention.value_length_mla") or self._needed("attention.value_length"),
            query_latent=self._number("attention.q_lora_rank"),
            selected=self._number("attention.indexer.top_k") if indexed else 0,
            index_heads=self._number("attention.indexer.head_count") if indexed else 0,
            index_size=self._number("attention.indexer.key_length") if indexed else 0,
        )

    def _recurrence(self, names: Mapping[str, WeightTensor]) -> Recurrence:
        convolutions = [tensor for name, tensor in names.items() if "conv" in name and len(tensor.shape) >= 2]
        kept = sum(tensor.elements // tensor.shape[-1] * (tensor.shape[-1] - 1) for tensor in convolutions)
        if any(name.startswith("time_mix") for name in names):
            size = self._number("wkv.head_size") or 64
            return Recurrence("rwkv", self.hidden * size, 2 * self.hidden, self.hidden // size)
        if any(name.startswith("shortconv") for name in names):
            inner = next(tensor for name, tensor in names.items() if "conv.weight" in name)
            return Recurrence("convolution", 0, inner.elements // inner.shape[-1] * (inner.shape[-1] - 1))
        width, state = self._needed("ssm.inner_size"), self._needed("ssm.state_size")
        if self._is_delta(names):
            heads = self._needed("ssm.time_step_rank")
            return Recurrence("delta", width * state, kept, heads)
        one = names.get("ssm_a")
        per_state = one is not None and one.elements == width * state
        return Recurrence("mamba" if per_state else "mamba2", width * state, kept)

    def _window(self, layer: int) -> int:
        window = self._number("attention.sliding_window") or (LLAMA4_CHUNK if self.family == "llama4" else 0)
        pattern = self.pairs.get(f"{self.family}.attention.sliding_window_pattern")
        if not window or self.family in NO_WINDOW:
            return 0
        if isinstance(pattern, tuple):
            return window if layer < len(pattern) and pattern[layer] else 0
        every = pattern if isinstance(pattern, int) else WINDOWS.get(self.family, 0)
        return window if every == 0 or (layer + 1) % every else 0

    def _needed(self, key: str) -> int:
        found = self._number(key)
        if not found:
            known = [name.removeprefix(f"{self.family}.") for name in self.pairs]
            raise InputError(
                f"'{self.path}' has no {self.family}.{key}, or it is 0{nearest(key, known)}; convert the model again "
                "with llama.cpp"
            )
        return found

    def _number(self, key: str) -> int:
        """Return a whole number that a file may lack, which then is 0; the greatest of a list."""
        value: Any = self.pairs.get(f"{self.family}.{key}")
        values = value if isinstance(value, tuple) else (value,)
        return max((item for item in values if type(item) is int), default=0)

    def _of_layer(self, key: str, layer: int) -> int:
        value = self.pairs.get(f"{self.family}.{key}")
        return int(value[layer]) if isinstance(value, tuple) and layer < len(value) else self._number(key)


def _guess(tensors: Sequence[StoredTensor]) -> str:
    return f" (its first tensor is '{tensors[0].name}')" if tensors else " and no tensors at all"
