"""Classes in the arguments and results of a .pt2 file, which torch has to know before it can load the file.

torch writes the name of such a class, as ``transformers.cache_utils:DynamicCache``. Those of transformers are
registered when a file names them. No other module is imported because of a name in a file.
"""

import importlib
import re
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

from torch.utils import _pytree as pytree

SPEC_TYPE = re.compile(r'\\"type\\": \\"([\w.:]+)\\"')
"""A class in the text of a structure of arguments, which stands in a JSON text of an exported program."""

UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)
"""Errors of `zipfile` for an archive that is damaged, encrypted or compressed in a way that it does not know."""

KNOWN = re.compile(r"(transformers(?:\.[a-z]\w*)+)[.:](\w+)")
"""A class of a module of transformers."""


def register_classes(path: Path) -> None:
    """Register the classes of transformers that a file names, as far as transformers has them."""
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
    with suppress(*UNREADABLE), zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith("model.json")]
        texts = [archive.read(name).decode(errors="replace") for name in names]
        classes = dict.fromkeys(name for text in texts for name in SPEC_TYPE.findall(text))
        return [name for name in classes if name not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE]
    return []
