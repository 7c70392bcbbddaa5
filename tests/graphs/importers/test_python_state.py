"""What Python code keeps between calls is not in a graph: refused where the next call would compute something else."""

import itertools
from collections.abc import Callable
from copy import copy
from typing import Any

import pytest
import torch
from torch import nn

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module

CALLS = 0


class Keeps(nn.Module):
    """A layer, and a function that may change the module's attribute ``kept``."""

    shared = 0

    def __init__(self, function: Callable[[Any, torch.Tensor], Any], kept: Any) -> None:
        super().__init__()
        self.layer, self.function, self.kept = nn.Linear(4, 4), function, kept

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.function(self, self.layer(x))
        return result


class Global(nn.Module):
    """Counts all calls of all modules."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global CALLS
        CALLS += 1
        return x + CALLS


def counted(net: Any, y: torch.Tensor) -> Any:
    net.kept += 1
    return y + net.kept


def listed(net: Any, y: torch.Tensor) -> Any:
    net.kept.append(1.0)
    return y * len(net.kept)


def named(net: Any, y: torch.Tensor) -> Any:
    net.kept["calls"] = net.kept.get("calls", 0) + 1
    return y * net.kept["calls"]


def alternating(net: Any, y: torch.Tensor) -> Any:
    net.kept = not net.kept
    return y.relu() if net.kept else y.tanh()


def as_tensor(net: Any, y: torch.Tensor) -> Any:
    net.kept += 1
    return y + torch.tensor(float(net.kept))


def of_the_class(net: Any, y: torch.Tensor) -> Any:
    type(net).shared += 1
    return y + net.shared


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a count": (lambda: Keeps(counted, 0), "kept"),
    "a list": (lambda: Keeps(listed, []), "kept"),
    "a dict": (lambda: Keeps(named, {}), "kept"),
    "a switch": (lambda: Keeps(alternating, False), "kept"),
    "a count as a tensor": (lambda: Keeps(as_tensor, 0), "kept"),
    "an iterator": (lambda: Keeps(lambda net, y: y + next(net.kept), itertools.count()), "kept"),
    "a count of the class": (lambda: Keeps(of_the_class, None), "Keeps.shared"),
    "a global": (Global, f"{__name__}.CALLS"),
    "a count within": (lambda: nn.Sequential(nn.Linear(4, 4), Keeps(counted, 0)), "1.kept"),
}


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_another_call_would_compute_otherwise_is_refused(name: str, training: bool) -> None:
    make, path = REFUSED[name]
    with pytest.raises(InputError) as error:
        program_from_module(make(), (torch.ones(2, 4),), name="net", training=training)
    assert str(error.value) == (
        f"model 'net' changes '{path}' in Python while it runs, and computes something else in the next call; a graph "
        "cannot count its calls: pass the value in as an argument, or keep it out of forward()"
    )


def recorded(net: Any, y: torch.Tensor) -> Any:
    net.kept.append(y.detach().mean())
    return y


def cached(net: Any, y: torch.Tensor) -> Any:
    if net.kept is None:
        net.kept = torch.arange(4.0)
    return y + net.kept


def noted(net: Any, y: torch.Tensor) -> Any:
    net.kept += 1
    return y


def in_halves(net: Any, y: torch.Tensor) -> Any:
    net.kept += 1
    return torch.view_as_complex(y.half().reshape(-1, 2, 2)) * torch.tensor([1j, 2], dtype=torch.complex32)


@pytest.mark.parametrize(("function", "kept"), [(noted, 7), (in_halves, 7), (recorded, []), (cached, None)])
def test_what_the_result_does_not_show_is_taken_and_left_as_it_was(function: Any, kept: Any) -> None:
    net = Keeps(function, copy(kept))
    program = program_from_module(net, (torch.ones(2, 4),), training=True)
    assert program.graph.ops[0].kind == "aten.linear.default"
    assert net.kept == kept
    assert not net._forward_hooks
