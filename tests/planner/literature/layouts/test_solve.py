"""Layouts of named dimensions: a product by hand, and random programs beside every layout there is."""

from collections.abc import Iterator
from itertools import product
from random import Random

import pytest

from graphs.common.errors import InputError
from planner.literature.layouts.dimension_layout import LayoutOperation, LayoutProblem, layout_problems
from planner.literature.layouts.solve import solve_layout
from planner.problem.result import Status

PRODUCT = {
    "name": "product",
    "mesh": {"m1": 4, "m2": 2},
    "bytes_each": 4,
    "tensors": {"x": {"a": 10, "b": 5}, "y": {"b": 5, "c": 20}, "z": {"a": 10, "c": 20}},
    "ops": [
        {"inputs": [], "outputs": ["x"]},
        {"inputs": [], "outputs": ["y"]},
        {"inputs": ["x", "y"], "outputs": ["z"]},
    ],
    "unsplittable": [],
    "final": [],
}


def test_a_product_splits_both_dimensions_of_its_result() -> None:
    # a over 2, c over 4: x 25, y 25 and z 25 entries of 4 bytes
    (problem,) = layout_problems({"cases": [PRODUCT]})
    found = solve_layout(problem)
    assert found == ({"a": "m2", "c": "m1"}, 300, Status.OPTIMAL)


def test_what_another_operation_needs_as_well_is_counted_once() -> None:
    # x; x and y; x, y and z, all of different shapes
    (problem,) = layout_problems({"cases": [PRODUCT]})
    assert problem.live == ((1, 1, 1),)


def random_problem(seed: int) -> LayoutProblem:
    rng = Random(seed)
    names = "abcd"
    sizes = {name: rng.choice([2, 4, 6, 8, 9, 12]) for name in names}
    tensors = {f"t{i}": {name: sizes[name] for name in rng.sample(names, rng.randint(1, 3))} for i in range(6)}
    operations = [LayoutOperation((), ("t0",))]
    for i in range(1, 6):
        inputs = tuple(f"t{j}" for j in rng.sample(range(i), rng.randint(1, min(2, i))))
        operations.append(LayoutOperation(inputs, (f"t{i}",)))
    mesh = {"m1": rng.choice([2, 3, 4]), "m2": 2, "m3": 3}
    final = frozenset(rng.sample(sorted(tensors), 1))
    return LayoutProblem("random", mesh, 4, tensors, tuple(operations), frozenset(rng.sample(names, 1)), final)


def legal_layouts(problem: LayoutProblem) -> Iterator[dict[str, str]]:
    for axes in product([None, *problem.mesh], repeat=len(problem.dimensions)):
        layout = {name: axis for name, axis in zip(problem.dimensions, axes, strict=True) if axis}
        apart = all(layout.get(other) != axis for name, axis in layout.items() for other in problem.together[name])
        if apart and all(axis in problem.splits(name) for name, axis in layout.items()):
            yield layout


@pytest.mark.parametrize("seed", range(20))
def test_no_layout_needs_less_or_splits_more_for_as_much(seed: int) -> None:
    problem = random_problem(seed)
    best = min((problem.peak_bytes(layout), -len(layout)) for layout in legal_layouts(problem))
    found = solve_layout(problem)
    assert (found.peak_bytes, -len(found.layout)) == best
    assert found.status is Status.OPTIMAL
    assert found.layout in list(legal_layouts(problem))


def test_an_unknown_tensor_is_named() -> None:
    wrong = PRODUCT | {"ops": [{"inputs": ["w"], "outputs": ["x"]}]}
    with pytest.raises(InputError, match=r"operation number 1 of case number 1 names the tensor 'w', which .* add it"):
        layout_problems({"cases": [wrong]})
