"""Puts a language model together from the tensors of a file and what else the file says.

::

    tensors ─► by layer ─► part of each ─► experts of a layer as one ─► DecoderLayer ─┐
    facts   ─► mixers of a layer, sizes ──────────────────────────────────────────────┴─► ModelDescription

Facts come from a config.json or from the keys of a .gguf; tensors come from the network that transformers builds, or
from headers. Equal layers become one object.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Protocol

from costmodels.architecture import Architecture
from costmodels.language_model.feed_forward import Dense, Experts, FeedForward
from costmodels.language_model.mixers import Mixer
from costmodels.language_model.model import DecoderLayer, ModelDescription
from costmodels.language_model.parts import part_besides_layers, part_in_layer
from costmodels.language_model.stored_tensor import StoredTensor
from costmodels.language_model.tensors import Part, WeightTensor
from graphs.common.errors import InputError

IN_LAYER = re.compile(r"((?:.*?\.)?(?:layers|h|blocks|block|blk|layer)\.)(\d+)\.(.+)", re.DOTALL)
_ASIDE = re.compile("bias|adapter")
_EXPERT = re.compile(r"(.*\bexperts)\.(\d+)\.(.*)", re.DOTALL)
_ELSEWHERE = re.compile(r"vision|visual|image|audio|encoder|tower|projector|connector|resampler|(^|\.)(mtp|v|mm|vit)\.")
MOST_UNKNOWN = 0.02  # share of a layer's elements whose part need not be known
GATED_FROM = 2.5  # matrices of a feed-forward part; gated ones have three


class Facts(Protocol):
    """Facts of a model that do not follow from its tensors."""

    name: str
    hidden: int
    vocabulary: int
    layers: int
    experts: int  # of a layer; 0 for none
    active_experts: int
    tied: bool
    trained_tokens: int
    architecture: Architecture | None

    def mixers(self, layer: int, tensors: Sequence[WeightTensor]) -> tuple[Mixer, ...]:
        """Return the mixers of a layer that has these tensors in its mixers."""


def assembled(tensors: Iterable[StoredTensor], facts: Facts) -> ModelDescription:
    """Return the language model of these tensors and facts.

    Raises:
        InputError: if layers are missing, a tensor is of no known part, or sizes contradict each other.
    """
    prefix, by_layer, besides = _divided(tuple(tensors), facts)
    made: dict[tuple[object, ...], DecoderLayer] = {}
    layers = []
    for number in range(facts.layers):
        own = _parts_of(by_layer.get(number, ()), facts, f"{prefix}{number}")
        mixers = facts.mixers(number, [tensor for tensor in own if tensor.part in ("mixer", "norm")])
        key = (mixers, own)
        if key not in made:
            made[key] = DecoderLayer(mixers, _feed_forward(own, facts), own)
        layers.append(made[key])
    outer = tuple(WeightTensor(each.name, each.shape, each.format, _outer_part(each.name, prefix)) for each in besides)
    has_head = any(tensor.part == "head" for tensor in outer)
    return ModelDescription(
        name=facts.name,
        hidden=facts.hidden,
        vocabulary=facts.vocabulary,
        layers=tuple(layers),
        tensors=outer,
        layer_prefix=prefix,
        tied=facts.tied or not has_head,
        trained_tokens=facts.trained_tokens,
        architecture=facts.architecture,
    )


def _divided(
    tensors: Sequence[StoredTensor], facts: Facts
) -> tuple[str, Mapping[int, Sequence[StoredTensor]], Sequence[StoredTensor]]:
    """Return the prefix of the layers' names, the tensors of each layer by the names within it, and all others."""
    stacks: dict[str, dict[int, list[StoredTensor]]] = defaultdict(lambda: defaultdict(list))
    matches = [IN_LAYER.fullmatch(tensor.name) for tensor in tensors]
    for tensor, match in zip(tensors, matches, strict=True):
        if match is not None:
            stacks[match[1]][int(match[2])].append(replace(tensor, name=match[3]))
    fitting = [prefix for prefix, stack in stacks.items() if len(stack) >= facts.layers]
    fitting = [prefix for prefix in fitting if not _ELSEWHERE.search(prefix)] or fitting
    if not fitting:
        have = max(map(len, stacks.values()), default=0)
        raise InputError(
            f"'{facts.name}' says that it has {facts.layers} layers, and its tensors are of {have}; load all files of "
            "the model"
        )
    prefix = max(fitting, key=lambda prefix: sum(_elements(own) for own in stacks[prefix].values()))
    besides = [
        tensor
        for tensor, match in zip(tensors, matches, strict=True)
        if match is None or match[1] != prefix or int(match[2]) >= facts.layers
    ]
    return prefix, stacks[prefix], besides


