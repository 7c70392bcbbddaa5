"""Imports an nn.Module or a .pt2 file as a Program, through torch.export.

The operators are those of the exported program without decomposition (an LSTM is one operator), with their module
paths. Tuples become separate tensors, in-place operators become functional ones, and assertions are dropped.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree

from graphs.common.errors import InputError, first_line, foreign_code
from graphs.common.shortages import failures
from graphs.importers.constant_values import ConstantValues, constant_values
from graphs.importers.example_values import example_values
from graphs.importers.expansion import Trace, UnlikeError
from graphs.importers.footprints import with_footprints
from graphs.importers.functionalize import (
    functionalize,
    inline_blocks,
    is_mapped,
    misread_write,
    repeated_write,
    without_noise,
    without_unread,
)
from graphs.importers.inner_tensors import with_inner_tensors
from graphs.importers.normalisations import Replaced, put_back, stand_in
from graphs.importers.pt2_files import opened_pt2
from graphs.importers.python_state import traced_alike
from graphs.importers.repeated_layers import ShortModule, shortened
from graphs.importers.source_location import depends_on_values, product_of_two_dtypes, untraceable
from graphs.importers.tracing_guards import (
    as_called,
    in_mode,
    known_numbers,
    own_backward_passes,
    quiet,
    tracing,
    without_caches,
)
from graphs.importers.training import (
    check_batch_norms,
    check_hooks,
    detach_blocks,
    differentiable_copies,
    take_counters,
)
from graphs.importers.translate import translate
from graphs.importers.unanswered import all_answered
from graphs.program.arguments import FORMS, Arguments, arguments_of, check_arguments
from graphs.program.program import BufferUpdate, Program
from graphs.program.strides import repeats, unrepeated
from graphs.program.traced_strides import mark_strided

FIXED_SHAPES = (
    "keep shapes fixed there (all rows and a mask instead of a selection, topk instead of nonzero, every expert on all "
    "rows), or leave that part out of the model"
)
OUT_OF_PLACE = "write out of place there (x = x + 1 for x += 1)"


def imported(model: nn.Module | Program, example_inputs: Any, name: str = "", training: bool = False) -> Program:
    """The program of a model that a user of the Python API gives.

    ``example_inputs`` have any form of `arguments_of`; the name is the class of the module if left out. Raise
    InputError as `program_from_module`, and for a model of another type or without inputs.
    """
    if isinstance(model, Program):
        return model
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a '{kind}'; give a torch.nn.Module, or a Program from graphs.importers")
    if example_inputs is None:
        raise InputError(f"a '{kind}' needs example_inputs, one micro-batch: {FORMS}")
    return program_from_module(model, example_inputs, name=name, training=training)


def program_from_module(
    module: nn.Module,
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    name: str = "",
    training: bool = False,
    footprints: bool = True,
) -> Program:
    """Trace a module in evaluation mode or in training mode.

    Args:
        module: any module that torch.export can trace; its mode does not change.
        inputs: example inputs in any form of `arguments_of`; their shapes become the shapes of the graph.
        kwargs: keyword arguments, if ``inputs`` is a tuple of positional arguments only.
        name: name of the graph; the class of the module if left out.
        training: whether to trace in training mode. In a module in training mode, parts in evaluation mode stay frozen;
            a module in evaluation mode is switched as a whole. Batch norms may then update their statistics.
        footprints: whether to record the memory of operators, which takes longer than the trace; plans without
            footprints have times only.

    Raises:
        InputError: if the module cannot be traced, or writes to its own buffers or inputs.
    """
    name = name or type(module).__name__
    given = arguments_of(inputs) if kwargs is None else Arguments(tuple(inputs), dict(kwargs))
    check_arguments(module.forward, given, name)
    if training:
        check_hooks(name, module)
    with in_mode(module, training), without_caches(module):
        if training:
            check_batch_norms(name, module)
        short = shortened(module, given, training)
    if short is not None:
        with suppress(InputError, UnlikeError):  # what the short module cannot do, the whole one may do, or say why
            return _imported(short, given, name, training, footprints)
    return _imported(ShortModule(module, module), given, name, training, footprints)


def _imported(short: ShortModule, given: Arguments, name: str, training: bool, footprints: bool) -> Program:
    """Trace a module, of which some layers may be left out."""
    watched = own_backward_passes() if training else nullcontext(())
    with in_mode(short.module, training), without_caches(short.module), watched as own:
        exported = traced_alike(short.module, name, lambda: _traced(short.module, given, name, training))
    if own:
        raise InputError(
            f"model '{name}' has a backward pass of its own ({own[0]}), which a traced graph does not show; write its "
            "forward pass in operators that PyTorch differentiates, or switch it off"
        )
    return _program(exported, name, short, training, footprints)


def program_from_exported(
    exported: ExportedProgram,
    name: str,
    module: nn.Module | None = None,
    training: bool = False,
    footprints: bool = True,
) -> Program:
    """The operators of an exported program.

    The module is the exported program's own if left out; for the mode of the export and footprints see
    `program_from_module`. Raise InputError if a shape is not fixed, an operator has no tensors to place, or state is
    written.
    """
    own = module or exported.module()
    return _program(exported, name, ShortModule(own, own), training, footprints)


def _program(exported: ExportedProgram, name: str, short: ShortModule, training: bool, footprints: bool) -> Program:
    """The operators of an exported program, with those of the layers that are left out of a module."""
    code, counted = _prepared(exported, name, training)
    buffers = frozenset(exported.graph_signature.inputs_to_buffers) if training else frozenset()
    if is_mapped(code) or not functionalize(code, buffers):
        exported, code = _without_writes(exported, code, name, training)
        if not functionalize(code, buffers):
            raise InputError(f"model '{name}' has in-place operators that torch.export cannot remove; rewrite them")
    if (mixed := product_of_two_dtypes(code)) is not None:
        raise InputError(f"model '{name}' cannot run on its example inputs{mixed}")
    if training:
        differentiable_copies(code)
    without_unread(code, buffers)
    mark_strided(code)
    _name_results(code, getattr(short.whole_module, "output_names", ()))
    inputs, state = exported.graph_signature.input_specs, {**exported.constants, **exported.state_dict}
    trace = short.whole(Trace(code, inputs, state, exported.call_spec, exported.example_inputs, counted))
    trace = with_inner_tensors(trace)
    program = translate(trace, name, short.whole_module)
    updates = {path: BufferUpdate(trace.state[path], count) for path, count in trace.updates.items()}
    program = replace(program, training=training, updates=updates)
    if not training:  # the inputs get no gradient
        inputs = tuple(tensor.detach() if tensor.requires_grad else tensor for tensor in program.example_inputs)
        program = replace(program, example_inputs=inputs)
    if not footprints:
        return program
    with tracing():
        return with_footprints(program)


def _name_results(code: fx.Graph, names: Sequence[str]) -> None:
    """Name the operators that compute a network's results as the file does that the network is from."""
    results = code.output_node().args[0]
    assert isinstance(results, tuple | list)
    for node, name in zip(results, names, strict=False):
        if isinstance(node, fx.Node) and isinstance(node.target, OpOverload) and isinstance(node.meta["val"], Tensor):
            node._rename(name)


