"""Imports a language model of transformers with its cache, at several sizes of a pass."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphs.common.checks import instance, integer, path
from graphs.common.errors import InputError
from graphs.common.shortages import failures
from graphs.importers.config_inputs import example_inputs, position_limits
from graphs.importers.exported_generation import exported_generation
from graphs.importers.from_config import config_document, headed_module
from graphs.importers.phase_programs import is_phase_of, phase_program
from graphs.importers.source_location import untraceable
from graphs.importers.tracing_guards import in_mode
from graphs.program.arguments import Arguments
from graphs.program.generation import EncoderSource, GenerationProgram, Phase
from graphs.program.program import Program

if TYPE_CHECKING:
    from graphs.importers.fixed_cache import CacheTensor

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
    source: int | None = None,
) -> GenerationProgram:
    """Import a language model that generates, with its cache: a causal one, or one with an encoder.

    Args:
        model: a module of transformers with a language-modelling head, the path of a config.json, whose model has
            shapes and no weights, or of a .pt2 that was exported with its cache.
        rows: sequences that one pass advances together; each has its own position.
        context: positions of the cache; by default those of the model, at most `CONTEXT`.
        chunks: tokens of a pass over a prompt, besides 1. Sizes that do not fit are left out: those beyond the context,
            and all of a model with a recurrent state, which reads its prompt token by token.
        lengths: fewer positions than the context that attention may read while a sequence is short.
        source: most tokens of a text that an encoder reads; by default the context. Shorter ones are filled up to a
            chunk. Features, such as a spectrogram, have the size that the model's config names.

    A .pt2 has a context and numbers of tokens of its own, and one row.

    Returns:
        The model as programs; ``.decode`` is what a plan is made for.

    Raises:
        InputError: if the model is no language model, keeps its state in another way than in tensors of fixed
            size, or cannot be traced; or a number is out of range.
    """
    integer(rows, "the number of rows", least=1)
    if context is not None:
        integer(context, "the context", least=2)
    chunks, lengths = _sizes(chunks, "a chunk", 2), _sizes(lengths, "a length", 1)
    if not isinstance(model, nn.Module):
        file = path(model, "the model", "a module of transformers, or the path of a config.json or a .pt2")
        if file.suffix.lower() == ".pt2":
            _check_exported(file, lengths, source)
            return exported_generation(file, rows, context, chunks)
    module = model if isinstance(model, nn.Module) else config_model(file)
    _check_model(module)
    context = _context(module, context)
    read = _source(module, context, source)
    with in_mode(module, training=False):
        cached = _Cached(module, rows, context, read)
        programs = _programs(cached, chunks, lengths)
    decode = programs[Phase(1, context)]
    _check_positions(decode, rows, type(module).__name__)
    growing = {name for (name, _), about in zip(decode.graph.caches, cached.tensors, strict=True) if about.grows}
    vocabulary = int(_config(module).get_text_config(decoder=True).vocab_size)
    stops = frozenset(_ids_of(module, "eos_token_id"))
    return GenerationProgram(module, programs, rows, context, vocabulary, frozenset(growing), stops, read)


def _programs(cached: "_Cached", chunks: Sequence[int], lengths: Sequence[int]) -> dict[Phase, Program]:
    """Trace a model at one token and at other sizes, as far as it has the same operators there."""
    if cached.is_recurrent:
        chunks, lengths = (), ()
    one = Phase(1, cached.context)
    programs = {one: _phase(cached, one)}
    if cached.source is not None:  # the same network, of which a pass runs the encoder or the decoder
        programs[Phase(0, cached.source_positions)] = programs[one]
    for phase in cached.phases(chunks, lengths):
        program = _phase(cached, phase)
        if is_phase_of(program, programs[one]):
            programs[phase] = program
    return programs


class _Cached:
    """A model with the tensors of its caches, and what its wrapper is called with at one size of a pass."""

    def __init__(self, module: nn.Module, rows: int, context: int, source: EncoderSource | None) -> None:
        from graphs.importers import encoder_cache, fixed_cache  # late: load transformers' caches

        self.module, self.rows, self.context, self.source = module, rows, context, source
        self.tensors: tuple[CacheTensor, ...]
        if source is None:
            self.tensors = fixed_cache.cache_tensors(module, rows, context)
            self.wrapper: Any = lambda length: fixed_cache.FixedCacheModel(module, self.tensors, length)
            self.source_positions = 0
        else:
            about = encoder_cache.Encoded(module, source, rows, context)
            self.tensors, self.source_positions = about.tensors, about.positions
            self.wrapper = lambda length: encoder_cache.EncodedCacheModel(module, source, about, length)

    @property
    def is_recurrent(self) -> bool:
        """Whether there are states that each token changes as a whole."""
        return not all(tensor.grows or tensor.is_encoded for tensor in self.tensors)

    def phases(self, chunks: Sequence[int], lengths: Sequence[int]) -> list[Phase]:
        """Return the sizes of passes to try besides one token at the whole context.

        Chunks are those of a prompt, or of an encoder's text, after which a decoder begins with few tokens.
        """
        found = []
        if self.source is not None:
            shorter = [size for size in chunks if self.source.has_ids and size < self.source_positions]
            found = [Phase(0, length) for length in sorted(shorter)]
            chunks = ()
        sizes, within = sorted({1, *chunks}, reverse=True), sorted({*lengths, self.context})
        found += [Phase(tokens, length) for length in within for tokens in sizes if tokens <= length <= self.context]
        return [phase for phase in found if phase != Phase(1, self.context)]

    def inputs(self, phase: Phase) -> dict[str, Tensor | list[Tensor]]:
        """Return inputs of one pass, with empty caches."""
        device = next(self.module.parameters()).device
        tokens, length = (phase.tokens, phase.length) if phase.tokens else (1, self.context)
        read = self.source_positions if phase.tokens else phase.length
        whole: Any = {"dtype": torch.long, "device": device}
        found: dict[str, Tensor | list[Tensor]] = {
            "ids": torch.zeros(self.rows, tokens, **whole),
            "positions": torch.arange(tokens, device=device).repeat(self.rows, 1),
            "last": torch.zeros(self.rows, **whole),
            "active": torch.ones(self.rows, dtype=torch.bool, device=device),
            ONE_POSITION: torch.zeros((), **whole),
        }
        if self.source is not None:
            shape = (read,) if self.source.has_ids else self.source.shape
            found["source"] = torch.zeros(1, *shape, dtype=self.source.dtype, device=device)
            found["source_tokens"] = torch.full((1,), read, **whole)
            found["row"] = torch.zeros(1, **whole)
            found["read"] = torch.full((self.rows,), read, **whole)
        shapes = ((each.shape_at(length, read), each.dtype) for each in self.tensors)
        found["caches"] = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in shapes]
        return found


def _sizes(given: Sequence[int], what: str, least: int) -> tuple[int, ...]:
    """Return numbers of tokens, checked."""
    instance(given, (tuple, list), f"{what}s", "a tuple of whole numbers")
    return tuple(integer(each, what, least) for each in given)


def _check_exported(file: Path, lengths: Sequence[int], source: int | None) -> None:
    """Check that nothing is asked of a .pt2 that is fixed in it; raise InputError if something is."""
    for name, given in (("lengths", lengths or None), ("source", source)):
        if given is not None:
            raise InputError(f"{name} is fixed in '{file}', which was exported for all of its cache; leave it out")


def config_model(file: Path) -> nn.Module:
    """Return the module of a config.json with its head, without weights."""
    if file.suffix.lower() in (".onnx", ".gguf", ".safetensors"):
        raise InputError(
            f"'{file}' is no config.json, and a model that generates is traced at several sizes of a pass; give the "
            "config.json that it was made from, its module of transformers, or a .pt2 that was exported with its cache"
        )
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
    if (
        not {"input_ids", "decoder_input_ids"} & accepted.keys()
        or not {"past_key_values", "cache_params"} & accepted.keys()
    ):
        raise InputError(
            f"'{name}' takes {', '.join(accepted)}, and no cache from token to token; plan for throughput or latency "
            "of one pass instead"
        )


def _config(module: Any) -> Any:
    """Return the config of a model of transformers, which has no type here."""
    return module.config


def _context(module: Any, context: int | None) -> int:
    """Return the positions of the cache; raise InputError if the model has fewer."""
    most = _most(module.config.get_text_config(decoder=True), "max_target_positions")
    if context is None:
        return min(CONTEXT, most or CONTEXT)
    return _within(module, context, most, "context")


def _most(config: Any, *own: str) -> int | None:
    """Return the most positions that a config names, by a name of its own or a common one."""
    names = (*own, "max_position_embeddings", "n_positions", "max_seq_len")
    return next(iter(position_limits(config, names)), None)


def _within(module: Any, asked: int, most: int | None, what: str) -> int:
    """Check a number of positions against the most that a model has."""
    if most is not None and asked > most:
        raise InputError(f"the {what} is {asked:,} positions, and '{type(module).__name__}' has {most:,}; ask for less")
    return asked


def _source(module: Any, context: int, positions: int | None) -> EncoderSource | None:
    """Return the input of a model's encoder, None without one; raise InputError if its size is not known."""
    if not module.config.is_encoder_decoder:
        if positions is not None:
            raise InputError(
                f"source={positions:,} is for models with an encoder, and '{type(module).__name__}' has none"
            )
        return None
    name = module.main_input_name
    start = _ids_of(module, "decoder_start_token_id") or _ids_of(module, "bos_token_id")
    if name == "input_ids":
        length = integer(context if positions is None else positions, "the source", least=1)
        most = _most(module.config.get_text_config(encoder=True))
        length = min(length, most or length) if positions is None else _within(module, length, most, "source")
        return EncoderSource((length,), torch.long, start)
    if positions is not None:
        raise InputError(
            f"source={positions:,} is for a text, and '{type(module).__name__}' reads {name}; leave it out"
        )
    features = example_inputs(module, 1)[name]
    return EncoderSource(tuple(features.shape[1:]), features.dtype, start)


