"""Imports a language model from a .pt2 file that was exported with its cache."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import fx

from graphs.common.errors import InputError, first_line, foreign_code
from graphs.common.shortages import failures
from graphs.importers.exported_cache import ExportedCache, ExportedCacheModel, cache_of
from graphs.importers.phase_programs import is_phase_of, phase_program
from graphs.importers.pt2_files import opened_pt2
from graphs.importers.tracing_guards import quiet
from graphs.program.generation import GenerationProgram, Phase
from graphs.program.program import Program

CLONE, COPY = "aten.clone.default", "aten.copy.default"


def exported_generation(file: Path, rows: int, context: int | None, chunks: Sequence[int]) -> GenerationProgram:
    """Import a .pt2 that keeps its cache in buffers; see `planner.generation_program`.

    A pass has as many tokens as a call of the export may have. An export with a fixed number, such as 1, reads its
    prompt in passes of that.

    Raises:
        InputError: if it has no cache, or is for several sequences or another context.
    """
    exported = opened_pt2(file)
    try:
        with quiet():
            module = exported.module()
        assert isinstance(module, fx.GraphModule)
        about = cache_of(exported, module)
    except InputError as error:
        raise InputError(f"'{file}' cannot generate: {error}") from error
    _check_sizes(file, about, rows, context)
    model, one = ExportedCacheModel(module, about), Phase(1, about.context)
    with foreign_code(lambda error: f"'{file}' cannot be traced with its cache: {first_line(error)}"):
        decode = _phase(model, one, file.stem)
    phases = {one: decode}
    for size in about.sizes(chunks):
        with failures():  # a size that the export's own conditions refuse
            program = _phase(model, Phase(size, about.context), file.stem)
            if is_phase_of(program, decode):
                phases[Phase(size, about.context)] = program
    names = zip(about.state, decode.graph.caches, strict=True)
    growing = {cache for path, (cache, _) in names if about.places.get(path) == 2}
    growing = {cache for cache in growing if decode.graph.tensor[cache].shape[2] == about.context}
    logits = next(name for name in decode.out_leaves if isinstance(name, str))
    return GenerationProgram(model, phases, 1, about.context, decode.graph.tensor[logits].shape[-1], frozenset(growing))


def _check_sizes(file: Path, about: ExportedCache, rows: int, context: int | None) -> None:
    """Check what is asked for against what a file has; raise InputError if it is another."""
    if rows != 1:
        raise InputError(
            f"{rows:,} rows are asked for, and '{file}' was exported for one sequence; leave rows out: each of "
            "several sequences is a group"
        )
    if context not in (None, about.context):
        raise InputError(
            f"the context is {context:,} positions, and '{file}' was exported for {about.context:,}; leave it out, or "
            "export it with a longer cache"
        )


def _phase(model: ExportedCacheModel, phase: Phase, name: str) -> Program:
    """Trace a model at one size."""
    state = model.about.state.values()
    place = next(iter(state)).device
    inputs = {
        "ids": torch.zeros(1, phase.tokens, dtype=torch.long, device=place),
        "positions": torch.arange(phase.tokens, device=place)[None],
        "last": torch.zeros(1, dtype=torch.long, device=place),
        "caches": [torch.zeros_like(each) for each in state],
    }
    return phase_program(model, inputs, name, without_copies)


def without_copies(program: Program) -> Program:
    """Return a program without copies of its inputs and buffers, and of results into others as they are.

    A graph of functions needs none: only an operator in place would tell them apart.
    """
    same: dict[str, str] = {}
    for op in program.graph.ops:
        if op.kind not in (CLONE, COPY):
            continue
        node, read = program.calls[op.name].node, op.inputs[-1]
        before, after = node.all_input_nodes[-1].meta["val"], node.meta["val"]
        of_input = op.kind == COPY or read not in program.graph.writer
        if of_input and (before.dtype, before.shape, before.stride()) == (after.dtype, after.shape, after.stride()):
            same[op.outputs[0]] = same.get(read, read)

    def name(tensor: str) -> str:
        return same.get(tensor, tensor)

    graph = program.graph
    ops = [op for op in graph.ops if op.outputs[0] not in same]
    renamed = replace(
        graph,
        ops=tuple(replace(op, inputs=tuple(map(name, op.inputs))) for op in ops),
        tensors=tuple(tensor for tensor in graph.tensors if tensor.name not in same),
        outputs=tuple(map(name, graph.outputs)),
    )
    return replace(
        program,
        graph=renamed,
        calls={op.name: program.calls[op.name] for op in ops},
        tensor_of={node: name(tensor) for node, tensor in program.tensor_of.items()},
        out_leaves=tuple(name(leaf) if isinstance(leaf, str) else leaf for leaf in program.out_leaves),
    )