def _prepared(exported: ExportedProgram, name: str, training: bool) -> tuple[fx.Graph, dict[str, float]]:
    """A copy of the traced graph without blocks, and the counters that are removed from it for training."""
    code = _inlined(exported)
    if not training:
        return code, {}
    counted = take_counters(code, exported.graph_signature.inputs_to_buffers)
    written = detach_blocks(code, frozenset(exported.graph_signature.inputs_to_parameters))
    if written is not None:
        raise InputError(
            f"model '{name}' writes in place ('{written.name}') without gradients to what has one; write out of place "
            "there (x = x + 1 for x += 1), or outside of the block"
        )
    return code, counted


def _without_writes(
    exported: ExportedProgram, code: fx.Graph, name: str, training: bool
) -> tuple[ExportedProgram, fx.Graph]:
    """The exported program after torch's own functionalization, which handles in-place writes through views.

    Also a copy of its graph without blocks.
    """
    _check_writes(exported, code, name)
    replaced: Replaced = {}
    if training:
        prepared, _ = _prepared(exported, name, training)
        replaced = stand_in(prepared, frozenset(exported.graph_signature.inputs_to_buffers))
        exported = _of_graph(exported, prepared)

    def said(error: BaseException) -> str:
        why = f"in-place operators that torch.export cannot remove: {first_line(error)}"
        return f"model '{name}' has {why}; {OUT_OF_PLACE}"

    with foreign_code(said), tracing():
        functional = exported.run_decompositions({})
    for result in functional.graph_signature.output_specs:
        if result.kind is not OutputKind.USER_OUTPUT:
            raise InputError(
                f"model '{name}' writes to '{result.target}' while it runs; a network that keeps state between calls "
                "cannot be divided: switch that off (model.eval(), use_cache=False) or pass the state in and out; "
                "a language model generates from its config.json, its module or such a .pt2, with the goal generation"
            )
    code, _ = _prepared(functional, name, training)
    without_noise(code)
    put_back(code, replaced)
    return functional, code


