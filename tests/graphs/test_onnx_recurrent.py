"""GRU, LSTM and RNN with every attribute, against the equations of the standard, one sample and one step at a time."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from graphs.common.errors import InputError
from graphs.importers.load import load_program
from graphs.importers.onnx.control_flow import MOST_ROUNDS
from tests.graphs.onnx_models import assert_close, model_of, run, saved, single, value_info

STEPS, BATCH, INPUTS, WIDTH = 3, 3, 2, 3
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "LeakyRelu": lambda x, a: np.where(x < 0, a * x, x),
    "ThresholdedRelu": lambda x, a: np.where(x > a, x, 0),
    "Elu": lambda x, a: np.where(x < 0, a * (np.exp(np.minimum(x, 0)) - 1), x),
    "Affine": lambda x, a, b: a * x + b,
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
}
N_PARAMETERS = {"LeakyRelu": 1, "ThresholdedRelu": 1, "Elu": 1, "Affine": 2, "ScaledTanh": 2, "HardSigmoid": 2}
DEFAULTS = {"GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"], "RNN": ["Tanh"]}


def drawn(seed: int, *shape: int) -> np.ndarray:
    """Numbers around 0."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def operands_of(kind: str, n_directions: int, bias: bool, lengths: list[int] | None, peephole: bool) -> list[Any]:
    """X, W, R, B, sequence_lens, initial_h, and for an LSTM initial_c and P."""
    n = GATES[kind]
    given: list[Any] = [drawn(1, STEPS, BATCH, INPUTS), drawn(2, n_directions, n * WIDTH, INPUTS)]
    given += [drawn(3, n_directions, n * WIDTH, WIDTH), drawn(4, n_directions, 2 * n * WIDTH) if bias else None]
    given += [None if lengths is None else np.array(lengths, np.int32), drawn(5, n_directions, BATCH, WIDTH)]
    if kind == "LSTM":
        given += [drawn(6, n_directions, BATCH, WIDTH), drawn(7, n_directions, 3 * WIDTH) if peephole else None]
    return given


def step(kind: str, f: list[Any], traits: Any, gates: Any, h: Any, c: Any, p: Any) -> tuple[Any, Any]:
    """One step of one sample; ``gates`` are rows (x·W + its bias, R, its bias) of each gate in ONNX's order."""
    whole = [x + r @ h + b for x, r, b in gates]
    if kind == "RNN":
        return f[0](whole[0]), c
    if kind == "LSTM":
        i = f[0](whole[0] + p[0] * c)
        forget = 1 - i if traits.get("input_forget") else f[0](whole[2] + p[2] * c)
        cell = forget * c + i * f[1](whole[3])
        return f[0](whole[1] + p[1] * cell) * f[2](cell), cell
    z, reset = f[0](whole[0]), f[0](whole[1])
    x, r, b = gates[2]
    new = f[1](x + reset * (r @ h + b) if traits.get("linear_before_reset") else x + r @ (reset * h) + b)
    return (1 - z) * new + z * h, c


def functions_of(kind: str, traits: Any, n_directions: int) -> list[list[Any]]:
    """The functions of each direction, whose operands are clipped, but an LSTM's cell."""
    n, names = len(DEFAULTS[kind]), traits.get("activations", DEFAULTS[kind] * n_directions)
    queues = [iter(traits.get(f"activation_{key}", [])) for key in ("alpha", "beta")]
    found: list[Any] = []
    for place, name in enumerate(names):
        given = [next(queue) for queue in queues[: N_PARAMETERS.get(name, 0)]]
        limit = traits["clip"] if "clip" in traits and place % n < 2 else np.inf
        found.append(lambda x, f=FUNCTIONS[name], m=limit, g=given: f(np.clip(x, -m, m), *g))
    return [found[i : i + n] for i in range(0, len(found), n)]


def by_hand(kind: str, operands: list[Any], traits: dict[str, Any]) -> list[np.ndarray]:
    """Y [steps, directions, batch, width] and the final states."""
    x, w, r, biases, lengths, *states = [*operands, None, None][:8]
    n_directions = w.shape[0]
    n, given = GATES[kind], states[2] if kind == "LSTM" else None
    y = np.zeros((STEPS, n_directions, BATCH, WIDTH))
    final = [np.zeros((n_directions, BATCH, WIDTH)) for _ in range(2)]
    functions = functions_of(kind, traits, n_directions)
    for d, sample in itertools.product(range(n_directions), range(BATCH)):
        b = np.zeros(2 * n * WIDTH) if biases is None else biases[d]
        h, c = states[0][d, sample], states[1][d, sample] if kind == "LSTM" else 0.0
        end = STEPS if lengths is None else int(lengths[sample])
        for t in range(end)[:: -1 if traits["direction"] == "reverse" or d else 1]:
            rows = [slice(g * WIDTH, (g + 1) * WIDTH) for g in range(n)]
            gates = [(w[d][g] @ x[t, sample] + b[: n * WIDTH][g], r[d][g], b[n * WIDTH :][g]) for g in rows]
            p = np.zeros((3, WIDTH)) if given is None else given[d].reshape(3, WIDTH)
            h, c = step(kind, functions[d], traits, gates, h, c, p)
            y[t, d, sample] = h
        final[0][d, sample], final[1][d, sample] = h, c
    return [y, *final[: 2 if kind == "LSTM" else 1]]


