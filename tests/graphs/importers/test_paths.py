"""A tree of modules grows by dotted paths."""

import pytest
import torch
from torch import nn

from graphs.program.program import home_of


def test_at_the_root() -> None:
    root = nn.Module()
    assert home_of(root, "weight") == (root, "weight")
    assert not list(root.children())


def test_modules_are_made_on_the_way() -> None:
    root = nn.Module()
    home, name = home_of(root, "layer1.0.conv")
    assert name == "conv"
    assert [path for path, _ in root.named_modules()] == ["", "layer1", "layer1.0"]
    assert home is root.get_submodule("layer1.0")
    home.add_module(name, nn.Identity())
    assert isinstance(root.get_submodule("layer1.0.conv"), nn.Identity)


def test_what_is_there_is_kept() -> None:
    inner = nn.Sequential(nn.Linear(1, 1))
    root = nn.Sequential(inner)
    assert home_of(root, "0.0.weight") == (inner[0], "weight")
    assert home_of(root, "0.1.bias") == (inner[1], "bias")
    assert [type(part) for part in inner.children()] == [nn.Linear, nn.Module]


def test_something_else_on_the_way() -> None:
    root = nn.Module()
    root.register_buffer("scale", torch.ones(1))
    with pytest.raises(KeyError, match="attribute 'scale' already exists"):
        home_of(root, "scale.weight")
