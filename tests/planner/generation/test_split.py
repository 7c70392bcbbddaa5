"""The division of layers against all divisions, on problems small enough to try them all."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations, product
from math import inf

import numpy as np
import pytest

from planner.generation.fit import fit
from planner.generation.question import GenerationQuestion, generation_question
from planner.generation.split import divide_model
from planner.generation.split_problem import (
    DivisionPart,
    SplitProblem,
    division_cost,
    over_bytes,
    reused_bytes,
    split_problem,
)
from tests.planner.generation import small


def divisions(problem: SplitProblem) -> Iterator[tuple[DivisionPart, ...]]:
    """Yield every division of the layers among different devices, one unit each, with every choice of experts away."""
    n, cluster = problem.n_layers, problem.question.cluster
    single = {unit.device_class: number for number, unit in enumerate(problem.units) if unit.size == 1}
    owner = [next(i for i, own in enumerate(problem.classes) if d in own.devices) for d in range(len(cluster.devices))]
    for count in range(1, len(cluster.devices) + 1):
        for order in permutations(range(len(cluster.devices)), count):
            for cuts in combinations(range(1, n), count - 1):
                bounds = (0, *cuts, n)
                parts = [DivisionPart(single[owner[d]], bounds[i], bounds[i + 1]) for i, d in enumerate(order)]
                yield from _with_experts_away(problem, parts)


def _with_experts_away(problem: SplitProblem, parts: list[DivisionPart]) -> Iterator[tuple[DivisionPart, ...]]:
    choices = []
    for part in parts:
        unit = problem.units[part.unit]
        prices = problem.layer_prices(unit)
        layers = range(part.start, part.stop)
        movable = [layer for layer in layers if unit.host is not None and prices[layer].expert_bytes]
        subsets = [away for size in range(len(movable) + 1) for away in combinations(movable, size)]
        choices.append([part._replace(away=away) for away in subsets])
    yield from product(*choices)


def fits(problem: SplitProblem, parts: tuple[DivisionPart, ...]) -> bool:
    """Return whether every device and every host has room, worked out without the search."""
    used: dict[int, float] = {}
    for part in parts:
        unit = problem.units[part.unit]
        prices = problem.layer_prices(unit)
        freed = sum(prices[layer].expert_bytes for layer in part.away)
        if over_bytes(problem, part) - freed > 1e-6:
            return False
        if problem.classes[unit.device_class].processor:
            own = sum(price.bytes for price in prices[part.start : part.stop])
            used[unit.device_class] = used.get(unit.device_class, 0.0) + own
        for layer in part.away:
            assert unit.host is not None
            used[unit.host] = used.get(unit.host, 0.0) + prices[layer].host_bytes
    rooms = {host: problem.question.cluster.devices[problem.classes[host].devices[0]].usable_bytes for host in used}
    return all(n_bytes <= rooms[host] + 1e-6 for host, n_bytes in used.items())


def least(problem: SplitProblem) -> float:
    """Return the least cost of all divisions that fit; infinite if none does."""
    return min((division_cost(problem, parts) for parts in divisions(problem) if fits(problem, parts)), default=inf)


def question(seed: int) -> GenerationQuestion:
    """Return a question about a random small model and three or four unlike devices on two hosts."""
    rng = np.random.default_rng(seed)
    experts = 8 if seed % 2 else 0
    kinds = [small.layer(1024, int(rng.integers(1, 5)) * 512, experts), small.layer(1024, 1024, 0, window=512)]
    layers = [kinds[int(rng.integers(0, 2))] for _ in range(int(rng.integers(3, 6)))]
    model = small.model(*layers, tied=bool(seed % 3 == 0))
    need = model.bytes / 1e6
    devices = [
        small.device("gpu0", 60 + need * rng.uniform(0.2, 0.8), host="a"),
        small.device("gpu1", 60 + need * rng.uniform(0.2, 1.1), host="b", speed=rng.uniform(0.3, 1.0)),
        small.device("gpu2", 60 + need * rng.uniform(0.2, 0.6), "RTX-3090", host="a", speed=rng.uniform(0.5, 1.0)),
        small.device("cpu0", 60 + need * rng.uniform(0.3, 1.5), "Xeon-6980P", host="a", speed=0.05),
    ]
    return generation_question(model, small.cluster(*devices), context=1024, sequences=int(rng.integers(1, 4)))


@pytest.mark.parametrize("seed", range(24))
def test_the_division_is_the_best_of_all(seed: int) -> None:
    problem = split_problem(question(seed))
    found, known = divide_model(problem), least(problem)
    if found.best is None:
        assert known == inf
        return
    assert fits(problem, found.best.parts)
    assert found.best.cost_s == pytest.approx(division_cost(problem, found.best.parts), rel=1e-9)
    assert found.bound_s <= known * (1 + 1e-9)
    assert found.best.cost_s >= known * (1 - 1e-9)
    if found.gap == 0:
        assert found.best.cost_s == pytest.approx(known, rel=1e-6)
    assert found.best.cost_s <= known * 1.2


def test_most_are_proved_to_be_optimal() -> None:
    found = [divide_model(split_problem(question(seed))) for seed in range(24)]
    assert sum(each.best is not None and each.gap == 0 for each in found) >= 12


def test_a_device_that_slows_things_down_is_left_out() -> None:
    model = small.model(*[small.layer(1024, 2048)] * 4)
    fast, slow = small.device("fast", 2000, host="a"), small.device("slow", 2000, host="b", speed=0.1)
    found = divide_model(split_problem(generation_question(model, small.cluster(fast, slow), context=1024)))
    assert found.best is not None
    assert found.next_best is not None
    assert [part.stop for part in found.best.parts] == [4]
    assert found.best.cost_s < found.next_best.cost_s


def test_equal_devices_are_interchangeable() -> None:
    model = small.model(*[small.layer(1024, 2048)] * 12)
    devices = [small.device(f"gpu{number}", 120) for number in range(8)]
    problem = split_problem(generation_question(model, small.cluster(*devices), context=512, prompt=128))
    found = divide_model(problem)
    assert len(problem.classes) == 1
    assert found.states == 9
    assert found.best is not None
    assert found.gap == 0


def test_weights_that_several_layers_use_are_once_on_each_device() -> None:
    """Layers 2 and 3 use the weights of layer 1, and layer 5 those of layer 4."""
    first, second = small.layer(1024, 2048), small.layer(1024, 1024)
    again = [
        replace(layer, tensors=tuple(replace(tensor, owner=owner) for tensor in layer.tensors))
        for layer, owner in ((first, 1), (second, 4))
    ]
    model = small.model(second, first, again[0], again[0], second, again[1])
    assert model.parameters == first.parameters + 2 * second.parameters + sum(t.elements for t in model.tensors)
    pair = small.cluster(small.device("a", 2000), small.device("b", 2000))
    problem = split_problem(generation_question(model, pair))
    unit = next(unit for unit in problem.units if unit.size == 1)
    place = np.arange(7)
    extra = reused_bytes(problem, unit, place[:, None], place)
    for start, stop in combinations(range(7), 2):
        lacks = [layer for layer, owner in ((first, 1), (second, 4)) if not start <= owner < stop]
        uses = [layer for layer in lacks if any(start <= at < stop for at in ((2, 3) if layer is first else (5,)))]
        assert extra[start, stop] == sum(layer.bytes for layer in uses)
    alone = fit(model, cluster=small.cluster(small.device("a", 2000)))
    assert alone.holdings[0].weights == first.bytes + 2 * second.bytes
