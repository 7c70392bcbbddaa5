"""Prompts of sequences: token ids that a decoder continues, or sources for an encoder, checked."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch

from costmodels.workload import Workload
from graphs.common import checks
from graphs.common.errors import InputError
from graphs.program.generation import EncoderSource, GenerationProgram
from planner.runtime.generation.groups import Continuation
from planner.runtime.generation.sampling import Sampling

Prompt: TypeAlias = Sequence[int] | torch.Tensor
"""Token ids, or features for an encoder."""


def beginnings(
    model: GenerationProgram, prompts: Sequence[Prompt], decoder_ids: Iterable[Sequence[int]] | None
) -> list[Sequence[int]]:
    """Return the ids that the decoder of a model with an encoder begins with, for each prompt; empty without one.

    Raises:
        InputError: if ids are given for a model without an encoder, or not one list for each prompt.
    """
    if model.source is None:
        if decoder_ids is not None:
            raise InputError("decoder_ids are for models with an encoder; continue the prompts themselves")
        return [()] * len(prompts)
    if decoder_ids is None:
        if not model.source.start:
            raise InputError(
                "the model names no id that a continuation begins with; give decoder_ids, a list for each source"
            )
        return [model.source.start] * len(prompts)
    begun = [*checks.instance(decoder_ids, Iterable, "decoder_ids", "a list of ids for each source")]
    if len(begun) != len(prompts):
        raise InputError(f"there are {len(begun):,} decoder_ids for {len(prompts):,} sources; give one for each")
    return begun


def continuation(
    model: GenerationProgram, number: int, prompt: Prompt, begun: Sequence[int], choice: tuple[int, Sampling]
) -> Continuation:
    """Return the sequence of a prompt, which gets up to a number of tokens, chosen by a sampling.

    Raises:
        InputError: for an empty prompt, an id that is none of the vocabulary, a prompt that is too long for the context
            together with its continuation, or a source of another shape than the model's.
    """
    more, sampling = choice
    source = None if model.source is None else _source(model, model.source, prompt, number)
    name = f"prompt {number}" if source is None else f"beginning {number}"
    ids = _checked(model, prompt if source is None else begun, name, more)
    return Continuation(number, ids, more, sampling.generator(number), source=source)


def of_workload(model: GenerationProgram, workload: Workload) -> list[Continuation]:
    """Return the sequences of a group that a workload describes; their ids are zeros.

    A prompt is the source of a model with an encoder that reads texts; features have a size of their own.
    """
    source, prompt = model.source, torch.zeros(workload.prompt, dtype=torch.long)
    begun: Sequence[int] = (source.start or (0,)) if source else ()
    if source and not source.has_ids:
        prompt = torch.zeros(source.shape)
    choice = workload.output, Sampling()
    return [continuation(model, number, prompt, begun, choice) for number in range(model.rows)]


def _source(model: GenerationProgram, source: EncoderSource, given: Prompt, number: int) -> torch.Tensor:
    """Return what the encoder reads for one sequence."""
    if source.has_ids:
        ids = torch.tensor(_ids(model, given, f"source {number}"), dtype=source.dtype)
        if len(ids) > source.shape[0]:
            raise InputError(
                f"source {number} has {len(ids):,} tokens, and the model was imported for {source.shape[0]:,}; import "
                f"it with source={len(ids)}"
            )
        return ids
    features: torch.Tensor = checks.instance(given, torch.Tensor, f"source {number}", "a tensor of features")
    if tuple(features.shape) != source.shape:
        raise InputError(
            f"source {number} is {list(features.shape)}, and the model reads {list(source.shape)}; fill it up, as the "
            "model's own feature extractor does"
        )
    return features.detach().to("cpu", source.dtype)


def _checked(model: GenerationProgram, prompt: Prompt, name: str, more: int) -> list[int]:
    """Return the ids of a prompt, checked."""
    ids = _ids(model, prompt, name)
    if len(ids) + more - 1 > model.context:
        raise InputError(
            f"{name} has {len(ids):,} tokens and up to {more:,} more to come, and the plan's context is "
            f"{model.context:,}; ask for fewer, or import the model with a longer context"
        )
    return ids


def _ids(model: GenerationProgram, prompt: Prompt, name: str) -> list[int]:
    """Return ids of the vocabulary."""
    given = prompt.tolist() if isinstance(prompt, torch.Tensor) else prompt
    checks.instance(given, Iterable, name, "a list of ids for each sequence, such as [[1, 2, 3]]")
    ids = [checks.integer(each, f"an id of {name}") for each in given]
    if not ids:
        raise InputError(f"{name} is empty; give it the id that begins a text, at least")
    if (largest := max(ids)) >= model.vocabulary:
        raise InputError(
            f"{name} has the id {largest:,}, and the model knows those below {model.vocabulary:,}; "
            "use the tokenizer of this model"
        )
    return ids
