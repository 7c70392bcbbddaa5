"""A language model as JSON, without its weights and its program for one token, which the same document has."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from graphs.files import graph_from_dict, graph_to_dict
from graphs.phases import Phase
from graphs.program.files import program_from_dict, program_to_dict
from graphs.program.generation import EncoderSource, GenerationProgram
from graphs.program.program import Program


def phases_to_dict(model: GenerationProgram) -> dict[str, Any]:
    """Return a model as JSON; phases whose program is that of one token at the whole context have sizes alone."""
    source = model.source
    return {
        "rows": model.rows,
        "context": model.context,
        "vocabulary": model.vocabulary,
        "growing": sorted(model.growing),
        "stops": sorted(model.stops),
        "source": source and [source.shape, str(source.dtype).removeprefix("torch."), source.start],
        "phases": [
            {"size": list(phase)}
            | (
                {}
                if program is model.decode
                else {"graph": graph_to_dict(program.graph), "program": program_to_dict(program)}
            )
            for phase, program in model.phases.items()
        ],
    }


def phases_from_dict(document: Mapping[str, Any], decode: Program) -> GenerationProgram:
    """Return the model whose program for one token is given; its phases share the weights of that, and its module.

    Raises:
        InputError: if a phase is no phase of this network, or the document is malformed.
    """
    phases, source = {}, document["source"]
    for each in document["phases"]:
        if "graph" not in each:
            phases[Phase(*each["size"])] = decode
            continue
        graph = graph_from_dict(each["graph"])
        tensors = [graph.tensor[name] for name in graph.inputs]
        inputs = tuple(torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype)) for tensor in tensors)
        phases[Phase(*each["size"])] = replace(program_from_dict(each["program"], graph, inputs), state=decode.state)
    return GenerationProgram(
        decode.module,
        phases,
        document["rows"],
        document["context"],
        document["vocabulary"],
        frozenset(document["growing"]),
        frozenset(document["stops"]),
        source and EncoderSource(tuple(source[0]), getattr(torch, source[1]), tuple(source[2])),
    )
