"""Finds and calls a factory: a user's function that returns a module and its example inputs."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from graphs.errors import InputError, first_line, nearest
from graphs.importers.sources import FORMS, is_python_path, python_files
from graphs.program.arguments import Arguments, arguments_of

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
    try:
        made = factory(**keywords)
    except InputError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise InputError(f"'{target}' failed: {type(error).__name__}: {first_line(error)}; {RETURNS}") from error
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
            "give it a parameter 'batch', or leave --batch out"
        )
    return network, arguments


def _module(where: str, target: str) -> ModuleType:
    """Import a module by its dotted name like ``python -m``, or by its file like ``python FILE``."""
    folder, name, file = "", where, None
    if is_python_path(where):
        folder, name, file = _named(Path(os.path.expanduser(where)), target)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(f"no Python module '{error.name}' for '{target}'; MODEL is {FORMS}") from error
    except Exception as error:  # whatever the user's code raises
        raise InputError(f"'{target}' cannot be imported: {type(error).__name__}: {first_line(error)}") from error
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
