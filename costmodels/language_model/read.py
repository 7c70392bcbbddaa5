"""Reads a language model from whatever it is stored in: the front door of this room."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from costmodels.language_model.model import ModelDescription
from graphs.common import checks
from graphs.common.documents import read_json
from graphs.common.errors import InputError

CONFIG = "config.json"
WAY_OUT = (
    "a config.json, a .safetensors or its index with the config.json in the same folder, a .gguf, or a folder with one "
    "of these"
)


def has_headers_alone(source: str | PathLike[str]) -> bool:
    """Return whether a path is of weights whose network is in no file next to them: a .gguf, or .safetensors."""
    path = Path(source).expanduser()
    if path.is_dir():
        return not (path / CONFIG).exists() and next(path.glob("*.gguf"), None) is not None
    return path.suffix in (".gguf", ".safetensors") or path.name.endswith(".safetensors.index.json")


def read_language_model(source: str | PathLike[str] | Mapping[str, Any]) -> ModelDescription:
    """Return the language model of a file or folder, or of the content of a config.json. No weights are read.

    Args:
        source: path of a config.json, of a .safetensors or its index, of a .gguf (any of its shards) or of a folder
            with these; or the content of a config.json.

    Raises:
        InputError: if the source is none of these, damaged or incomplete, or describes layers that are not known here.
    """
    if isinstance(source, Mapping):
        from costmodels.language_model.from_config import model_of_config  # late: as below

        return model_of_config(source)
    path = checks.path(source, "the language model", WAY_OUT)
    if not path.exists():
        raise InputError(f"'{path}' does not exist; give {WAY_OUT}")
    if path.is_dir():
        return _of_folder(path)
    return _of_file(path)


def _of_file(path: Path) -> ModelDescription:
    if path.suffix == ".gguf":
        from costmodels.language_model.from_gguf import model_of_gguf  # late: only one of the readers is needed

        return model_of_gguf(path)
    if path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json"):
        return _of_weights(path, path.parent)
    if path.suffix == ".json":
        from costmodels.language_model.from_config import model_of_config

        return model_of_config(read_json(path, "config", finite=False), str(path))
    raise InputError(f"'{path}' is no language model; give {WAY_OUT}")


def _of_folder(folder: Path) -> ModelDescription:
    if next(folder.glob("*.safetensors*"), None) is not None:
        return _of_weights(folder, folder)
    if (folder / CONFIG).exists():
        return read_language_model(folder / CONFIG)
    ggufs = sorted(folder.glob("*.gguf"))
    firsts = [path for path in ggufs if "-of-" not in path.name or "-00001-of-" in path.name]
    if len(firsts) == 1:
        return read_language_model(firsts[0])
    if firsts:
        raise InputError(f"the folder '{folder}' has {len(firsts)} models; give one of them, such as '{firsts[0]}'")
    raise InputError(f"the folder '{folder}' has no language model; give {WAY_OUT}")


def _of_weights(path: Path, folder: Path) -> ModelDescription:
    from costmodels.language_model.from_safetensors import model_of_safetensors  # late: as above

    if not (folder / CONFIG).exists():
        raise InputError(
            f"'{path}' has no config.json in its folder, which says how many heads and layers the model has; "
            "put it there"
        )
    return model_of_safetensors(path, read_json(folder / CONFIG, "config", finite=False), str(path))
