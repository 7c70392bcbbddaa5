"""Imports MODEL, as users write it on the command line, as a Program or a Graph.

A factory is a user's function that returns a module and its example inputs.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from graphs.common.documents import read_json
from graphs.common.errors import InputError, foreign_code, kind_and_line, nearest
from graphs.files import graph_of
from graphs.importers.from_torch import program_from_module, read_pt2
from graphs.importers.sources import FORMS, PYTHON, is_python_path, model_file, python_files
from graphs.importers.tracing_guards import without_import_warnings
from graphs.ir import Graph
from graphs.kinds import kind_of
from graphs.program.arguments import Arguments, arguments_of
from graphs.program.program import Program

WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".gguf")


def load(
    model: str,
    batch: int | None = None,
    training: bool = False,
    sizes: Mapping[str, int] | None = None,
    like: Graph | None = None,
) -> Program | Graph:
    """Import a model by its form: its program, or the graph of a graph.json, which is in the mode of its import.

    Args:
        model: a path that ends in .onnx, .pt2 or .json, a folder with one of them, or ``package.module:factory``.
        batch: first dimension of every input; None for the model's own batch.
        training: whether to import it in training mode; a .pt2 file keeps its own mode.
        sizes: sizes of an .onnx file's symbolic dimensions besides the batch, by their names.
        like: an earlier import of the model, for the symbolic dimensions that ``sizes`` leaves out.

    Raises:
        InputError: if there is no such model, it cannot be imported, or it does not take that batch or those sizes.
    """
    path = model_file(model)
    suffix = "" if path is None else path.suffix.lower()
    if (graph := _graph(path, model, batch)) is not None:
        return graph
    if batch is not None and batch < 1:
        raise InputError(f"a batch of {batch} is asked for; it must be 1 or more")
    if sizes and suffix != ".onnx":
        raise InputError(f"'{model}' has no symbolic dimension '{min(sizes)}' to be sized; only an .onnx file has some")
    if path is None:
        network, given = call_factory(_target(model), batch)
        return program_from_module(network, given, name=model.rpartition(":")[2], training=training)
    if not path.is_file():
        raise InputError(f"no file '{model}'; MODEL is {FORMS}")
    if suffix == ".pt2":
        return read_pt2(path, batch, training)
    if suffix == ".json":
        from graphs.importers.from_config import read_config

        return read_config(path, batch, training)
    from graphs.importers.from_onnx import onnx_module

    shapes = None if like is None else [like.tensor[name].shape for name in like.inputs]
    module, inputs = onnx_module(path, batch, sizes, shapes)
    return program_from_module(module, inputs, name=path.stem, training=training)


def load_graph(
    model: str,
    batch: int | None = None,
    training: bool = False,
    sizes: Mapping[str, int] | None = None,
    like: Graph | None = None,
) -> Graph:
    """The graph of a model; arguments and errors as for `load`."""
    loaded = load(model, batch, training, sizes, like)
    return loaded if isinstance(loaded, Graph) else loaded.graph


def load_program(
    model: str,
    batch: int | None = None,
    training: bool = False,
    sizes: Mapping[str, int] | None = None,
    like: Graph | None = None,
) -> Program:
    """The program of a model; arguments and errors as for `load`, and an InputError for a graph.json."""
    loaded = load(model, batch, training, sizes, like)
    if isinstance(loaded, Graph):
        raise InputError(
            f"'{model_file(model)}' is a graph, which can be planned for but not run; give the model it came from"
        )
    return loaded


def _target(model: str) -> str:
    """The name of a factory, checked for its form."""
    where, _, function = model.rpartition(":")
    if where and function:
        return model
    path = Path(model.rstrip(":"))
    if path.suffix == PYTHON:
        way_out = f"for a function in a Python file, write {path}:FUNCTION"
    elif path.suffix.lower() in WEIGHTS and path.is_file():
        way_out = "such a file holds weights: give a function that builds the network and loads them, module:function"
    else:
        way_out = f"MODEL is {FORMS}"
    raise InputError(f"'{model}' is no model; {way_out}")


def _graph(path: Path | None, model: str, batch: int | None) -> Graph | None:
    """The graph of a graph.json, checked for its batch; None for another file."""
    if path is None or path.suffix.lower() != ".json" or not path.is_file():
        return None
    document = read_json(path, "model", finite=False)
    kind = "" if "model_type" in document else kind_of(document)
    if not kind:
        return None
    if kind != "graph":
        raise InputError(f"'{model}' is a {kind}, no model; MODEL is {FORMS}")
    graph = graph_of(document, path)
    sizes = [graph.tensor[name].shape[0] for name in graph.inputs if graph.tensor[name].shape]
    if batch is not None and sizes[:1] != [batch]:
        had = " and ".join(map(str, sorted(set(sizes)))) or "none"
        raise InputError(f"'{model}' was imported for the batch {had}, not {batch}; import the model again with that")
    return graph


RETURNS = "a factory takes batch=N or nothing and returns (module, example inputs)"
BATCH = "batch"  # the parameter for the samples of one micro-batch


def call_factory(target: str, batch: int | None = None) -> tuple[nn.Module, Arguments]:
    """The module and inputs from the factory that ``package.module:function`` or ``file.py:function`` names.

    The factory gets ``batch`` if it has such a parameter and the caller asks for a batch. The inputs of a factory
    without that parameter must have the requested batch.

    Raises:
        InputError: if there is no such function, or it fails, or it returns something else or another batch.
    """
    where, _, attribute = target.rpartition(":")
    factory = _attribute(_module(where, target), attribute, target)
    keywords = _keywords(factory, target, batch)

    def said(error: BaseException) -> str:
        return f"'{target}' failed: {kind_and_line(error)}; {RETURNS}"

    with foreign_code(said), without_import_warnings():  # of what a factory imports
        made = factory(**keywords)
    match made:
        case [nn.Module() as network, given]:
            arguments = arguments_of(given, f"the example inputs of '{target}'")
        case nn.Module():
            raise InputError(f"'{target}' returned a module alone; {RETURNS}")
        case _:
            raise InputError(f"'{target}' returned a '{type(made).__name__}'; {RETURNS}")
    if batch is not None and BATCH not in keywords and arguments.batch != batch:
        raise InputError(
            f"'{target}' takes no batch, and its example inputs are of {arguments.batch or 'no batch'}, not {batch}; "
            "give it a parameter 'batch', or keep to its own"
        )
    return network, arguments


def _module(where: str, target: str) -> ModuleType:
    """Import a module by its dotted name like ``python -m``, or by its file like ``python FILE``."""
    folder, name, file = "", where, None
    if is_python_path(where):
        folder, name, file = _named(Path(os.path.expanduser(where)), target)
    if folder not in sys.path:
        sys.path.insert(0, folder)

    def said(error: BaseException) -> str:
        if isinstance(error, ModuleNotFoundError):
            return f"no Python module '{error.name}' for '{target}'; MODEL is {FORMS}"
        return f"'{target}' cannot be imported: {kind_and_line(error)}"

    with foreign_code(said), without_import_warnings():
        module = importlib.import_module(name)
    if file is not None and not (module.__file__ and file.samefile(module.__file__)):
        raise InputError(f"'{file}' has the name of another module, '{name}'; give the file another name")
    return module


def _named(path: Path, target: str) -> tuple[str, str, Path]:
    """The folder to import a file from, its dotted name there, and the file.

    A file below the current folder is imported from there, so that its package is importable, too.
    """
    files = python_files(path)
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise InputError(f"no file '{files[0]}' for '{target}'; check the path")
    within = Path(os.path.relpath(path.with_suffix("")))
    if all(part.isidentifier() for part in within.parts):
        return "", ".".join(within.parts), file
    return str(path.parent.resolve()), path.stem, file


def _attribute(module: ModuleType, attribute: str, target: str) -> Callable[..., Any]:
    """A function of a module, or of a class in the module (``Nets.small``)."""
    owner: Any = module
    function: Any = module
    for name in attribute.split("."):
        owner, function = function, getattr(function, name, None)
    if isinstance(function, nn.Module):
        raise InputError(f"'{target}' is a module without example inputs; write a function: {RETURNS}")
    if not callable(function):
        names = [key for key, value in vars(owner).items() if callable(value)] if hasattr(owner, "__dict__") else []
        near = nearest(attribute.rpartition(".")[2], names) or ";"
        raise InputError(f"module '{module.__name__}' has no function '{attribute}'{near} MODEL is {FORMS}")
    return function  # type: ignore[no-any-return]  # it is callable


def _keywords(factory: Callable[..., Any], target: str, batch: int | None) -> dict[str, int]:
    """The keyword arguments of a factory, which may need a batch and nothing else."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # written in C
        return {}
    single = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    needed = [each.name for each in single if each.default is each.empty]
    if others := [name for name in needed if name != BATCH]:
        raise InputError(
            f"'{target}' needs '{others[0]}', which no option gives; give that parameter a default, or write a "
            f"function that passes it: {RETURNS}"
        )
    takes_batch = any(each.name == BATCH or each.kind is each.VAR_KEYWORD for each in parameters)
    return {BATCH: batch or 1} if takes_batch and (batch is not None or needed) else {}
