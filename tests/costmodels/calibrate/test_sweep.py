"""The sweep: which networks, in which file, and what happens when it is taken up again; not how long anything takes."""

from pathlib import Path

import pytest
import torch
from torch import nn

from costmodels.calibrate import sweep as module
from costmodels.calibrate.fingerprint import fingerprint_of, machine_of
from costmodels.calibrate.probes import Built, Probe, probes
from costmodels.calibrate.sweep import sweep
from costmodels.learning.features import features_of, pass_bytes
from costmodels.learning.keys import parse_key
from costmodels.learning.samples import read_sweep
from costmodels.measured import op_keys
from graphs.importers.from_torch import program_from_module
from tests.costmodels.calibrate.hosts import device


def tiny() -> Built:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU()), (torch.ones(2, 4),)


WANTED = (Probe("first", tiny, 0.0), Probe("second", tiny, 0.0))


def test_each_probe_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, int, int]] = []
    swept = sweep(device(), tmp_path, lambda *step: steps.append(step), WANTED)
    assert steps == [("sweeping operators on cpu0", 1, 2), ("sweeping operators on cpu0", 2, 2)]
    assert swept.fingerprint == fingerprint_of(machine_of(device()))
    assert list(swept.probes) == ["first", "second"]
    graph = program_from_module(*tiny()).graph
    for probed in swept.probes.values():
        assert probed.pass_bytes == pass_bytes(graph)
        assert probed.ops.keys() == set(op_keys(graph))
        assert all(m.seconds > 0 and m.count >= module.PASSES for m in probed.ops.values())
    assert read_sweep(tmp_path, swept.fingerprint) == swept

    def never(*_: object) -> None:
        raise AssertionError("nothing is left to measure")

    monkeypatch.setattr(module, "profile_program", never)
    assert sweep(device(), tmp_path, wanted=WANTED) == swept


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    class EnoughError(Exception):
        pass

    def interrupt(_: str, done: int, __: int) -> None:
        if done == 1:
            raise EnoughError

    with pytest.raises(EnoughError):
        sweep(device(), tmp_path, interrupt, WANTED)
    begun = read_sweep(tmp_path, fingerprint_of(machine_of(device())))
    assert begun is not None
    assert list(begun.probes) == ["first"]
    assert sweep(device(), tmp_path, wanted=WANTED).probes["first"] == begun.probes["first"]


def test_probes_have_names_of_their_own_and_are_the_same_each_time() -> None:
    names = [probe.name for probe in probes()]
    assert len(set(names)) == len(names)
    assert [probe.name for probe in probes()] == names
    chosen = [probe for probe in probes() if probe.name in ("images 4x14 0", "products 1", "stack 4 MB 2")]
    for probe in chosen:
        first, second = (program_from_module(*probe.build()).graph for _ in range(2))
        assert op_keys(first) == op_keys(second)


FAMILIES = {"convolution", "product", "attention", "aten.lstm", "aten.gru", "aten.max_pool2d", "aten.embedding"} | {
    f"aten.{name}"
    for name in ("relu", "batch_norm", "layer_norm", "gelu", "softmax", "cat", "add", "mul", "view", "pow")
}


@pytest.mark.slow
def test_probes_cover_the_families_that_networks_are_made_of() -> None:
    """One probe of each sort is enough to see all of them."""
    sorts = {probe.name.split()[0]: probe for probe in reversed(probes()) if "large" not in probe.name}
    with torch.device("meta"):
        assert {family for probe in sorts.values() for family in families(*probe.build())} >= FAMILIES


def families(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> set[str]:
    keys = op_keys(program_from_module(module.eval(), inputs).graph)
    return {features_of(parse_key(key), 1e9).family for key in set(keys)}
