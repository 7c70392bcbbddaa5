"""Data or model parallelism for each layer: one weird trick, and random chains beside every choice."""

from itertools import product
from random import Random

import pytest

from graphs.common.errors import InputError
from planner.literature.layerwise.layer_modes import MODES, best_modes
from planner.literature.layerwise.layer_parallelism import ChainLayer, LayerMode, LayerProblem, layer_problems

PARAMETERS = 34944, 307456, 885120, 663936, 442624, 37752832, 16781312, 4097000
VALUES = 150528, 69984, 43264, 64896, 64896, 9216, 4096, 4096, 1000
ALEXNET = tuple(
    ChainLayer(f"layer{i}", parameters, VALUES[i], VALUES[i + 1]) for i, parameters in enumerate(PARAMETERS)
)


@pytest.mark.parametrize(
    ("batch", "modes", "megabytes"),
    [(128, "dddddmmm", 32.048), (1024, "dddddmmm", 142.015), (2048, "dddddmmd", 243.198), (4096, "dddddddd", 426.757)],
)
def test_convolutions_are_data_parallel_and_the_rest_by_the_batch(batch: int, modes: str, megabytes: float) -> None:
    problem = LayerProblem("AlexNet", ALEXNET, batch, 8)
    found = best_modes(problem)
    assert "".join(found) == modes
    assert round(problem.sent_bytes(found) / 1e6, 3) == megabytes


def test_all_model_parallel_sends_what_is_published() -> None:
    all_model: tuple[LayerMode, ...] = ("m",) * 8
    assert LayerProblem("AlexNet", ALEXNET, 128, 8).sent_bytes(all_model) == 233_473_408


@pytest.mark.parametrize("seed", range(10))
def test_no_choice_sends_less(seed: int) -> None:
    rng = Random(seed)
    layers = tuple(
        ChainLayer(str(i), rng.randint(1, 10**6), rng.randint(1, 1000), rng.randint(1, 1000)) for i in range(6)
    )
    problem = LayerProblem("random", layers, rng.randint(1, 512), rng.randint(2, 9))
    least = min(problem.sent_bytes(modes) for modes in product(MODES, repeat=6))
    assert problem.sent_bytes(best_modes(problem)) == pytest.approx(least)


def test_an_unknown_network_is_named() -> None:
    layer = {"name": "fc", "parameters": 1, "in": 1, "out": 1}
    case = {"network": "AlexNt", "batch": 1, "gpus": 2}
    with pytest.raises(
        InputError, match=r"case number 1 names the network 'AlexNt'; did you mean 'AlexNet'\?; list it"
    ):
        layer_problems({"networks": {"AlexNet": [layer]}, "layers": [case]})
