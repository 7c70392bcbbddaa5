"""AlexNet on three devices: published figures to the printed digit, and the division itself is run."""

from dataclasses import replace

import pytest
import torch

from examples import alexnet_three_devices as alexnet
from examples.chains import AlexNet
from examples.chains import alexnet as network
from graphs.importers.from_torch import program_from_module
from planner.planning.find_plan import plan
from planner.planning.make_plan import Search
from planner.runtime.benchmark.check import compare_outputs
from planner.runtime.start import start
from tests.planner.runtime.small import cpu


def test_the_published_figures_to_the_printed_digit() -> None:
    graph = network(alexnet.BATCH)
    output, sent = alexnet.output_mb(graph), alexnet.gathered_mb(graph)
    for layer, (_, published_mb, sent_mb) in alexnet.PUBLISHED.items():
        assert round(output[layer], 1) == published_mb
        assert round(sent[layer], 2) == sent_mb
    assert round(sum(sent.values()), 2) == alexnet.PUBLISHED_MB
    assert sum(alexnet.parameters(graph).values()) == 60_965_224


def test_the_division_sends_what_the_formula_says() -> None:
    """Three groups of 85 filters: 255 / 256 of what is sent before conv3 and fc1."""
    published = alexnet.by_filters(alexnet.planned(alexnet.DEVICES, "none"))
    assert published.evaluation.feasible
    expected_mb = (42.25 + 9) * 255 / 256 + 4 + 2 * 2730 / 4096  # of 4096 neurons the first device has 1366
    assert alexnet.sent_mb(published) == pytest.approx(expected_mb, rel=1e-6)


def test_the_division_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """On three threads, for two images."""
    torch.manual_seed(0)
    monkeypatch.setattr(alexnet, "BATCH", 2)
    program = program_from_module(AlexNet(3).eval(), (torch.randn(2, 3, 227, 227),), name="alexnet")
    asked = plan(program, cluster=alexnet.cluster(), goal="latency", search=Search(rewrites="none"))
    divided = alexnet.by_filters(asked)
    devices = tuple(cpu(f"gpu{i}") for i in range(alexnet.DEVICES))
    with start(replace(divided, cluster=replace(divided.cluster, devices=devices)), program) as runner:
        assert not compare_outputs(runner).wrong