def _check_writes(exported: ExportedProgram, code: fx.Graph, name: str) -> None:
    """Check that torch's functionalization of the in-place writes would be correct."""
    ends = exported.graph_signature
    state = {*ends.inputs_to_parameters, *ends.inputs_to_buffers, *ends.inputs_to_lifted_tensor_constants}
    if (misread := misread_write(code, frozenset(state))) is not None:
        raise InputError(
            f"model '{name}' writes in place ('{misread.name}') to what it reads again through an operator that "
            f"copies at times only, like dropout; {OUT_OF_PLACE}"
        )
    if (repeated := repeated_write(code)) is not None:
        raise InputError(
            f"model '{name}' writes in place ('{repeated.name}') to a tensor of which several elements are one in "
            f"memory, as after expand; {OUT_OF_PLACE}"
        )


def _of_graph(exported: ExportedProgram, code: fx.Graph) -> ExportedProgram:
    """The exported program with another graph, in which ``detach`` is in place of blocks, which would get lost."""
    return ExportedProgram(
        root=exported.graph_module,
        graph=code,
        graph_signature=exported.graph_signature,
        state_dict=exported.state_dict,
        range_constraints=exported.range_constraints,
        module_call_graph=exported.module_call_graph,
        example_inputs=exported.example_inputs,
        constants=exported.constants,
        verifiers=exported.verifiers,
    )


def read_pt2(path: Path, batch: int | None = None, training: bool = False) -> Program:
    """Import a file of torch.export.save, in the mode of the export, with its own batch or another one.

    Raise InputError if the file is missing or damaged, or has fixed shapes of another batch.
    """
    exported = opened_pt2(path)
    if exported.example_inputs is None:
        raise InputError(f"'{path}' has no example inputs; export it again with a current torch")
    given = Arguments(*exported.example_inputs)
    sizes = given.first_dimensions
    if batch in (None, given.batch):
        names = set(exported.graph_signature.user_inputs)
        inputs = (node for node in exported.graph.nodes if node.op == "placeholder" and node.name in names)
        if not any(map(_is_traced_anew, inputs)):
            return program_from_exported(exported, path.stem, training=training)
    elif len(sizes) != 1:
        raise InputError(f"'{path}' has inputs with the first dimensions {sorted(sizes)}; export it with batch {batch}")
    else:
        given = given.resized(batch)
    module = exported.module()
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}

    def said(error: BaseException) -> str:
        why = f"was exported for the batch {sorted(sizes)[0]}, not {batch}: {first_line(error)}"
        return f"'{path}' {why}; export it with that batch or with a dynamic first dimension"

    with foreign_code(said), quiet(), torch.no_grad():
        module(*given.args, **given.kwargs)
        for name, buffer in module.named_buffers():  # batch norms in training mode have updated theirs
            buffer.copy_(buffers[name])
    traced = _traced(module, given, path.stem, training)
    return program_from_exported(traced, path.stem, module, training)