def variants(kind: str) -> list[Any]:
    """Attributes, lengths and whether there is a bias: each attribute alone and all together, in both directions."""
    odd = {"GRU": ["Tanh", "Softplus"], "LSTM": ["HardSigmoid", "Softsign", "LeakyRelu"], "RNN": ["Elu"]}[kind]
    others = {"GRU": ["Relu", "ThresholdedRelu"], "LSTM": ["Elu", "ScaledTanh", "Relu"], "RNN": ["Affine"]}[kind]
    counts = [sum(N_PARAMETERS.get(name, 0) >= least for name in odd + others) for least in (1, 2)]
    named: dict[str, Any] = {"activations": odd + others, "activation_alpha": [0.3, 0.1, 0.7, 0.6][: counts[0]]}
    named = {key: value for key, value in (named | {"activation_beta": [0.4, 0.2][: counts[1]]}).items() if value}
    ways: list[dict[str, Any]] = [{}, {"clip": 0.4}, named, named | {"clip": 0.4}]
    flag = {"GRU": "linear_before_reset", "LSTM": "input_forget"}.get(kind)
    ways += [way | {flag: 1} for way in ways if flag]
    both = [{"direction": "bidirectional"} | way for way in ways]
    single_ways = [{"direction": way} | extra for way in ("forward", "reverse") for extra in ({}, {"clip": 0.4})]
    return [(way, lengths, lengths is None) for way in both + single_ways for lengths in (None, [3, 1, 2], [3, 3, 3])]


@pytest.mark.parametrize("kind", GATES)
def test_every_variant_follows_the_equations(kind: str) -> None:
    for traits, lengths, bias in variants(kind):
        n_directions = 2 if traits["direction"] == "bidirectional" else 1
        operands = operands_of(kind, n_directions, bias, lengths, peephole=bias)
        given = traits | {"hidden_size": WIDTH}
        model, feeds = single(kind, operands, given, 21, 3 if kind == "LSTM" else 2)
        assert_close(run(model, feeds), [each.astype(np.float32) for each in by_hand(kind, operands, traits)])


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("kind", "traits"), [("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("LSTM", {}), ("RNN", {})]
)
@pytest.mark.parametrize("layout", [0, 1])
def test_directions_and_layouts_are_as_the_reference_has_them(
    kind: str, traits: dict[str, Any], direction: str, layout: int
) -> None:
    n_directions = 2 if direction == "bidirectional" else 1
    operands = operands_of(kind, n_directions, True, None, peephole=kind == "LSTM")
    if layout:
        operands = [np.swapaxes(x, 0, 1) if i in (0, 5, 6) and x is not None else x for i, x in enumerate(operands)]
    given = {"direction": direction, "hidden_size": WIDTH, "layout": layout} | traits
    model, feeds = single(kind, operands, given, 21, 3 if kind == "LSTM" else 2)
    outputs = ReferenceEvaluator(model).run(None, feeds)
    assert isinstance(outputs, list)
    assert_close(run(model, feeds), outputs)


def file_of(folder: Path, kind: str = "GRU", n_steps: int = STEPS, **traits: Any) -> Path:
    """A network whose sequence lengths are an input."""
    n = GATES[kind]
    weights = {"w": drawn(2, 1, n * WIDTH, INPUTS), "r": drawn(3, 1, n * WIDTH, WIDTH)}
    node = helper.make_node(kind, ["x", "w", "r", "", "lengths"], ["y"], "layer", hidden_size=WIDTH, **traits)
    inputs = [value_info("x", [n_steps, BATCH, INPUTS]), value_info("lengths", [BATCH], TensorProto.INT32)]
    return saved(model_of([node], inputs, ["y"], weights), folder)


def test_lengths_may_come_with_each_call(tmp_path: Path) -> None:
    program = load_program(str(file_of(tmp_path)))
    operands = [*operands_of("GRU", 1, False, [2, 3, 1], False)[:5], np.zeros((1, BATCH, WIDTH))]
    (wanted, _) = by_hand("GRU", operands, {"direction": "forward"})
    given = program.run(torch.from_numpy(operands[0]), torch.tensor([2, 3, 1], dtype=torch.int32))
    torch.testing.assert_close(given, torch.from_numpy(wanted.astype(np.float32)), rtol=1e-4, atol=1e-5)


def test_a_sequence_that_would_make_too_large_a_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"node 'layer' \(GRU, opset 21\): a sequence of more than 2000 steps that Py"):
        load_program(str(file_of(tmp_path, n_steps=MOST_ROUNDS + 1)))


@pytest.mark.parametrize("direction", ["bidirectional", "sideways"])
def test_weights_of_other_directions_are_refused(direction: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"node 'layer' .*: direction={direction} and hidden_size={WIDTH} with weig"):
        load_program(str(file_of(tmp_path, direction=direction)))