def _ids_of(module: Any, name: str) -> tuple[int, ...]:
    """Return the ids, or the only one, that a model's config for generation or its own names so."""
    ids = getattr(getattr(module, "generation_config", None), name, None)
    ids = getattr(module.config, name, None) if ids is None else ids
    return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)


def _phase(cached: _Cached, phase: Phase) -> Program:
    """Trace a model at one size; raise InputError if that fails."""
    name = type(cached.module).__name__
    wrapper = cached.wrapper(phase.length if phase.tokens else cached.context).eval()
    inputs = cached.inputs(phase)
    found: list[Program] = []
    failed: list[BaseException] = []
    for masked in (False, True):  # some models take positions or biases from a mask, others from the cache
        wrapper.masked = masked
        with failures() as new:
            found.append(phase_program(wrapper, inputs, name))
            if not _reads_one_position(found[-1]):
                return found[-1]
        failed += new
    if not found:
        reason = untraceable(failed[0], wrapper, Arguments((), inputs))
        raise InputError(f"model '{name}' cannot be traced with its cache{reason}") from failed[0]
    return found[0]


def _reads_one_position(program: Program) -> bool:
    """Return whether an operator reads the position that all rows would have to share."""
    return any(ONE_POSITION in op.inputs for op in program.graph.ops)


def _check_positions(decode: Program, rows: int, name: str) -> None:
    """Check that a model takes the positions of all rows, if there are several; raise InputError if it does not."""
    if rows > 1 and _reads_one_position(decode):
        raise InputError(
            f"model '{name}' takes one position for all sequences of a pass, so they cannot be of unequal lengths; "
            "import it with rows=1"
        )