def _traced(module: nn.Module, given: Arguments, name: str, training: bool) -> ExportedProgram:
    """Trace a module on inputs without shared elements, as a call runs it if possible."""
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            raise InputError(
                f"torch.autocast('{kind}', {torch.get_autocast_dtype(kind)}) is on, and what it casts is no operator "
                f"of model '{name}'; import it outside of that, or cast the model as a whole, for example by "
                "model.to(torch.bfloat16)"
            )
    given = Arguments(*unrepeated(tuple(given)))

    constants = ConstantValues()

    def trace() -> ExportedProgram:
        try:
            with tracing(), torch.set_grad_enabled(training), all_answered():
                return torch.export.export(module, given.args, given.kwargs, strict=False)
        finally:
            constants.release()

    with constant_values(module, constants):
        try:
            return _trace_of_any(module, given, name, trace)
        except InputError:
            if not constants.asked:
                raise
    return _trace_of_any(module, given, name, trace)  # some code for calls cannot be traced


def _trace_of_any(
    module: nn.Module, given: Arguments, name: str, trace: Callable[[], ExportedProgram]
) -> ExportedProgram:
    """Trace; if values are missing, again with the buffers' numbers, then with the example's values."""
    with failures() as failed:
        exported = trace()
        known, place = _with_values(module, given, trace) if _has_open_shapes(exported) else (exported, "")
    for error in failed:
        known = _with_values(module, given, trace)[0] if depends_on_values(error) else _as_called(module, trace)
        if known is None:
            raise InputError(
                f"model '{name}' cannot be traced by torch.export{untraceable(error, module, given)}"
            ) from error
    if known is None:
        raise InputError(f"model '{name}' has shapes that follow from what it computes{place}; {FIXED_SHAPES}")
    return known


def _as_called(module: nn.Module, trace: Callable[[], ExportedProgram]) -> ExportedProgram | None:
    """Trace what a call runs, where the model has other code for a trace; return None if that does not help."""
    with failures(), as_called(module):
        exported = trace()
        return None if _has_open_shapes(exported) else exported
    return None


def _with_values(
    module: nn.Module, given: Arguments, trace: Callable[[], ExportedProgram]
) -> tuple[ExportedProgram | None, str]:
    """Trace again with the numbers of buffers, then with values of the example inputs.

    Return None if neither helps, and the first place in the model's code where a value is missing.
    """
    with failures(), known_numbers(module) as numbers:
        exported = trace()
        if not _has_open_shapes(exported) and all(torch.equal(buffer, value) for buffer, value in numbers):
            return exported, ""
    unknown: list[str] = []
    with failures(), example_values(module, given, unknown):
        exported = trace()
        if not _has_open_shapes(exported):
            return exported, ""
    return None, next(iter(unknown), "")


def _has_open_shapes(exported: ExportedProgram) -> bool:
    """Return whether shapes in a traced graph, or numbers that operators read, depend on values."""
    return any(
        isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool)
        for node in exported.graph.nodes
        for value in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(value, Tensor)
        for size in (*value.shape, *(read.meta.get("val") for read in node.all_input_nodes))
    )


def _inlined(exported: ExportedProgram) -> fx.Graph:
    """A copy of the traced graph, without blocks."""
    traced: fx.Graph = exported.graph_module.graph
    code = deepcopy(traced)
    for copied, original in zip(code.nodes, traced.nodes, strict=True):
        copied.name = original.name  # deepcopy renames an argument 'input', a Python builtin, to 'input_1'
    inline_blocks(fx.GraphModule(exported.graph_module, code))
    return code


def _is_traced_anew(node: fx.Node) -> bool:
    """Whether an input has no fixed shape, or shares elements, which inputs with other values would not."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    return any(isinstance(size, torch.SymInt) for size in value.shape) or repeats(value)
