"""Examples beside what was published, and beside sums by hand."""

from pathlib import Path

import pytest

from examples import alexnet_three_nodes, cpu_divided, hosts_of_gpus, one_weird_trick, train_divided
from examples.chains import layers_of, on_meta, parameter_bytes
from planner.literature.layerwise.layer_modes import best_modes


def test_a_parameter_server_of_three_nodes() -> None:
    n_bytes = alexnet_three_nodes.gradient_bytes()
    assert n_bytes == 4 * 60_965_224
    found = alexnet_three_nodes.schemes(n_bytes)
    server = found["parameter server"]
    assert (server.received_bytes, server.carried_bytes) == (3 * n_bytes, 6 * n_bytes)
    for ours, published_mb in zip((1, 3, 6), alexnet_three_nodes.PUBLISHED_MB.values(), strict=True):
        assert ours * n_bytes / 2**20 == pytest.approx(published_mb, rel=0.003)  # published from 232 by hand
    assert found["ring"].time_s == pytest.approx(4 * (20e-6 + n_bytes / 3 / 5e9))


@pytest.mark.parametrize(
    ("batch", "sent_mb", "modes"),
    [(128, 32.048128, "dddddmmm"), (1024, 142.015104, "dddddmmm"), (2048, 243.204, "dddddmmd"), (4096, None, "d" * 8)],
)
def test_one_weird_trick_is_found(batch: int, sent_mb: float | None, modes: str) -> None:
    asked = one_weird_trick.problem(batch)
    found = best_modes(asked)
    assert "".join(found) == modes
    if sent_mb is not None:
        assert asked.sent_bytes(found) / 1e6 == pytest.approx(sent_mb, rel=1e-4)


def test_hosts_of_gpus_print_what_stands_beside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hosts_of_gpus, "SAMPLES", {"vgg16": 32})  # GPT-2 takes ten seconds to import
    assert hosts_of_gpus.main() == 0
    beside = Path(hosts_of_gpus.__file__).with_suffix(".out").read_text(encoding="utf-8")
    assert beside.startswith(capsys.readouterr().out)


def test_seven_ways_on_hosts_of_gpus() -> None:
    graph = on_meta("vgg16", 2)
    asked = hosts_of_gpus.training(graph, 2)._replace(samples=32)
    assert parameter_bytes(asked.layers) == 4 * 138_357_544
    ranked = hosts_of_gpus.ranked(asked)
    assert len(ranked) == len({ranked_way[1:] for ranked_way in ranked}) == 7
    assert ranked[0][1:] == ("ring", "ring")
    s, card, inside = 4 * 138_357_544, 54.5e9 / 8, 15.75e9
    by_hand = 2 * 3 * (5e-6 + s / 4 / inside) + 2 * 3 * (2e-6 + s / 4 / card)
    assert asked.communicating_s("ring", "ring") == pytest.approx(by_hand)
    by_hand = 2 * 3 * (5e-6 + s / inside) + 2 * (2e-6 + 3 * s / card)
    assert asked.communicating_s("master", "master") == pytest.approx(by_hand)
    assert len(layers_of(graph, 2)) == 16


def test_a_divided_cpu_ends_at_what_was_published() -> None:
    for name, (one_s, all_s) in cpu_divided.PUBLISHED_S.items():
        assert cpu_divided.batch_s(name, 1) == pytest.approx(one_s)
        assert cpu_divided.batch_s(name, 24) == pytest.approx(all_s)


def test_training_under_a_plan_has_the_losses_of_the_whole_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_divided, "STEPS", 3)
    assert train_divided.main() == 0
