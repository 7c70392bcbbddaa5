"""What Python code keeps between calls is not in a graph: refused where the next call would compute something else."""

import itertools
import random
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from graphs.common.errors import InputError
from graphs.importers import drawn_numbers
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


def added(net: Any, y: torch.Tensor) -> Any:
    net.kept = net.kept + 1
    return y * net.kept


def last(net: Any, y: torch.Tensor) -> Any:
    result = y if net.kept is None else y + net.kept
    net.kept = y
    return result


def first(net: Any, y: torch.Tensor) -> Any:
    if net.kept is None:
        net.kept = y.mean(0)
    return y - net.kept


def appended(net: Any, y: torch.Tensor) -> Any:
    net.kept.append(y)
    return sum(net.kept)


def entered(net: Any, y: torch.Tensor) -> Any:
    result = y + net.kept.get("last", 0)
    net.kept["last"] = y
    return result


class Holder:
    last: torch.Tensor | None = None


def within(net: Any, y: torch.Tensor) -> Any:
    result = y if net.kept.last is None else y + net.kept.last
    net.kept.last = y
    return result


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a count": (lambda: Keeps(counted, 0), "kept"),
    "a list": (lambda: Keeps(listed, []), "kept"),
    "a dict": (lambda: Keeps(named, {}), "kept"),
    "a switch": (lambda: Keeps(alternating, False), "kept"),
    "a count as a tensor": (lambda: Keeps(as_tensor, 0), "kept"),
    "an iterator": (lambda: Keeps(lambda net, y: y + next(net.kept), itertools.count()), "kept"),
    "a count of the class": (lambda: Keeps(of_the_class, None), "Keeps.shared"),
    "a global": (Global, f"{__name__}.CALLS"),
    "a tensor that counts": (lambda: Keeps(added, torch.zeros(4)), "kept"),
    "the last tensor": (lambda: Keeps(last, None), "kept"),
    "the first tensor": (lambda: Keeps(first, None), "kept"),
    "tensors in a list": (lambda: Keeps(appended, []), "kept"),
    "the last few": (lambda: Keeps(appended, deque(maxlen=2)), "kept"),
    "a tensor in a dict": (lambda: Keeps(entered, {}), "kept"),
    "a tensor in an object": (lambda: Keeps(within, Holder()), "kept"),
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
        "keeps nothing between calls: pass the value in as an argument, or keep it out of forward()"
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


def grown(net: Any, y: torch.Tensor) -> Any:
    """Keep a table for the longest sequence so far, as rotary positions do."""
    if y.shape[0] > net.longest:
        net.longest, net.kept = y.shape[0], torch.outer(torch.arange(y.shape[0]), net.layer.bias).cos()
    return y * net.kept[: y.shape[0]]


def multiplied(net: Any, y: torch.Tensor) -> Any:
    """Keep a product of weights."""
    if net.kept is None:
        net.kept = net.layer.weight.detach() @ net.layer.weight.detach().T
    return y @ net.kept


def grown_and_counted(net: Any, y: torch.Tensor) -> Any:
    net.longest += 1
    return grown(net, y) + net.longest


@pytest.mark.parametrize("function", [grown, multiplied])
def test_tensors_of_constants_and_weights_may_be_kept(function: Any) -> None:
    net, x = Keeps(function, None), torch.rand(2, 4)
    net.longest = 0  # type: ignore[assignment]  # a plain attribute
    program = program_from_module(net, (x,))
    assert net.kept is None
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(program.run(x), net(x))


def test_a_count_beside_such_a_tensor_is_seen() -> None:
    net = Keeps(grown_and_counted, None)
    net.longest = 0  # type: ignore[assignment]  # a plain attribute
    with pytest.raises(InputError, match=r"changes '(kept|longest)' in Python while it runs"):
        program_from_module(net, (torch.ones(5, 4),))


def dropped(_: Any, y: torch.Tensor) -> Any:
    for _i in range(6):
        y = y * 2 if random.random() > 0.1 else y
    return y


def shuffled(_: Any, y: torch.Tensor) -> Any:
    order = [0, 1]
    random.shuffle(order)
    return y[order]


def scaled(_: Any, y: torch.Tensor) -> Any:
    return y * float(np.random.rand())  # as models do


def of_its_own(net: Any, y: torch.Tensor) -> Any:
    return y * net.kept.random()


DRAWING: dict[str, tuple[Any, Any, str]] = {
    "layers that are dropped": (dropped, None, "random"),
    "an order": (shuffled, None, "random"),
    "a factor": (scaled, None, "numpy.random"),
    "a generator": (of_its_own, random.Random(3), "kept"),
    "NumPy's generator": (of_its_own, np.random.default_rng(3), "kept"),
}


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", DRAWING)
def test_numbers_drawn_in_python_are_refused(name: str, training: bool) -> None:
    function, kept, generator = DRAWING[name]
    before = random.getstate()
    with pytest.raises(InputError) as error:
        program_from_module(Keeps(function, kept), (torch.ones(2, 4),), name="net", training=training)
    assert str(error.value) == (
        f"model 'net' draws random numbers in Python ('{generator}') while it runs, and a graph repeats those of its "
        "trace; draw with PyTorch there (torch.rand), or pass them in as an argument"
    )
    assert random.getstate() == before


def test_draws_that_change_nothing_are_taken() -> None:
    def draws(net: Any, y: torch.Tensor) -> Any:
        return y * 2 if random.random() < 0.5 and net.training else y

    assert len(program_from_module(Keeps(draws, None), (torch.ones(2, 4),)).graph.ops) == 1


def test_extreme_draws_are_extreme() -> None:
    (python, numpy, *_) = drawn_numbers.generators(nn.ReLU())
    with drawn_numbers.restored([python, numpy]) as drawn:
        assert not drawn()
        for word, extreme in ((0, 0.0), (drawn_numbers.HIGHEST, 1 - 2**-53)):
            for each in (python, numpy):
                each.begin_with(word)
            assert random.random() == np.random.rand() == extreme  # the state that is set
        assert drawn() == [python, numpy]


def seeded(_: Any, y: torch.Tensor) -> Any:
    torch.manual_seed(7)
    return y + torch.rand(4)


def seeded_apart(_: Any, y: torch.Tensor) -> Any:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(7)
        return y + torch.rand(4)


@pytest.mark.parametrize("function", [seeded, seeded_apart])
def test_a_seed_set_by_a_module_is_refused(function: Any) -> None:
    net, state = Keeps(function, None), torch.get_rng_state()
    with pytest.raises(InputError) as error:
        program_from_module(net, (torch.ones(2, 4),), name="net")
    assert str(error.value) == (
        "model 'net' seeds PyTorch's random numbers while it runs (torch.manual_seed(7)), which no operator of a graph "
        "does; seed before the call, or pass what is drawn in as an argument"
    )
    assert torch.equal(torch.get_rng_state(), state)
