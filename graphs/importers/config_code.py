"""What a config.json may not ask for: code that transformers would fetch and run."""

from typing import Any

from graphs.errors import InputError


def check_no_code(document: Any, where: str = "") -> None:
    """No implementation in a config is a repository, as ``"attn_implementation": "owner/name"`` is.

    transformers would download it and run what is in it.

    Args:
        document: the config, or a part of it.
        where: the part stands.

    Raises:
        InputError: if one is.
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
