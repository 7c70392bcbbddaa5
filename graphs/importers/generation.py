"""Imports a causal language model of transformers with its cache, at several sizes of a pass."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from graphs.common.checks import instance, integer, path
from graphs.common.errors import InputError
from graphs.importers.from_config import config_document, headed_module
from graphs.importers.from_torch import program_from_exported
from graphs.importers.source_location import untraceable
from graphs.importers.tracing_guards import contiguous_shown, in_mode, tracing
from graphs.ir import Op, Role
from graphs.program.arguments import Arguments
from graphs.program.expectations import KIND
from graphs.program.generation import GenerationProgram, Phase, unlike
from graphs.program.program import Program

if TYPE_CHECKING:
    from graphs.importers.fixed_cache import CacheTensor, FixedCacheModel

CONTEXT = 1024  # positions by default, unless the model has fewer
CHUNKS = (128, 16)  # tokens of a pass over a prompt by default
ONE_POSITION = "first"  # the input that only models with one position for all rows read


def generation_program(
    model: nn.Module | Path | str,
    *,
    rows: int = 1,
    context: int | None = None,
    chunks: Sequence[int] = CHUNKS,
    lengths: Sequence[int] = (),
) -> GenerationProgram:
    """Import a causal language model that generates, with its cache.

    Args:
        model: a module of transformers with a language-modelling head, or the path of a config.json, whose model has
            shapes and no weights.
        rows: sequences that one pass advances together; each has its own position.
        context: positions of the cache; by default those of the model, at most `CONTEXT`.
        chunks: tokens of a pass over a prompt, besides 1. Sizes that do not fit are left out: those beyond the context,
            and all of a model with a recurrent state, which reads its prompt token by token.
        lengths: fewer positions than the context that attention may read while a sequence is short.

    Returns:
        The model as programs; ``.decode`` is what a plan is made for.

    Raises:
        InputError: if the model is no causal language model, keeps its state in another way than in tensors of fixed
            size, or cannot be traced; or a number is out of range.
    """
    integer(rows, "the number of rows", least=1)
    if context is not None:
        integer(context, "the context", least=2)
    chunks, lengths = _sizes(chunks, "a chunk", 2), _sizes(lengths, "a length", 1)
    named = "a module of transformers, or the path of a config.json"
    module = model if isinstance(model, nn.Module) else _of_config(path(model, "the model", named))
    _check_model(module)
    context = _context(module, context)
    with in_mode(module, training=False):
        from graphs.importers.fixed_cache import cache_tensors  # late: loads transformers' caches

        tensors = cache_tensors(module, rows, context)
        recurrent = any(not tensor.grows for tensor in tensors)
        sizes = () if recurrent else chunks
        decode = _phase(module, tensors, rows, Phase(1, context))
        programs = {Phase(1, context): decode}
        for length in sorted({*(() if recurrent else lengths), context}):
            for tokens in sorted({1, *sizes}, reverse=True):
                phase = Phase(tokens, length)
                if tokens <= length <= context and phase not in programs:
                    program = _phase(module, tensors, rows, phase)
                    if unlike(program.graph, decode.graph) is None and _same_state(program, decode):
                        programs[phase] = program
    _check_positions(decode, rows, type(module).__name__)
    growing = {name for (name, _), about in zip(decode.graph.caches, tensors, strict=True) if about.grows}
    config: Any = _config(module).get_text_config(decoder=True)
    return GenerationProgram(
        module, programs, rows, context, int(config.vocab_size), frozenset(growing), _stops(module)
    )


def _sizes(given: Sequence[int], what: str, least: int) -> tuple[int, ...]:
    """Return numbers of tokens, checked."""
    instance(given, (tuple, list), f"{what}s", "a tuple of whole numbers")
    return tuple(integer(each, what, least) for each in given)


def _of_config(file: Path) -> nn.Module:
    """Return the module of a config.json with its head, without weights."""
    document = config_document(file)
    try:
        return headed_module(document)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _check_model(module: nn.Module) -> None:
    """Check that a module is a causal language model of transformers; raise InputError if it is not."""
    name = type(module).__name__
    accepted = inspect.signature(module.forward).parameters
    if not hasattr(module, "get_output_embeddings") or not hasattr(module, "config"):
        raise InputError(
            f"'{name}' is no language model of transformers, so its cache is not known; give one with a head, such as "
            "AutoModelForCausalLM, or plan for throughput or latency of one pass"
        )
    if _config(module).is_encoder_decoder:
        raise InputError(
            f"'{name}' has an encoder, and only decoders generate here; plan for throughput or latency of one pass"
        )
    if "input_ids" not in accepted or not {"past_key_values", "cache_params"} & accepted.keys():
        raise InputError(
            f"'{name}' takes {', '.join(accepted)}, and no cache from token to token; plan for throughput or latency "
            "of one pass instead"
        )


def _config(module: Any) -> Any:
    """Return the config of a model of transformers, which has no type here."""
    return module.config


def _context(module: Any, context: int | None) -> int:
    """Return the positions of the cache; raise InputError if the model has fewer."""
    config = module.config.get_text_config(decoder=True)
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    most = next((int(found) for name in names if (found := getattr(config, name, None))), None)
    if context is None:
        return min(CONTEXT, most or CONTEXT)
    if most is not None and context > most:
        raise InputError(
            f"the context is {context:,} positions, and '{type(module).__name__}' has {most:,}; ask for less"
        )
    return context


def _stops(module: Any) -> frozenset[int]:
    """Return the ids after which a model ends a sequence."""
    generation = getattr(module, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    ids = getattr(module.config, "eos_token_id", None) if ids is None else ids
    return frozenset(() if ids is None else [ids] if isinstance(ids, int) else ids)


def _phase(module: nn.Module, tensors: "Sequence[CacheTensor]", rows: int, phase: Phase) -> Program:
    """Trace a model at one size; raise InputError if that fails."""
    from graphs.importers.fixed_cache import FixedCacheModel  # late: loads transformers' caches

    name = type(module).__name__
    wrapper = FixedCacheModel(module, tensors, phase.length).eval()
    inputs = first_inputs(tensors, rows, phase, next(module.parameters()).device)
    found: list[Program] = []
    failures: list[BaseException] = []
    for masked in (False, True):  # some models take positions or biases from a mask, others from the cache
        wrapper.masked = masked
        try:
            program = without_dead_operators(program_from_exported(_exported(wrapper, inputs), name, wrapper))
        except (Exception, SystemExit) as error:  # whatever the model's code or torch's tracing raises
            failures.append(error)
            continue
        found.append(_with_caches(program, len(tensors)))
        if not _reads_one_position(program):
            return found[-1]
    if not found:
        reason = untraceable(failures[0], wrapper, Arguments((), inputs))
        raise InputError(f"model '{name}' cannot be traced with its cache{reason}") from failures[0]
    return found[0]


def _exported(wrapper: "FixedCacheModel", inputs: Mapping[str, Any]) -> ExportedProgram:
    with tracing(), contiguous_shown(), torch.no_grad():
        return torch.export.export(wrapper, (), dict(inputs), strict=False)


def first_inputs(
    tensors: "Sequence[CacheTensor]", rows: int, phase: Phase, device: torch.device
) -> dict[str, Tensor | list[Tensor]]:
    """Return inputs of one pass, with empty caches."""
    caches = [torch.zeros(each.shape_at(phase.length), dtype=each.dtype, device=device) for each in tensors]
    return {
        "ids": torch.zeros(rows, phase.tokens, dtype=torch.long, device=device),
        "positions": torch.arange(phase.tokens, device=device).repeat(rows, 1),
        "last": torch.zeros(rows, dtype=torch.long, device=device),
        "active": torch.ones(rows, dtype=torch.bool, device=device),
        ONE_POSITION: torch.zeros((), dtype=torch.long, device=device),
        "caches": caches,
    }


def _with_caches(program: Program, count: int) -> Program:
    """Return a program whose last inputs are caches, and whose last outputs are those of the next call."""
    before, after = program.in_leaves[-count:], program.out_leaves[-count:]
    pairs = tuple((str(one), str(other)) for one, other in zip(before, after, strict=True))
    names = {name for name, _ in pairs}
    tensors = tuple(replace(t, role=Role.CACHE) if t.name in names else t for t in program.graph.tensors)
    return replace(program, graph=replace(program.graph, tensors=tensors, caches=pairs))


def _reads_one_position(program: Program) -> bool:
    """Return whether an operator reads the position that all rows would have to share."""
    return any(ONE_POSITION in op.inputs for op in program.graph.ops)


def without_dead_operators(program: Program) -> Program:
    """Return a program without the operators whose results nobody reads; checks of values stay."""
    graph, needed = program.graph, set(program.graph.outputs)
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if op.kind == KIND or not needed.isdisjoint(op.outputs):
            kept.append(op)
            needed.update(op.inputs)
    used = {*graph.inputs, *graph.outputs, *(name for op in kept for name in (*op.inputs, *op.outputs))}
    tensors = tuple(tensor for tensor in graph.tensors if tensor.name in used)
    state = {name: tensor for name, tensor in program.state.items() if name in used}
    return replace(program, graph=replace(graph, ops=tuple(kept[::-1]), tensors=tensors), state=state)


def _same_state(one: Program, other: Program) -> bool:
    """Return whether two programs hold the same parameters, buffers and constants."""
    if one.state.keys() != other.state.keys():
        return False
    pairs = ((tensor, other.state[name]) for name, tensor in one.state.items())
    return all(a is b or (a.shape == b.shape and (a.is_meta or torch.equal(a, b))) for a, b in pairs)


def _check_positions(decode: Program, rows: int, name: str) -> None:
    """Check that a model takes the positions of all rows, if there are several; raise InputError if it does not."""
    if rows > 1 and _reads_one_position(decode):
        raise InputError(
            f"model '{name}' takes one position for all sequences of a pass, so they cannot be of unequal lengths; "
            "import it with rows=1"
        )
