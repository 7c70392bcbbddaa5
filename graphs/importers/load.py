"""Imports MODEL, as users write it on the command line, as a Program or a Graph."""

from collections.abc import Mapping
from pathlib import Path

from graphs.documents import read_json
from graphs.errors import InputError
from graphs.files import graph_of
from graphs.importers.factory import call_factory
from graphs.importers.from_torch import program_from_module, read_pt2
from graphs.importers.sources import FORMS, PYTHON, file_of
from graphs.ir import Graph
from graphs.program.program import Program

WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


def load_graph(
    model: str,
    batch: int | None = None,
    training: bool = False,
    sizes: Mapping[str, int] | None = None,
    like: Graph | None = None,
) -> Graph:
    """The graph of a model.

    Raises:
        InputError: as `load`.
    """
    loaded = load(model, batch, training, sizes, like)
    return loaded if isinstance(loaded, Graph) else loaded.graph


def load(
    model: str,
    batch: int | None = None,
    training: bool = False,
    sizes: Mapping[str, int] | None = None,
    like: Graph | None = None,
) -> Program | Graph:
    """The program of a model, or the graph of a graph.json, which is in the mode of its import.

    Raises:
        InputError: as `load_program`, and for a graph.json of another batch.
    """
    path = file_of(model)
    if path is not None and path.suffix.lower() == ".json" and path.is_file():
        document = read_json(path, "model", finite=False)
        if "ops" in document:
            graph = graph_of(document, path)
            _check_batch(graph, model, batch)
            return graph
    return load_program(model, batch, training, sizes, like)


def load_program(
    model: str,
    batch: int | None = None,
    training: bool = False,
    sizes: Mapping[str, int] | None = None,
    like: Graph | None = None,
) -> Program:
    """Import a model by its form.

    Args:
        model: a path that ends in .onnx, .pt2 or .json, a folder with one of them, or ``package.module:factory``.
        batch: first dimension of every input; None for the model's own batch.
        training: whether to import it in training mode; a .pt2 file keeps its own mode.
        sizes: sizes of an .onnx file's symbolic dimensions besides the batch, by their names.
        like: an earlier import of the model, for the symbolic dimensions that ``sizes`` leaves out.

    Raises:
        InputError: if there is no such model, it cannot be imported, or it does not take that batch or those sizes.
    """
    if batch is not None and batch < 1:
        raise InputError(f"a batch of {batch} is asked for; it must be 1 or more")
    path = file_of(model)
    suffix = "" if path is None else path.suffix.lower()
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
        return _read_json(path, batch, training)
    from graphs.importers.from_onnx import onnx_module

    shapes = None if like is None else [like.tensor[name].shape for name in like.inputs]
    module, inputs = onnx_module(path, batch, sizes, shapes)
    return program_from_module(module, inputs, name=path.stem, training=training)


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


def _check_batch(graph: Graph, model: str, batch: int | None) -> None:
    sizes = [graph.tensor[name].shape[0] for name in graph.inputs if graph.tensor[name].shape]
    if batch is not None and sizes[:1] != [batch]:
        had = " and ".join(map(str, sorted(set(sizes)))) or "none"
        raise InputError(f"'{model}' was imported for the batch {had}, not {batch}; import the model again with that")


def _read_json(path: Path, batch: int | None, training: bool) -> Program:
    if "ops" in read_json(path, "model", finite=False):
        raise InputError(f"'{path}' is a graph, which can be planned for but not run; give the model it came from")
    from graphs.importers.from_config import read_config

    return read_config(path, batch, training)