def _outer_part(name: str, prefix: str) -> Part:
    """Return the part of a tensor besides the layers; later layers with the same prefix guess further tokens."""
    if name.startswith(prefix):
        return "draft"
    root = prefix.rstrip(".").rpartition(".")[0]
    return part_besides_layers(name.removeprefix(f"{root}.") if root else name)


def _parts_of(tensors: Sequence[StoredTensor], facts: Facts, layer: str) -> tuple[WeightTensor, ...]:
    stacked = _stacked(tensors, layer)
    named = [(each, _known_part(each.name, each.shape)) for each in stacked]
    has_experts = any(part == "experts" for _, part in named)
    own = []
    for each, part in named:
        if has_experts and part == "dense":
            part = "shared"  # it works next to the experts, for every token
        elif part == "shared" and not has_experts:
            part = "dense"
        shape = each.shape
        if part == "experts" and 0 < facts.experts < shape[0] and len(shape) == 2 and "bias" not in each.name:
            shape = (facts.experts, shape[0] // facts.experts, *shape[1:])  # all experts in one matrix
        own.append(WeightTensor(each.name, shape, each.format, part, each.owner))
    _check_known(own, layer)
    return tuple(own)


_known_part = lru_cache(maxsize=None)(part_in_layer)


def _stacked(tensors: Sequence[StoredTensor], layer: str) -> list[StoredTensor]:
    """Return the tensors, those of single experts as one tensor for all experts."""
    single: list[StoredTensor] = []
    experts: dict[str, list[StoredTensor]] = defaultdict(list)
    for tensor in tensors:
        match = _EXPERT.fullmatch(tensor.name)
        if match is None:
            single.append(tensor)
        else:
            experts[f"{match[1]}.{match[3]}"].append(tensor)
    for name, each in experts.items():
        first = each[0]
        other = next((one for one in each if (one.shape, one.format) != (first.shape, first.format)), None)
        if other is not None:
            raise InputError(
                f"the experts of '{layer}' differ: '{first.name}' has {first.shape} in {first.format.name}, and "
                f"'{other.name}' has {other.shape} in {other.format.name}; take a model whose experts are alike"
            )
        single.append(StoredTensor(name, (len(each), *first.shape), first.format))
    return single


def _check_known(tensors: Sequence[WeightTensor], layer: str) -> None:
    unknown = [tensor for tensor in tensors if tensor.part == "other"]
    if _elements(unknown) > MOST_UNKNOWN * _elements(tensors):
        worst = max(unknown, key=lambda tensor: tensor.elements)
        raise InputError(
            f"the tensor '{layer}.{worst.name}' with {worst.elements:,} elements is of no part of a layer that is "
            "known here (attention, recurrence, feed-forward, experts, router, norm); give the network as "
            "package.module:factory, which is planned operator by operator"
        )


def _feed_forward(tensors: Sequence[WeightTensor], facts: Facts) -> FeedForward | None:
    experts = [tensor for tensor in _matrices(tensors, "experts") if len(tensor.shape) == 3]
    if not experts:
        dense = [tensor.shape for tensor in _matrices(tensors, "dense")]
        return Dense(*_width(dense, facts.hidden)) if dense else None
    width, gated = _width([tensor.shape[1:] for tensor in experts], facts.hidden)
    shared = _elements(_matrices(tensors, "shared")) // ((3 if gated else 2) * facts.hidden)
    count = experts[0].shape[0]
    return Experts(count, min(count, facts.active_experts or 1), width, gated, shared)


def _matrices(tensors: Sequence[WeightTensor], part: Part) -> list[WeightTensor]:
    """Return the matrices of a part: no biases, no adapters of low rank, and no gates of a single value."""
    return [
        tensor
        for tensor in tensors
        if tensor.part == part and len(tensor.shape) >= 2 and min(tensor.shape) > 1 and not _ASIDE.search(tensor.name)
    ]


def _width(shapes: Sequence[Sequence[int]], hidden: int) -> tuple[int, bool]:
    """Return the width of a feed-forward part and whether it is gated, by the shapes of its matrices.

    A matrix has the hidden size on one axis; on the other axis it has the width, or twice the width if it holds the
    gate as well.
    """
    others = [shape[0] * shape[1] // hidden if hidden in shape else max(shape) for shape in map(tuple, shapes)]
    width = min(others)
    return width, sum(others) >= GATED_FROM * width


def _elements(tensors: Iterable[StoredTensor | WeightTensor]) -> int:
    return sum(prod(tensor.shape) for tensor in tensors)
