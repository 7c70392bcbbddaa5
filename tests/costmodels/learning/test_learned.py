"""Learning: the law of a made-up device is found again, and what is not known is said."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.learning.features import pass_bytes
from costmodels.learning.learned import LearnedModel, fit_learned, learn
from costmodels.measured import Measurement, Profile, TrainingMeasurement
from costmodels.operators.flops import work_of
from costmodels.operators.keys import op_keys, training_keys
from costmodels.profilefile import ProbeMeasurement, Sweep, write_profile, write_sweep
from graphs.common.errors import InputError
from graphs.ir import Graph
from tests.costmodels.sketches import sketch

FINGERPRINT = "abc123"


def network(rows: int, inner: int, out: int, channels: int, side: int) -> Graph:
    """A linear layer, and two convolutions of which the second reads what the first wrote."""
    return sketch(
        {
            "x": (rows, inner),
            "w1": (out, inner),
            "a": (rows, out),
            "r": (rows, out),
            "x2": (rows, channels, side, side),
            "w2": (2 * channels, channels, 3, 3),
            "c": (rows, 2 * channels, side, side),
            "w3": (channels, 2 * channels, 1, 1),
            "d": (rows, channels, side, side),
            "v": (rows, channels * side * side),
        },
        [
            ("aten.linear.default", "x w1", "a"),
            ("aten.relu.default", "a", "r"),
            ("aten.conv2d.default", "x2 w2", "c", {"padding": (1, 1)}),
            ("aten.conv2d.default", "c w3", "d"),
            ("aten.flatten.using_ints", "d", "v", {"start_dim": 1}),
        ],
        "r v",
    )


def device_s(graph: Graph) -> np.ndarray:
    """A device that computes and moves one after the other, and needs some time to begin."""
    work = work_of(graph)
    return np.asarray(3e-6 + work.flop / 1e11 + work.n_bytes / 1e10)


def measured(graph: Graph) -> dict[str, Measurement]:
    return {key: Measurement(s, 0.0, 5) for key, s in zip(op_keys(graph), device_s(graph).tolist(), strict=True)}


def networks(count: int, seed: int) -> list[Graph]:
    draw = random.Random(seed)

    def size(low: float, high: float) -> int:
        return round(2 ** draw.uniform(low, high))

    return [network(size(0, 5), size(4, 11), size(4, 11), size(3, 8), size(2, 6)) for _ in range(count)]


SEEN = networks(60, seed=0)
SWEEP = Sweep(
    FINGERPRINT, {f"{i}": ProbeMeasurement(float(pass_bytes(g)), measured(g)) for i, g in enumerate(SEEN[:30])}
)
PROFILE = Profile(FINGERPRINT, {}, {key: m for graph in SEEN[30:] for key, m in measured(graph).items()})


@pytest.fixture(scope="module")
def learned() -> LearnedModel:
    return fit_learned(PROFILE, SWEEP)


def test_the_law_of_the_device_is_found_again(learned: LearnedModel) -> None:
    for graph in networks(20, seed=1):
        predictions = learned.predict(graph)
        np.testing.assert_allclose(predictions.seconds, device_s(graph), rtol=0.1)
        assert (predictions.guessed, predictions.unknown) == ((), ())
        np.testing.assert_array_equal(learned.seconds(graph), predictions.seconds)


def test_a_sweep_alone_or_a_profile_alone_will_do() -> None:
    for learned in (fit_learned(None, SWEEP), fit_learned(PROFILE, None)):
        off = [np.abs(learned.seconds(graph) / device_s(graph) - 1)[1:] for graph in networks(10, seed=2)]
        assert np.max(off) < 0.05  # all but the product, which a profile alone does not teach


def test_what_lies_in_the_cache_is_learned_once_the_device_was_swept(tmp_path: Path, learned: LearnedModel) -> None:
    write_profile(tmp_path, PROFILE)
    assert learn(tmp_path, FINGERPRINT) is None
    write_sweep(tmp_path, SWEEP)
    found = learn(tmp_path, FINGERPRINT)
    assert found is not None
    graph = SEEN[0]
    assert found.seconds(graph).tobytes() == learned.seconds(graph).tobytes()


def test_equal_operators_take_the_same_time_wherever_they_are(learned: LearnedModel) -> None:
    graph = sketch(
        {"x": (4, 8), "a": (4, 8), "c": (4, 8)}, [("aten.relu.default", "x", "a"), ("aten.relu.default", "a", "c")]
    )
    first, second = learned.seconds(graph)
    assert first == second


def test_more_work_takes_longer(learned: LearnedModel) -> None:
    for smaller, larger in ((8, 16), (64, 128), (256, 1024), (1024, 8192)):  # the last one is larger than any seen
        few, many = (learned.seconds(network(4, size, size, 16, 8))[:2] for size in (smaller, larger))
        assert np.all(few < many)


def test_a_kind_that_was_not_measured_is_priced_by_its_work_and_named(learned: LearnedModel) -> None:
    graph = sketch({"x": (64, 1024), "a": (64, 1024)}, [("aten.erf.default", "x", "a")])
    predictions = learned.predict(graph)
    assert predictions.guessed == ("aten.erf.default",)
    assert predictions.seconds[0] > 0
    assert np.isfinite(predictions.spread[0])


def test_nothing_is_said_of_a_kind_that_nobody_knows(learned: LearnedModel) -> None:
    graph = sketch(
        {"x": (4, 8), "a": (4, 8), "c": (4, 8)},
        [("aten.relu.default", "x", "a"), ("mine.trick.default", "a", "c")],
    )
    predictions = learned.predict(graph)
    assert predictions.unknown == ("mine.trick.default",)
    assert np.isfinite(predictions.seconds).tolist() == [True, False]
    assert np.isfinite(predictions.spread).tolist() == [True, False]


def test_where_little_was_measured_it_is_less_sure(learned: LearnedModel) -> None:
    near = learned.predict(network(4, 256, 256, 16, 8)).spread[0]
    far = learned.predict(network(4, 2**17, 2**17, 16, 8)).spread[0]
    assert far > near


def test_the_same_measurements_teach_the_same(learned: LearnedModel) -> None:
    again = fit_learned(PROFILE, SWEEP)
    graph = networks(1, seed=3)[0]
    assert again.seconds(graph).tobytes() == learned.seconds(graph).tobytes()


def test_products_that_read_more_than_they_compute_are_learned_from_probes_only() -> None:
    """A profile does not say from which memory the weights came; nothing else is left out of it."""
    graph = network(1, 512, 512, 16, 8)
    wrong = {key: Measurement(1.0, 0.0, 5) for key in op_keys(graph) if "linear" in key}
    misled = fit_learned(Profile(FINGERPRINT, {}, {**PROFILE.ops, **wrong}), SWEEP)
    np.testing.assert_allclose(misled.seconds(graph)[0], device_s(graph)[0], rtol=0.1)


def test_measurements_of_two_machines_are_refused() -> None:
    with pytest.raises(InputError) as error:
        fit_learned(Profile("fff", {}, {}), SWEEP)
    assert str(error.value) == (
        "nothing can be learned from measurements of one machine: those of abc123 and fff do not mix; "
        "calibrate on this one"
    )
    with pytest.raises(InputError, match="there are none"):
        fit_learned(None, None)


def trained(graph: Graph) -> dict[str, TrainingMeasurement]:
    """Convolutions of a device that needs twice as long to keep what it saves, and thrice for each way back."""
    ways_back = (1, 1, 1, 2, 1)  # the first convolution's picture needs no gradient
    return {
        key: TrainingMeasurement(Measurement(2 * seconds, 0, 1), Measurement(3 * n * seconds, 0, 1))
        for key, seconds, n in zip(training_keys(graph), device_s(graph).tolist(), ways_back, strict=True)
        if "conv2d" in key
    }


@pytest.mark.parametrize("swept", [False, True])
def test_families_that_were_measured_in_training_know_what_it_takes(swept: bool) -> None:
    """Whether in whole networks or in the sweep."""
    if swept:
        probes = {
            name: replace(probed, training=trained(graph))
            for (name, probed), graph in zip(SWEEP.probes.items(), SEEN[:30], strict=True)
        }
        learned = fit_learned(PROFILE, replace(SWEEP, probes=probes))
    else:
        steps = {key: step for graph in SEEN[30:] for key, step in trained(graph).items()}
        learned = fit_learned(replace(PROFILE, training=steps), SWEEP)
    for graph in networks(5, seed=4):
        isolated, both = learned.predict(graph), learned.predict(graph, training=True)
        np.testing.assert_allclose(both.seconds / isolated.seconds, [1, 1, 2, 2, 1], rtol=0.15)
        np.testing.assert_allclose(both.backward_s / isolated.seconds, [1, 1, 3, 6, 1], rtol=0.15)
        assert np.all(both.spread > 0)
        assert (both.guessed, both.unknown) == ((), ())


def test_what_was_not_measured_in_training_follows_from_inference(learned: LearnedModel) -> None:
    graph = networks(1, seed=4)[0]
    isolated, both = learned.predict(graph), learned.predict(graph, training=True)
    assert not isolated.backward_s.any()
    assert both.seconds.tobytes() == isolated.seconds.tobytes()
    assert (both.backward_s / both.seconds).tolist() == pytest.approx([1, 1, 1, 2, 1])
    assert both.spread.tobytes() == isolated.spread.tobytes()
    assert learned.training == {}


def test_of_an_unknown_kind_nothing_is_said_in_training_either(learned: LearnedModel) -> None:
    graph = sketch({"x": (4, 8), "w": (8,), "a": (4, 8)}, [("mine.trick.default", "x w", "a")])
    both = learned.predict(graph, training=True)
    assert np.isnan([both.seconds[0], both.backward_s[0], both.spread[0]]).all()


def test_too_few_measurements_make_no_family() -> None:
    graph = network(4, 64, 64, 16, 8)
    learned = fit_learned(Profile(FINGERPRINT, {}, measured(graph)), None)
    assert learned.families == {}
    assert learned.predict(graph).guessed == (
        "aten.linear.default",
        "aten.relu.default",
        "aten.conv2d.default",
        "aten.flatten.using_ints",
    )
    nothing = fit_learned(Profile(FINGERPRINT, {}, {}), None)
    assert np.all(np.isnan(nothing.seconds(graph)))
