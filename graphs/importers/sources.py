"""Finds the files of a MODEL of the command line, without an import of its code."""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from graphs.common.errors import InputError

FORMS = "a .onnx, a .pt2, package.module:factory, or a transformers config.json or its folder"
"""The forms of MODEL on the command line."""

CONFIG = "config.json"  # in a folder that transformers wrote
NETWORKS = (".onnx", ".pt2")
FILES = (*NETWORKS, ".json")
SHARDS = ("*.safetensors", "*.st", "program.json")  # in a folder that ``planner shard`` wrote
PYTHON = ".py"


def sources_of(model: str) -> tuple[Path, ...]:
    """The existing files of a model: its own file with external data, its shards, or the file of its factory.

    Modules that the factory imports are not included.
    """
    folder = Path(os.path.expanduser(model))
    if model and folder.is_dir() and (shards := [file for form in SHARDS for file in folder.glob(form)]):
        return tuple(sorted(shards))
    try:
        file = model_file(model)
    except InputError:  # several models in a folder, which the import refuses
        return ()
    if file is None:
        file = _factory_file(model.rpartition(":")[0])
    if file is None or not file.is_file():
        return ()
    if file.suffix.lower() != ".onnx":
        return (file,)
    from graphs.importers.onnx.data_files import data_files

    return (file, *data_files(file))


def model_file(model: str) -> Path | None:
    """The file of a model; None for a factory.

    Raise InputError for a folder without a model, or with several models.
    """
    path = Path(os.path.expanduser(model))
    if not (model and path.is_dir()):
        return path if path.suffix.lower() in FILES else None
    if (path / CONFIG).is_file():
        return path / CONFIG
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in NETWORKS and file.is_file())
    if len(files) == 1:
        return files[0]
    content = "several models: " + ", ".join(file.name for file in files) if files else "no config.json, .onnx or .pt2"
    raise InputError(f"the folder '{model}' holds {content}; MODEL is {FORMS}")


def is_python_path(where: str) -> bool:
    """Whether a text names a module by its file and not by its dotted name."""
    path = Path(os.path.expanduser(where))
    return path.suffix == PYTHON or path.name != where


def python_files(path: Path) -> tuple[Path, ...]:
    """The possible files of a module that is named by its path, the likeliest first."""
    return (path.with_suffix(PYTHON), path / f"__init__{PYTHON}", path.with_suffix("") / f"__init__{PYTHON}")


def _factory_file(where: str) -> Path | None:
    """The file of a module; None if it does not exist."""
    path = Path(os.path.expanduser(where))
    if not path.name:
        return None
    if is_python_path(where):
        return next((file for file in python_files(path) if file.is_file()), None)
    places, name, origin = ["", *sys.path], "", None
    for part in where.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, places)
        if spec is None:
            return None
        places, origin = list(spec.submodule_search_locations or ()), spec.origin
    return None if origin is None else Path(origin)
