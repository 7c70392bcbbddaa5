"""A backward pass in two halves: the gradients of a whole one, and as much work."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812  # its usual name
from torch.utils.flop_counter import FlopCounterMode

from planner.runtime.training.split_backward import first_half

N = 6


def values(count: int) -> list[torch.Tensor]:
    torch.manual_seed(count)
    return [torch.randn(N, N, dtype=torch.float64, requires_grad=True) for _ in range(count)]


Network = Callable[[list[torch.Tensor], list[torch.Tensor]], list[torch.Tensor]]
"""Roots from leaves and weights."""


def line(leaves: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    x = leaves[0]
    for weight in weights:
        x = torch.tanh(F.linear(x, weight))
    return [x]


def tied(leaves: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """A weight that is read twice as it is, and one that is scaled once and read twice."""
    scaled = weights[1] * 2
    x = leaves[0] * weights[0]
    x = torch.tanh((x @ scaled) * weights[0])
    return [x @ scaled + weights[2]]


def in_steps(leaves: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """A recurrent network: its first step, which no leaf reaches, reads the weights that the others read."""
    x, state, bias = leaves[0] @ weights[0], torch.ones(N, N, dtype=torch.float64), weights[2][0]
    for _ in range(3):
        state = torch.tanh(F.linear(state, weights[1], bias) + x)
    return [state]


def beside(leaves: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Two weights of one operator, of which one is made from the other."""
    bias = weights[1][0]
    return [F.linear(leaves[0], weights[0] * bias, bias)]


def apart(leaves: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Roots that no leaf reaches, one that is a leaf, and parts of an operator with several results."""
    a, b = torch.split(leaves[0] @ weights[0], 3)
    largest, _ = (a * b).topk(2)
    return [torch.sin(weights[1]), leaves[1], largest * weights[2][:3, :2], weights[0]]


@pytest.mark.parametrize("network", [line, tied, in_steps, beside, apart])
def test_the_gradients_are_those_of_a_whole_way_back(network: Network) -> None:
    whole = values(2), values(3)
    roots = network(*whole)
    gradients = [torch.randn_like(root) for root in roots]
    torch.autograd.backward(roots, gradients)

    leaves, weights = values(2), values(3)
    second = first_half(list(zip(network(leaves, weights), gradients, strict=True)), leaves)
    assert_equal(leaves, whole[0])
    assert [weight.grad for weight in weights] == [None] * 3  # not yet
    second.finish()
    assert_equal(weights, whole[1])
    assert_equal(leaves, whole[0])


def assert_equal(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(got, expected, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-13, atol=1e-13)


def test_each_half_does_half_of_the_work() -> None:
    leaves, weights = values(1), values(4)
    (root,) = line(leaves, weights)
    product = 2 * N**3  # FLOP of one matrix product
    with FlopCounterMode(display=False) as first:
        second = first_half([(root, torch.ones_like(root))], leaves)
    with FlopCounterMode(display=False) as rest:
        second.finish()
    assert (first.get_total_flops(), rest.get_total_flops()) == (4 * product, 4 * product)


def test_nobody_waits_for_a_gradient() -> None:
    weights = values(2)
    (root,) = line([torch.ones(N, N, dtype=torch.float64)], weights)
    with FlopCounterMode(display=False) as first:
        second = first_half([(root, torch.ones_like(root))], [])
    assert first.get_total_flops() == 0
    second.finish()
    assert all(weight.grad is not None for weight in weights)


def test_no_root() -> None:
    leaf = torch.ones(1, requires_grad=True)
    first_half([], [leaf]).finish()
    assert leaf.grad is None


STEPS = st.lists(
    st.tuples(st.sampled_from(["matmul", "scale", "add", "square"]), st.integers(0, 20), st.integers(0, 4)),
    min_size=1,
    max_size=8,
)


@given(STEPS)
def test_any_network(steps: list[tuple[str, int, int]]) -> None:
    def network(leaves: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
        found = [*leaves, *weights]
        for kind, read, other in steps:
            a, b = found[read % len(found)], found[other]
            match kind:
                case "matmul":
                    found.append(torch.tanh(a @ b))
                case "scale":
                    found.append(a * b)
                case "add":
                    found.append(a + b)
                case "square":
                    found.append(a * a)
        return found[-3:]

    test_the_gradients_are_those_of_a_whole_way_back(network)
