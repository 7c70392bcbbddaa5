"""Opens a .pt2 file, after torch has been given the classes and operators that the file names.

torch writes the name of a class in the arguments or results, as ``transformers.cache_utils:DynamicCache``, and that of
an operator. Those of transformers are registered when a file names them. No other module is imported because of a name
in a file.
"""

import importlib
import re
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from graphs.common.errors import first_line, foreign_code
from graphs.importers.tracing_guards import quiet

SPEC_TYPE = re.compile(r'\\"type\\": \\"([\w.:]+)\\"')
"""A class in the text of a structure of arguments, which stands in a JSON text of an exported program."""

UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)
"""Errors of `zipfile` for an archive that is damaged, encrypted or compressed in a way that it does not know."""

KNOWN = re.compile(r"(transformers(?:\.[a-z]\w*)+)[.:](\w+)")
"""A class of a module of transformers."""


OPERATORS = {"torch.ops.transformers.": "transformers.integrations.moe"}
"""Modules that register operators, by how these begin in a file."""


def opened_pt2(path: Path) -> ExportedProgram:
    """Return the program in a file of torch.export.save; raise InputError if it is missing or damaged."""

    def said(error: BaseException) -> str:
        if unknown := unknown_classes(path):
            return (
                f"'{path}' takes or returns a '{unknown[0]}', a class that torch does not know here; install or "
                "import the package that it is from and register it (torch.export.register_dataclass), or export the "
                "model with tensors in its place"
            )
        return f"'{path}' cannot be read as an exported program: {first_line(error)}; write it with torch.export.save"

    with foreign_code(said), quiet():
        register_classes(path)
        exported: ExportedProgram = torch.export.load(path)
    return exported


def register_classes(path: Path) -> None:
    """Register the classes and operators of transformers that a file names, as far as transformers has them."""
    for begins, module in OPERATORS.items():
        if any(begins in text for text in _texts(path)):
            with suppress(ImportError):
                importlib.import_module(module)
    for name in unknown_classes(path):
        if (found := KNOWN.fullmatch(name)) is None:
            continue
        with suppress(ImportError):
            cls = getattr(importlib.import_module(found[1]), found[2], None)  # registers its structures of results
            if isinstance(cls, type) and name not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
                importlib.import_module("transformers.exporters.exporter_dynamo").register_pytree_node(cls)


def unknown_classes(path: Path) -> list[str]:
    """Return the classes in the arguments and results of an exported program that are not registered with torch.

    An archive that cannot be read has none.
    """
    classes = dict.fromkeys(name for text in _texts(path) for name in SPEC_TYPE.findall(text))
    return [name for name in classes if name not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE]


def _texts(path: Path) -> list[str]:
    """Return the JSON texts of the programs in a file; none of an archive that cannot be read."""
    with suppress(*UNREADABLE), zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith("model.json")]
        return [archive.read(name).decode(errors="replace") for name in names]
    return []
