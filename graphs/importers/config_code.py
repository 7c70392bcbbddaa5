"""Refuses configs that name code which transformers would download and run."""

from typing import Any

from graphs.errors import InputError


def check_no_code(document: Any, where: str = "") -> None:
    """Refuse an implementation that is a repository, such as ``"attn_implementation": "owner/name"``.

    Args:
        document: the config, or a part of it.
        where: path of the part.

    Raises:
        InputError: if the document names a repository.
    """
    parts = document.items() if isinstance(document, dict) else ()
    for key, value in parts:
        leaves = value.values() if isinstance(value, dict) else [value]
        if "implementation" in key and any(isinstance(leaf, str) and "/" in leaf for leaf in leaves):
            raise InputError(
                f"the config asks for code from a repository ('{where}{key}' is {value!r}), which is not fetched; "
                "remove that line"
            )
        check_no_code(value, f"{where}{key}.")
