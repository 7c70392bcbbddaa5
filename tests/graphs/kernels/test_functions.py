"""Graphs into functions: whatever a graph holds stays data."""

import gc
import os
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from graphs.kernels.functions import function_of


def kept(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def test_arguments_of_all_kinds() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    made = graph.call_function(kept, (x, [y, 1], ("a", (x,)), ()), {"dtype": torch.float32, "other": [y]})
    graph.output((made, x))
    found, again = function_of(graph, [torch.ones(1)])("second")
    assert again.item() == 1
    assert found == ((again, ["second", 1], ("a", (again,)), ()), {"dtype": torch.float32, "other": ["second"]})


@pytest.mark.attack("file")
@pytest.mark.parametrize(
    "name", ["x=__import__('os').system('touch pwned')", "lambda", "from", "f2", "c0", "__class__"]
)
def test_names_are_data(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(kept, (x, name), {name: name}),))
    ((found, options),) = function_of(graph, [])(torch.ones(1))
    assert found[1] == options[name] == name
    assert os.listdir() == []


def test_values_go_behind_their_last_use() -> None:
    alive: list[bool] = []
    seen: list[weakref.ref[torch.Tensor]] = []

    def watch(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(weakref.ref(tensor))
        return tensor + 1

    def look(tensor: torch.Tensor) -> torch.Tensor:
        gc.collect()
        alive.extend(reference() is not None for reference in seen)
        return tensor

    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(torch.neg, (x,))
    second = graph.call_function(watch, (first,))
    graph.call_function(watch, (second,))  # nobody reads what it makes
    graph.output((graph.call_function(look, (second,)),))
    function_of(graph, [])(torch.ones(1))
    assert alive == [False, True]
