"""A language model as JSON, without its weights and its program for one token, which the same document has."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from graphs.files import graph_from_dict, graph_to_dict
from graphs.phases import Phase
from graphs.program.files import program_from_dict, program_to_dict
from graphs.program.generation import GenerationProgram
from graphs.program.program import Program


def phases_to_dict(model: GenerationProgram) -> dict[str, Any]:
    """Return a model as JSON, with all phases but that of one token at the whole context."""
    return {
        "rows": model.rows,
        "context": model.context,
        "vocabulary": model.vocabulary,
        "growing": sorted(model.growing),
        "stops": sorted(model.stops),
        "phases": [
            {"size": list(phase), "graph": graph_to_dict(program.graph), "program": program_to_dict(program)}
            for phase, program in model.phases.items()
            if program is not model.decode
        ],
    }


def phases_from_dict(document: Mapping[str, Any], decode: Program) -> GenerationProgram:
    """Return the model whose program for one token is given; its phases share the weights of that, and its module.

    Raises:
        InputError: if a phase is no phase of this network, or the document is malformed.
    """
    phases = {}
    for each in document["phases"]:
        graph = graph_from_dict(each["graph"])
        tensors = [graph.tensor[name] for name in graph.inputs]
        inputs = tuple(torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype)) for tensor in tensors)
        phases[Phase(*each["size"])] = replace(program_from_dict(each["program"], graph, inputs), state=decode.state)
    return GenerationProgram(
        decode.module,
        {**phases, Phase(1, document["context"]): decode},
        document["rows"],
        document["context"],
        document["vocabulary"],
        frozenset(document["growing"]),
        frozenset(document["stops"]),
    )
