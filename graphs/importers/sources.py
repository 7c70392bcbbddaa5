"""Which files a MODEL of the command line is read from. Nothing is imported to find out."""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from graphs.errors import InputError

FORMS = "a .onnx, a .pt2, package.module:factory, or a transformers config.json or its folder"
"""What MODEL may be."""

CONFIG = "config.json"  # of a folder as transformers writes it
NETWORKS = (".onnx", ".pt2")
FILES = (*NETWORKS, ".json")
SHARDS = ("*.safetensors", "*.st", "program.json")  # of a folder as ``planner shard`` writes it
PYTHON = ".py"


def sources_of(model: str) -> tuple[Path, ...]:
    """The files that a model is read from: itself, what lies beside it, or the file of its factory.

    Those that are not there are left out, and modules that the factory imports.
    """
    folder = Path(os.path.expanduser(model))
    if model and folder.is_dir() and (shards := [file for form in SHARDS for file in folder.glob(form)]):
        return tuple(sorted(shards))
    try:
        file = file_of(model)
    except InputError:  # several models in a folder; the import says so
        return ()
    if file is None:
        file = _factory_file(model.rpartition(":")[0])
    if file is None or not file.is_file():
        return ()
    if file.suffix.lower() != ".onnx":
        return (file,)
    from graphs.importers.onnx.data_files import data_files

    return (file, *data_files(file))


def file_of(model: str) -> Path | None:
    """The file that a model is in; None for one that Python makes.

    Raises:
        InputError: for a folder without one, or with several.
    """
    path = Path(os.path.expanduser(model))
    if not (model and path.is_dir()):
        return path if path.suffix.lower() in FILES else None
    if (path / CONFIG).is_file():
        return path / CONFIG
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in NETWORKS and file.is_file())
    if len(found) == 1:
        return found[0]
    what = "several models: " + ", ".join(file.name for file in found) if found else "no config.json, .onnx or .pt2"
    raise InputError(f"the folder '{model}' holds {what}; MODEL is {FORMS}")


def is_python_path(where: str) -> bool:
    """Whether it names a module by its file rather than by its dotted name."""
    path = Path(os.path.expanduser(where))
    return path.suffix == PYTHON or path.name != where


def python_files(path: Path) -> tuple[Path, ...]:
    """The files that a module named by its path may be in, the likeliest first."""
    return (path.with_suffix(PYTHON), path / f"__init__{PYTHON}", path.with_suffix("") / f"__init__{PYTHON}")


def _factory_file(where: str) -> Path | None:
    """The file of a module; None where there is none."""
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
