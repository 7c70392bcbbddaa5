"""MODEL, as users write it on the command line, into a Program or a Graph."""

import importlib
import sys
from pathlib import Path
from typing import Any

from torch import nn

from graphs.errors import InputError, first_line, nearest
from graphs.files import graph_of, read_json
from graphs.importers.from_torch import program_from_module, read_pt2
from graphs.importers.program import Program
from graphs.ir import Graph

FORMS = "a .onnx, a .pt2, package.module:factory, or a transformers config.json"
WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


def load_graph(model: str, batch: int | None = None, training: bool = False) -> Graph:
    """The graph of a model.

    Raises:
        InputError: as `load`.
    """
    loaded = load(model, batch, training)
    return loaded if isinstance(loaded, Graph) else loaded.graph


def load(model: str, batch: int | None = None, training: bool = False) -> Program | Graph:
    """As much as there is of a model; a graph.json is a graph already, in the mode in which it was imported.

    Raises:
        InputError: as `load_program`, and for a graph.json of another batch.
    """
    path = Path(model)
    if path.suffix.lower() == ".json" and path.is_file():
        document = read_json(path, "model")
        if "ops" in document:
            graph = graph_of(document, path)
            _check_batch(graph, model, batch)
            return graph
    return load_program(model, batch, training)


def load_program(model: str, batch: int | None = None, training: bool = False) -> Program:
    """Import a model by its form.

    Args:
        model: a path that ends in .onnx, .pt2 or .json, or ``package.module:factory``.
        batch: first dimension of every input; None for what the model comes with.
        training: import it as it is trained. What comes from a file is in the mode in which it was written there.

    Raises:
        InputError: if there is no such model, it cannot be imported, or it does not take that batch.
    """
    if batch is not None and batch < 1:
        raise InputError(f"a batch of {batch} is asked for; it must be 1 or more")
    path = Path(model)
    suffix = path.suffix.lower()
    if suffix in (".onnx", ".pt2", ".json"):
        if not path.is_file():
            raise InputError(f"no file '{model}'; MODEL is {FORMS}")
        if suffix == ".pt2":
            return read_pt2(path, batch, training)
        if suffix == ".json":
            return _read_json(path, batch, training)
        from graphs.importers.from_onnx import onnx_module

        module, inputs = onnx_module(path, batch)
        return program_from_module(module, inputs, name=path.stem, training=training)
    package, colon, _ = model.partition(":")
    if not (package and colon) or Path(package).suffix == ".py" or Path(package).name != package:
        raise InputError(f"'{model}' is no model; {_way_out(model)}")
    return _call_factory(model, batch, training)


def _way_out(model: str) -> str:
    """What to write instead: of a Python file its module, of saved weights what builds the network."""
    file, _, factory = model.partition(":")
    path = Path(file)
    if path.suffix == ".py" or (factory and path.name != file):
        where = "" if path.parent == Path() else f" in the folder '{path.parent}'"
        return f"for a function in a Python file, write {path.stem}:{factory or 'FUNCTION'}{where}"
    if path.suffix.lower() in WEIGHTS and path.is_file():
        return "such a file holds weights: give a function that builds the network and loads them, module:function"
    return f"MODEL is {FORMS}"


def _check_batch(graph: Graph, model: str, batch: int | None) -> None:
    sizes = sorted({graph.tensor[name].shape[0] for name in graph.inputs if graph.tensor[name].shape})
    if batch is not None and sizes != [batch]:
        had = " and ".join(map(str, sizes)) or "none"
        raise InputError(f"'{model}' was imported for the batch {had}, not {batch}; import the model again with that")


def _read_json(path: Path, batch: int | None, training: bool) -> Program:
    if "ops" in read_json(path, "model"):
        raise InputError(f"'{path}' is a graph, which can be planned for but not run; give the model it came from")
    from graphs.importers.from_config import read_config

    return read_config(path, batch, training)


def _call_factory(model: str, batch: int | None, training: bool) -> Program:
    """``factory(batch=N)`` returns the module and its example inputs; without a batch it is called as it is."""
    module_name, _, attribute = model.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: a module in the current directory is found
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(f"no Python module '{error.name}' for '{model}'; MODEL is {FORMS}") from error
    except Exception as error:  # whatever the user's code raises
        raise InputError(f"'{model}' cannot be imported: {type(error).__name__}: {first_line(error)}") from error
    factory: Any = getattr(module, attribute, None)
    if not callable(factory):
        callables = [name for name, value in vars(module).items() if callable(value)]
        near = nearest(attribute, callables) or ";"
        raise InputError(f"module '{module_name}' has no function '{attribute}'{near} MODEL is {FORMS}")
    try:
        made = factory() if batch is None else factory(batch=batch)
    except Exception as error:  # whatever the user's code raises
        raise InputError(
            f"'{model}' failed: {type(error).__name__}: {first_line(error)}; a factory takes batch=N or nothing "
            "and returns (module, example inputs as a tuple)"
        ) from error
    match made:
        case (nn.Module() as network, tuple() as inputs):
            return program_from_module(network, inputs, name=attribute, training=training)
    raise InputError(f"'{model}' returned a {type(made).__name__}; it must return (module, example inputs as a tuple)")
