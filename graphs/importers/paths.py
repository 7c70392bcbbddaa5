"""Modules at dotted paths, such as ``layer1.0.conv``."""

from torch import nn


def home_of(root: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Where something with a dotted path has its place, with empty modules made on the way.

    Returns:
        The module that it belongs to, and its name there.

    Raises:
        KeyError: if there is something else than a module on the way.
    """
    *names, last = path.split(".")
    for name in names:
        if name not in root._modules:
            root.add_module(name, nn.Module())
        root = root.get_submodule(name)
    return root, last
