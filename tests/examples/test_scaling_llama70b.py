"""Llama 70B on paper: the example runs, is the same each time, and says nothing impossible."""

import pytest

from examples import scaling_llama70b as scaling

pytestmark = pytest.mark.slow  # seconds to load transformers, and as many to simulate


@pytest.fixture(scope="module")
def net() -> scaling.Network:
    return scaling.network()


def test_the_network_is_as_large_as_published(net: scaling.Network) -> None:
    n_bytes = net.embedding.parameter_bytes + scaling.LAYERS * net.layer.parameter_bytes + net.head.parameter_bytes
    assert n_bytes / 2 == 70_553_706_496  # parameters of Llama 3 70B, in bfloat16
    # 2 FLOP of a parameter for each token forward, 4 backward, and attention; the embedding has a look-up only
    matrices = 6 * (n_bytes / 2 - 128256 * 8192) * scaling.TOKENS * scaling.SEQUENCES
    attention = 3 * scaling.LAYERS * 4 * scaling.TOKENS**2 * scaling.HIDDEN * scaling.SEQUENCES
    assert net.flop == pytest.approx(matrices + attention, rel=0.01)


def test_a_step_is_what_the_closed_form_says(net: scaling.Network) -> None:
    # without replicas, 1F1B with even stages takes at least m times its longest stage, at most (m + p - 1) times that
    devices = scaling.cluster()
    way = scaling.Way(gpus=16, pipeline=16, per_gpu=1, recompute=True)
    layers_s = 5 * (2 * net.layer.forward_s + net.layer.backward_s)
    head_s = 2 * net.head.forward_s + net.head.backward_s
    step_s = scaling.simulate(net, way, devices).step_s
    assert 1024 * (layers_s + head_s) < step_s < (1024 + 15) * 1.05 * (layers_s + head_s)


def test_more_replicas_are_faster_but_waste_more(net: scaling.Network) -> None:
    devices = scaling.cluster()
    outcomes = [scaling.best(net, gpus, devices) for gpus in (16, 128, 1024)]
    steps_s = [outcome.step_s for outcome in outcomes]
    assert steps_s == sorted(steps_s, reverse=True)
    gpu_s = [outcome.step_s * outcome.way.gpus for outcome in outcomes]
    assert gpu_s == sorted(gpu_s)
    assert all(net.flop / seconds < 989.5e12 for seconds in gpu_s)
    assert all(outcome.memory_bytes <= 80e9 for outcome in outcomes)


def test_eight_gpus_are_too_few(net: scaling.Network) -> None:
    # 70.55 billion parameters of 2 bytes, their gradients and two moments: 8 bytes each, 70.6 GB on each of 8 GPUs
    outcome = scaling.best(net, 8, scaling.cluster())
    assert 70.5e9 < 80e9 < outcome.memory_bytes


def test_it_is_near_what_was_measured(net: scaling.Network) -> None:
    # 64 GPUs that recompute reached 42.6 % of their peak; training was fitted to another generation of GPUs
    outcome = scaling.best(net, 64, scaling.cluster())
    used = net.flop / (outcome.step_s * 64 * 989.5e12)
    assert outcome.way.recompute
    assert 0.8 < used / scaling.PUBLISHED[0][1] < 1.25
