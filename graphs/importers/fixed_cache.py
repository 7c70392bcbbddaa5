"""A language model of transformers whose cache is passed in and out as tensors of a fixed size.

transformers' models read and write their cache through an object with a few methods. Here these methods write to the
positions that a caller names, for each row of a batch its own, so rows may be of unequal lengths::

    ids, positions, last, caches ──► model ──► logits of the last tokens, caches
                                     │   ▲
                               update│   │keys and values of all positions: those after a token's own are masked
                                     ▼   │
                             keys[row, :, positions] = new keys

Masks are computed by the model's own mask functions (causal, windows, chunks) from the positions of the rows.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import cache_utils, masking_utils, modeling_utils
from transformers.integrations import sdpa_attention

from graphs.common.errors import InputError
from graphs.importers.tracing_guards import as_exported, quiet

PROBED = 8  # tokens of the run that shows the shapes of the caches


@dataclass(frozen=True)
class CacheTensor:
    """One tensor of a cache."""

    layer: int
    kind: str  # "keys" or "values", or the state of a linear attention, "conv0" or "recurrent0"
    shape: tuple[int, ...]  # the third dimension of keys and values is the context
    dtype: torch.dtype
    is_encoded: bool = False  # whether they are of the positions of an encoder's source
    is_sliding: bool = False

    def shape_at(self, length: int, source_length: int = 0) -> tuple[int, ...]:
        """Return the shape with another number of positions, and of a source."""
        n_positions = source_length if self.is_encoded else length
        return (*self.shape[:2], n_positions, *self.shape[3:]) if self.kind in GROWING else self.shape

    @property
    def grows(self) -> bool:
        """Whether it has a place for each position; otherwise each token, or source, changes all of it."""
        return self.kind in GROWING and not self.is_encoded


GROWING = ("keys", "values", "indexer")
SPECIAL = ("softcap", "s_aux", "position_bias", "cache", "is_causal")  # arguments that change what attention computes


@dataclass(frozen=True)
class Rows:
    """Rows of a batch in one pass: what the layers of a cache write to."""

    positions: Tensor  # [rows, tokens]
    active: Tensor  # [rows], whether a row has tokens in this pass
    first: Tensor  # [], the position of the first token of all rows, where a model has one for all


class FixedLayer(cache_utils.CacheLayerMixin):  # type: ignore[misc]  # transformers' types are Any here
    """Keys and values of one layer with a place for each position."""

    is_compileable = True
    is_sliding = False
    is_croppable = False

    def __init__(self, rows: Rows, held: Mapping[str, Tensor], context: int, is_sliding: bool) -> None:
        super().__init__()
        self.rows, self.held, self.context = rows, dict(held), context
        self.is_sliding = is_sliding
        self.keys, self.values = held["keys"], held["values"]
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the tensors are there."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the keys and values of new tokens, [rows, heads, tokens, width], and return those of all positions."""
        for name, new in (("keys", key_states), ("values", value_states)):
            self.held[name] = written(self.held[name], self.rows.positions, new)
        self.keys, self.values = self.held["keys"], self.held["values"]
        return self.keys, self.values

    def after(self) -> dict[str, Tensor]:
        """Return the keys and values after the pass."""
        return self.held

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002  # transformers passes it by name
        """Return how many keys there are, and the position of the first one."""
        return self.context, 0

    def get_seq_length(self) -> Any:
        """Return the position of the first token, if it is the same for all rows."""
        return self.rows.first

    def get_max_length(self) -> int:
        """Return the number of positions."""
        return self.context


class LinearLayer(cache_utils.LinearAttentionLayer):  # type: ignore[misc]  # as above
    """States of one layer with a linear attention or a state space, which each token changes as a whole."""

    def __init__(self, rows: Rows, held: Mapping[str, Tensor], number_of_states: int) -> None:
        super().__init__(number_of_states)
        self.rows, self.before = rows, dict(held)
        for kind, states in (("conv", self.conv_states), ("recurrent", self.recurrent_states)):
            for number in states:
                if f"{kind}{number}" in held:
                    states[number] = held[f"{kind}{number}"].clone()  # in-place kernels write to it
                    getattr(self, f"is_{kind}_states_initialized")[number] = True
                    self.has_previous_state[number] = True
        for number, state in self.conv_states.items():
            self.conv_kernel_size[number] = None if state is None else state.shape[-1]

    def after(self) -> dict[str, Tensor]:
        """Return the states after the pass; those of rows without tokens are as before."""
        found = {}
        for name, before in self.before.items():
            states = self.conv_states if name.startswith("conv") else self.recurrent_states
            active = self.rows.active.reshape(-1, *[1] * (before.dim() - 1))
            found[name] = torch.where(active, states[int(name.lstrip("convreut"))], before)
        return found


