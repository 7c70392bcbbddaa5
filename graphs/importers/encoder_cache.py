"""A language model of transformers with an encoder, whose keys and values of the source are caches too.

The encoder reads the source of one row and writes the keys and values that the decoder's layers attend to; the decoder
reads them in each of its passes. Both are in one network, and a pass runs one of the two (see `graphs.caches`)::

    source, row ──► encoder ──► keys and values of the source ──► row of the caches
    ids, positions, caches ──► decoder ──► logits, caches
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import cache_utils
from transformers.modeling_outputs import BaseModelOutput

from graphs.common.errors import InputError
from graphs.importers.fixed_cache import (
    CacheTensor,
    FixedLayer,
    Rows,
    after,
    last_hidden,
    masks_by_position,
    tensors_of,
)
from graphs.importers.tracing_guards import as_exported, quiet
from graphs.program.generation import EncoderSource


class Encoded:
    """Shapes of a model, from a run on fake tensors: its caches, and the width of its encoder's result."""

    def __init__(self, model: Any, source: EncoderSource, rows: int, context: int) -> None:
        """Run a model once, for its shapes; raise InputError if its caches are no keys and values."""
        name = type(model).__name__
        device = next(model.parameters()).device
        with quiet(), as_exported(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
            read = torch.zeros(1, *source.shape, dtype=source.dtype, device=device)
            start = torch.zeros(1, 1, dtype=torch.long, device=device)
            result = model(**{model.main_input_name: read}, decoder_input_ids=start, use_cache=True)
        both = result.past_key_values
        if not isinstance(both, cache_utils.EncoderDecoderCache):
            raise InputError(
                f"model '{name}' keeps its state in a {type(both).__name__}, and one with an encoder needs keys and "
                "values of its source; plan for throughput or latency of one pass instead"
            )
        self.width = int(result.encoder_last_hidden_state.shape[-1])
        own = tensors_of(both.self_attention_cache, name, context)
        self.positions = int(result.encoder_last_hidden_state.shape[-2])
        encoded = tensors_of(both.cross_attention_cache, name, self.positions)
        self.own, self.encoded = (
            tuple(replace(tensor, shape=(rows, *tensor.shape[1:]), is_encoded=is_encoded) for tensor in tensors)
            for tensors, is_encoded in ((own, False), (encoded, True))
        )
        self.tensors = (*self.own, *self.encoded)
        if not all(tensor.kind in ("keys", "values") for tensor in self.tensors):
            raise InputError(
                f"model '{name}' has an encoder and states besides keys and values; plan for throughput or latency of "
                "one pass instead"
            )


class EncodedCacheModel(nn.Module):
    """A language model with an encoder that takes a source, tokens and its caches, and returns logits and caches."""

    def __init__(self, model: Any, source: EncoderSource, about: Encoded, context: int) -> None:
        """Wrap a model for one size of its caches."""
        super().__init__()
        self.model = model
        self.source = source
        self.about = about
        self.context = context
        self.accepted = frozenset(inspect.signature(model.forward).parameters)
        self.masked = False  # whether the decoder is given a mask of ones for all positions

    def forward(self, **inputs: Any) -> tuple[Tensor, list[Tensor]]:
        """Encode the source of one row for later passes, and run new tokens with the sources of earlier ones.

        Args:
            inputs: ``ids``, ``positions``, ``last``, ``active`` and ``first`` as for
                `graphs.importers.fixed_cache.FixedCacheModel`; ``source`` [1, ...], ids of a text, filled up with any,
                or features; ``source_tokens`` [1] int64, how many of its ids count; ``row`` [1] int64, whose source it
                is; ``read`` [rows] int64, how many positions of each row's source count; and ``caches``, the tensors of
                the cache, those of sources last.

        Returns:
            The logits, [rows, vocabulary], and the tensors of the cache.
        """
        caches: Sequence[Tensor] = inputs["caches"]
        rows = Rows(inputs["positions"], inputs["active"], inputs["first"])
        n_own = len(self.about.own)
        own, encoded = caches[:n_own], caches[n_own:]
        logits, own_after = self._decode(rows, inputs["ids"], inputs["last"], inputs["read"], (own, encoded))
        new = self._encode(inputs["source"], inputs["source_tokens"])
        written = [
            torch.ops.aten.index_put(old, [inputs["row"]], one.to(old.dtype))
            for old, one in zip(encoded, new, strict=True)
        ]
        return logits, [*own_after, *written]

    def _encode(self, source: Tensor, source_tokens: Tensor) -> list[Tensor]:
        """Return the keys and values of a source; what else a token of the decoder computes is left out later."""
        given = {self.model.main_input_name: source}
        if self.source.has_ids:
            given["attention_mask"] = _mask(source_tokens, source.shape[1])
        start = torch.zeros(1, 1, dtype=torch.long, device=source.device)
        cache = self.model(**given, decoder_input_ids=start, use_cache=True).past_key_values.cross_attention_cache
        return [getattr(cache.layers[tensor.layer], tensor.kind) for tensor in self.about.encoded]

    def _decode(
        self, rows: Rows, ids: Tensor, last: Tensor, read: Tensor, caches: tuple[Sequence[Tensor], Sequence[Tensor]]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the logits and the tensors of the decoder's own cache, the first one; the second is of the sources."""
        own, encoded = caches
        about = self.about.own
        layers = {tensor.layer: tensor.is_sliding for tensor in about}
        cache = cache_utils.Cache(
            layers=[FixedLayer(rows, _of_layer(about, own, n), self.context, layers[n]) for n in sorted(layers)]
        )
        cross = cache_utils.Cache(layers=[_known(_of_layer(self.about.encoded, encoded, n)) for n in sorted(layers)])
        length = encoded[0].shape[2]
        hidden = torch.zeros(ids.shape[0], length, self.about.width, dtype=self.model.dtype, device=ids.device)
        ones = torch.ones(ids.shape[0], self.context, dtype=torch.long, device=ids.device)
        given = {
            "encoder_outputs": BaseModelOutput(last_hidden_state=hidden),
            "decoder_position_ids": rows.positions,
            **({"attention_mask": _mask(read, length)} if self.source.has_ids else {}),
            **({"decoder_attention_mask": ones} if self.masked else {}),
        }
        given = {name: value for name, value in given.items() if name in self.accepted}
        both = cache_utils.EncoderDecoderCache(cache, cross)
        placed = positions_by_row(self.model, rows.positions)
        with placed, masks_by_position(rows.positions), last_hidden(self.model, last) as taken:
            logits = self.model(decoder_input_ids=ids, past_key_values=both, use_cache=True, **given).logits
        logits = logits[:, 0] if taken else logits[torch.arange(ids.shape[0]), last]
        return logits, after(about, cache)


@contextmanager
def positions_by_row(model: nn.Module, positions: Tensor) -> Iterator[None]:
    """Let modules that take one position for all rows take those of each row, [rows, tokens].

    These are tables of positions, and biases by distance, for which transformers passes the number of cached tokens.
    """

    def given(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return args, {**kwargs, "position_ids": positions}

    def shaped(_: nn.Module, __: Any, result: Tensor) -> Tensor:
        return result.reshape(*positions.shape, -1)

    def biased(bias: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def rows(*args: Any, **kwargs: Any) -> Tensor:
            return torch.cat([bias(*args, **{**kwargs, "past_seen_tokens": row[0]}) for row in positions])

        return rows

    with ExitStack() as stack:
        for module in model.modules():
            bias = getattr(module, "compute_bias", None)
            if {"position_ids", "past_key_values_length"} <= inspect.signature(module.forward).parameters.keys():
                stack.callback(module.register_forward_pre_hook(given, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(shaped).remove)
            if bias is not None and "past_seen_tokens" in inspect.signature(bias).parameters:
                setattr(module, "compute_bias", biased(bias))  # noqa: B010  # the class has it, the type has not
                stack.callback(delattr, module, "compute_bias")
        yield


def _mask(counts: Tensor, length: int) -> Tensor:
    """Return which positions count, [rows, length] bool: the first ones of each row."""
    return torch.arange(length, device=counts.device)[None] < counts[:, None]


def _of_layer(about: Sequence[CacheTensor], tensors: Sequence[Tensor], layer: int) -> dict[str, Tensor]:
    """Return the tensors of one layer of a cache by their kinds."""
    return {one.kind: tensor for one, tensor in zip(about, tensors, strict=True) if one.layer == layer}


def _known(held: dict[str, Tensor]) -> Any:
    """Return a layer of a cache that has its keys and values."""
    layer = cache_utils.DynamicLayer()
    layer.keys, layer.values, layer.is_initialized = held["keys"], held["values"], True
    return layer
