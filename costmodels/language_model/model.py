"""ModelDescription: a network that generates text, as far as memory and time depend on it. Layers may differ."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from costmodels.architecture import Architecture
from costmodels.language_model.feed_forward import Experts, FeedForward
from costmodels.language_model.formats import WeightFormat
from costmodels.language_model.mixers import Mixer
from costmodels.language_model.tensors import Part, WeightTensor
from graphs.common.brief import Brief
from graphs.common.checks import check_fields, integer
from graphs.common.errors import InputError

LAYER_PARTS = ("mixer", "dense", "router", "experts", "shared", "norm", "other")
KEPT_PRECISE = ("router", "norm")  # parts that no format of weights replaces
PASSIVE = ("vision", "draft")  # parts that text is generated without


@dataclass(frozen=True)
class DecoderLayer(Brief):
    """A layer: mixers, a feed-forward part, or both. Equal layers may be one object.

    Raises:
        InputError: for a tensor of a part that no layer has, or experts without tensors.
    """

    mixers: tuple[Mixer, ...]  # usually one; several work side by side
    feed_forward: FeedForward | None
    tensors: tuple[WeightTensor, ...]

    def __post_init__(self) -> None:
        check_fields(self, "a layer")
        other = next((tensor for tensor in self.tensors if tensor.part not in LAYER_PARTS), None)
        if other is not None:
            raise InputError(
                f"the tensor '{other.name}' of a layer is of the part '{other.part}'; give one of "
                f"{', '.join(LAYER_PARTS)}"
            )
        if isinstance(self.feed_forward, Experts) != any(tensor.part == "experts" for tensor in self.tensors):
            raise InputError("a layer has experts and no tensors of experts, or the reverse; give both or neither")

    @cached_property
    def parameters(self) -> int:
        """Elements of all tensors but those of an earlier layer."""
        return sum(tensor.elements for tensor in self.own_tensors)

    @cached_property
    def own_tensors(self) -> tuple[WeightTensor, ...]:
        """The tensors without those that are an earlier layer's."""
        return tuple(tensor for tensor in self.tensors if tensor.owner < 0)

    @cached_property
    def active_parameters(self) -> float:
        """Elements that one token is computed with."""
        return self.parameters - self.part_parameters("experts") * (1 - self.active_share)

    @cached_property
    def active_share(self) -> float:
        """Share of the experts that one token takes; 1 without experts."""
        own = self.feed_forward
        return own.active / own.count if isinstance(own, Experts) else 1.0

    @cached_property
    def bytes(self) -> int:
        """Bytes of all tensors but those of an earlier layer."""
        return sum(tensor.bytes for tensor in self.own_tensors)

    def part_parameters(self, *parts: Part) -> int:
        """Return the elements of these parts."""
        return sum(tensor.elements for tensor in self.own_tensors if tensor.part in parts)

    def part_bytes(self, *parts: Part) -> int:
        """Return the bytes of these parts."""
        return sum(tensor.bytes for tensor in self.own_tensors if tensor.part in parts)

    def cache_bytes(self, tokens: int, value_bytes: float) -> float:
        """Return the bytes that a sequence of this length keeps, at ``value_bytes`` for each cached value."""
        return sum(mixer.cache_bytes(tokens, value_bytes) for mixer in self.mixers)