def written(cache: Tensor, positions: Tensor, new: Tensor) -> Tensor:
    """Return keys or values, [rows, heads, context, width], with those of new tokens, [rows, heads, tokens, width]."""
    rows = torch.arange(cache.shape[0], device=cache.device)[:, None]
    found: Tensor = torch.ops.aten.index_put(cache, [rows, None, positions], new.transpose(1, 2).to(cache.dtype))
    return found


def cache_tensors(model: Any, rows: int, context: int) -> tuple[CacheTensor, ...]:
    """Return the tensors of a model's cache for a number of rows and positions.

    Raises:
        InputError: if the model has no cache, or keeps state in another way than by keys and values, or in tensors of
            fixed size.
    """
    name = type(model).__name__
    with quiet(), as_exported(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        cache = cache_utils.DynamicCache(config=model.config)
        ids = torch.zeros(rows, PROBED, dtype=torch.long, device=next(model.parameters()).device)
        model(input_ids=ids, **{cache_keyword(model): cache}, use_cache=True)
    found = tensors_of(cache, name, context)
    if not found:
        raise InputError(
            f"model '{name}' leaves its cache empty, so it has no state that lives from token to token; plan for "
            "throughput or latency instead"
        )
    return found


def tensors_of(cache: Any, name: str, length: int) -> tuple[CacheTensor, ...]:
    """Return the tensors of a cache for a number of positions; raise InputError for a kind of layer not known here."""
    found: list[CacheTensor] = []
    for number, layer in enumerate(cache.layers):
        for kind, tensor in _tensors_of(layer, name).items():
            shape = tuple(tensor.shape)
            shape = (*shape[:2], length, *shape[3:]) if kind in GROWING else shape
            is_sliding = getattr(layer, "is_sliding", False)
            found.append(CacheTensor(number, kind, shape, tensor.dtype, is_sliding=is_sliding))
    return tuple(found)


def _tensors_of(layer: Any, name: str) -> dict[str, Tensor]:
    """Return the tensors of one layer of a cache; raise InputError for a kind of layer that is not known here."""
    known = (
        cache_utils.DynamicLayer,
        cache_utils.DynamicSlidingWindowLayer,
        cache_utils.LinearAttentionLayer,
        cache_utils.DummyLayer,
    )
    if type(layer) not in known:
        raise InputError(
            f"model '{name}' keeps its state in a {type(layer).__name__}, which is none of keys and values, "
            "convolutions and recurrent states; plan for throughput or latency of one pass instead"
        )
    found: dict[str, Tensor] = {}
    if isinstance(layer, cache_utils.LinearAttentionLayer):
        for kind, states in (("conv", layer.conv_states), ("recurrent", layer.recurrent_states)):
            found |= {f"{kind}{number}": state for number, state in states.items() if state is not None}
    elif layer.keys is not None:
        found |= {"keys": layer.keys, "values": layer.values}
    return found


def cache_keyword(model: nn.Module) -> str:
    """Return the name of the argument by which a model takes its cache."""
    accepted = inspect.signature(model.forward).parameters
    return next(name for name in ("past_key_values", "cache_params") if name in accepted)


class FixedCacheModel(nn.Module):
    """A causal language model that takes tokens of some positions and its cache, and returns logits and the cache."""

    def __init__(self, model: Any, tensors: Sequence[CacheTensor], context: int) -> None:
        """Wrap a model for one size of its cache, see `cache_tensors`."""
        super().__init__()
        self.model = model
        self.tensors = tuple(tensors)
        self.context = context
        self.accepted = frozenset(inspect.signature(model.forward).parameters)
        self.keyword = cache_keyword(model)
        self.masked = False  # whether the model is given a mask of ones for all positions

    def forward(
        self, ids: Tensor, positions: Tensor, last: Tensor, active: Tensor, first: Tensor, caches: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run new tokens, at their positions, after those that the caches hold.

        Args:
            ids: [rows, tokens] int64; a row with fewer tokens than others is filled up with any.
            positions: [rows, tokens] int64; positions to be written again later serve tokens that fill up.
            last: [rows] int64, which token of each row the logits are of.
            active: [rows] bool, whether a row has tokens in this pass; others keep their states.
            first: [] int64, the position of the first token, where all rows have the same.
            caches: the tensors of the cache.

        Returns:
            The logits, [rows, vocabulary], and the tensors of the cache.
        """
        rows = Rows(positions, active, first)
        cache = self._cache(rows, caches)
        with masks_by_position(positions), heads_in_groups(), last_hidden(self.model, last) as taken:
            result = self.model(input_ids=ids, use_cache=True, **{self.keyword: cache}, **self._given(positions))
        logits = result.logits
        logits = logits[:, 0] if taken else logits[torch.arange(ids.shape[0]), last]
        return logits, after(self.tensors, cache)

    def _given(self, positions: Tensor) -> dict[str, Tensor]:
        """Return positions, and a mask if asked for, as far as the model takes them."""
        ones = torch.ones(positions.shape[0], self.context, dtype=torch.long, device=positions.device)
        given = {"position_ids": positions, **({"attention_mask": ones} if self.masked else {})}
        return {name: value for name, value in given.items() if name in self.accepted}

    def _cache(self, rows: Rows, caches: Sequence[Tensor]) -> Any:
        """Return transformers' cache over the tensors."""
        held: dict[int, dict[str, Tensor]] = {}
        for about, tensor in zip(self.tensors, caches, strict=True):
            held.setdefault(about.layer, {})[about.kind] = tensor
        layers: list[Any] = []
        for number, layer in enumerate(cache_utils.DynamicCache(config=self.model.config).layers):
            own = held.get(number, {})
            if "keys" in own:
                layers.append(FixedLayer(rows, own, self.context, getattr(layer, "is_sliding", False)))
            elif own:
                layers.append(LinearLayer(rows, own, layer.number_of_states))
            else:
                layers.append(layer)
        return cache_utils.Cache(layers=layers)


def after(tensors: Sequence[CacheTensor], cache: Any) -> list[Tensor]:
    """Return the tensors of a cache after a pass."""
    found = {number: cache.layers[number].after() for number in {about.layer for about in tensors}}
    return [found[about.layer][about.kind] for about in tensors]


@contextmanager
def last_hidden(model: Any, last: Tensor) -> Iterator[list[bool]]:
    """Let the output layer see one token of each row alone: logits of others would be computed in vain."""
    taken: list[bool] = []
    head = model.get_output_embeddings()

    def one_token(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        (hidden, *others) = args
        if hidden.dim() != 3:
            return None
        taken.append(True)
        index = last[:, None, None].expand(-1, 1, hidden.shape[-1])
        return (hidden.gather(1, index), *others)

    handle = head.register_forward_pre_hook(one_token) if head is not None else None
    try:
        yield taken
    finally:
        if handle is not None:
            handle.remove()


@contextmanager
def heads_in_groups() -> Iterator[None]:
    """Let heads that share keys and values be rows of one query, so that attention reads the cache as it lies.

    transformers does so for one token; for several, and while it is traced, it copies the cache for each head::

        queries [rows, groups × heads, tokens, width]  ──►  [rows, groups, heads × tokens, width]
    """

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any) -> Any:
        rows, heads, tokens, width = query.shape
        groups = key.shape[1]
        special = any(more.get(name) is not None for name in SPECIAL) or more.get("dropout")
        if groups == heads or mask is None or mask.shape[1] != 1 or special:
            return sdpa_attention.sdpa_attention_forward(module, query, key, value, mask, **more)
        found = torch.nn.functional.scaled_dot_product_attention(
            query.reshape(rows, groups, -1, width),
            key,
            value,
            attn_mask=mask.expand(-1, heads // groups, -1, -1).reshape(rows, 1, -1, mask.shape[-1]),
            scale=more.get("scaling"),
        )
        return found.reshape(rows, heads, tokens, -1).transpose(1, 2).contiguous(), None

    with _registered(modeling_utils.ALL_ATTENTION_FUNCTIONS, sdpa=attend):
        yield


@contextmanager
def masks_by_position(positions: Tensor) -> Iterator[None]:
    """Let transformers compute masks from the positions of each row, which need not follow one another."""

    def mask(
        batch_size: int,
        q_length: int,
        kv_length: int,
        kv_offset: int = 0,
        mask_function: Callable[..., Tensor] = masking_utils.causal_mask_function,
        attention_mask: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        if mask_function is masking_utils.bidirectional_mask_function and attention_mask is not None:
            return attention_mask[:, None, None, :kv_length].expand(batch_size, -1, q_length, kv_length)
        rows = torch.arange(batch_size, device=positions.device)[:, None, None, None]
        heads = torch.zeros(1, dtype=torch.long, device=positions.device)[:, None, None, None]
        keys = torch.arange(kv_length, device=positions.device)[None, None, None, :] + kv_offset
        return mask_function(rows, heads, positions[:, None, :, None], keys).expand(batch_size, -1, q_length, kv_length)

    def additive(*args: Any, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Tensor:
        allowed = mask(*args, **kwargs)
        zero = torch.zeros((), dtype=dtype, device=allowed.device)
        return torch.where(allowed, zero, torch.finfo(dtype).min)

    with _registered(masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, sdpa=mask, eager=additive):
        yield


@contextmanager
def _registered(registry: MutableMapping[str, Any], **functions: Callable[..., Any]) -> Iterator[None]:
    """Let a registry of transformers name these functions, of which it has its own where none is registered."""
    registry.update(functions)
    try:
        yield
    finally:
        for name in functions:
            del registry[name]
