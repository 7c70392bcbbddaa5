"""Modules at dotted paths, such as ``layer1.0.conv``."""

from torch import nn


def home_of(root: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module that owns the attribute at a dotted path, and the attribute's name; missing modules are created.

    Raises:
        KeyError: if an attribute on the path is no module.
    """
    *names, last = path.split(".")
    for name in names:
        if name not in root._modules:
            root.add_module(name, nn.Module())
        root = root.get_submodule(name)
    return root, last