@dataclass(frozen=True)
class ModelDescription(Brief):
    """A network that generates text.

    Raises:
        InputError: for a count below its least, no layer, or no embedding.
    """

    name: str  # of the file, or of the model in it
    hidden: int  # values of a token between layers
    vocabulary: int  # words
    layers: tuple[DecoderLayer, ...]
    tensors: tuple[WeightTensor, ...]  # besides the layers: embedding, head, last norm, vision, ...
    layer_prefix: str = "model.layers."  # of a layer's tensors, before its number: "model.layers.", "blk."
    tied: bool = False  # whether the head is the embedding's weights, which are there once
    trained_tokens: int = 0  # context that the model was trained for; 0 if the file does not say
    architecture: Architecture | None = None  # what costs do not depend on, if it is known
    assumed: tuple[str, ...] = ()  # defaults of transformers for sizes that its config.json leaves out

    def __post_init__(self) -> None:
        check_fields(self, "the language model")
        for name, least in (("hidden", 1), ("vocabulary", 1), ("trained_tokens", 0)):
            integer(getattr(self, name), f"the language model '{self.name}': {name}", least)
        if not self.layers:
            raise InputError(f"the language model '{self.name}' has no layers; give at least one")
        if not any(tensor.part == "embedding" for tensor in self.tensors):
            raise InputError(f"the language model '{self.name}' has no embedding; give the tensor of words")

    def named_tensors(self) -> Iterator[tuple[str, WeightTensor]]:
        """Yield every tensor by its whole name, once: those besides the layers, then layer by layer."""
        for tensor in self.tensors:
            yield tensor.name, tensor
        for number, layer in enumerate(self.layers):
            for tensor in layer.own_tensors:
                yield f"{self.layer_prefix}{number}.{tensor.name}", tensor

    @cached_property
    def parameters(self) -> int:
        """Elements of all tensors; those of a tied head count once."""
        return sum(tensor.elements for tensor in self.tensors) + sum(layer.parameters for layer in self.layers)

    @cached_property
    def active_parameters(self) -> int:
        """Elements that one token is computed with, its embedding's whole table included."""
        own = sum(tensor.elements for tensor in self.tensors if tensor.part not in PASSIVE)
        return round(own + sum(layer.active_parameters for layer in self.layers))

    @cached_property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors) + sum(layer.bytes for layer in self.layers)

    def part_parameters(self, *parts: Part) -> int:
        """Return the elements of these parts, in and besides the layers."""
        own = sum(tensor.elements for tensor in self.tensors if tensor.part in parts)
        return own + sum(layer.part_parameters(*parts) for layer in self.layers)

    def part_bytes(self, *parts: Part) -> int:
        """Return the bytes of these parts, in and besides the layers."""
        own = sum(tensor.bytes for tensor in self.tensors if tensor.part in parts)
        return own + sum(layer.part_bytes(*parts) for layer in self.layers)

    @property
    def embedding_bytes(self) -> int:
        """Bytes of the embeddings, which lie where the first layer does."""
        return sum(tensor.bytes for tensor in self.tensors if tensor.part == "embedding")

    @property
    def head_tensor(self) -> WeightTensor:
        """The tensor that gives a score to each word: the head's own, or the embedding of a tied head."""
        wanted = "embedding" if self.tied else "head"
        found = [tensor for tensor in self.tensors if tensor.part == wanted and len(tensor.shape) == 2]
        if not found:
            raise InputError(f"the language model '{self.name}' has no head; give the tensor '{wanted}'")
        return max(found, key=lambda tensor: (self.vocabulary in tensor.shape, tensor.elements))

    @property
    def head_flops(self) -> float:
        """FLOP of the scores of all words for one token."""
        return 2.0 * self.head_tensor.elements

    def cache_bytes(self, tokens: int, value_bytes: float) -> float:
        """Return the bytes that a sequence of this length keeps, at ``value_bytes`` for each cached value."""
        return sum(layer.cache_bytes(tokens, value_bytes) for layer in self.layers)

    def with_weights(self, weights: WeightFormat) -> "ModelDescription":
        """Return the model with its products and embeddings in another format; routers, norms and vectors stay."""
        changed: dict[int, DecoderLayer] = {}
        for layer in self.layers:
            if id(layer) not in changed:
                changed[id(layer)] = replace(layer, tensors=_in_format(layer.tensors, weights))
        return replace(
            self,
            tensors=_in_format(self.tensors, weights),
            layers=tuple(changed[id(layer)] for layer in self.layers),
        )


def _in_format(tensors: tuple[WeightTensor, ...], weights: WeightFormat) -> tuple[WeightTensor, ...]:
    return tuple(
        replace(tensor, format=weights)
        if len(tensor.shape) >= 2 and tensor.part not in (*KEPT_PRECISE, *PASSIVE)
        else tensor
        for tensor in tensors
    )
