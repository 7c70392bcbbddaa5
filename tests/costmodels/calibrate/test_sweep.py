"""The sweep: which networks, in which file, and what happens when it is taken up again; not how long anything takes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from costmodels.calibrate import sweep as module
from costmodels.calibrate.probes import TRAINED, TRAINED_BEHIND, Built, Probe, interleaved, probes
from costmodels.calibrate.sweep import sweep
from costmodels.host.fingerprint import fingerprint_of, machine_of
from costmodels.learning.features import features_of, pass_bytes
from costmodels.operators.keys import op_keys, parse_key, training_keys
from costmodels.profilefile import Sweep, read_sweep, write_sweep
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


def test_some_are_measured_in_training_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sweep(device(), tmp_path, wanted=WANTED)
    swept = sweep(device(), tmp_path, wanted=(replace(WANTED[0], training=tiny), WANTED[1]))
    first, second = swept.probes["first"], swept.probes["second"]
    assert first.training.keys() == set(training_keys(program_from_module(*tiny(), training=True).graph))
    assert all(step.seconds > 0 and step.count >= module.TRAINING.passes for step in first.training.values())
    assert second.training == {}
    assert first.ops == before.probes["first"].ops  # inference is not measured again
    assert read_sweep(tmp_path, swept.fingerprint) == swept
    monkeypatch.setattr(module, "profile_program", None)  # whoever calls it fails
    assert sweep(device(), tmp_path, wanted=(replace(WANTED[0], training=tiny), WANTED[1])) == swept


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


@pytest.mark.parametrize(
    ("save_s", "expected"), [(-1.0, [["first"], ["first", "second"]]), (60.0, [["first", "second"]])]
)
def test_the_file_is_written_now_and_then_and_at_the_end(
    save_s: float, expected: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[list[str]] = []

    def noted(directory: Path, swept: Sweep) -> Path:
        written.append(list(swept.probes))
        return write_sweep(directory, swept)

    monkeypatch.setattr(module, "write_sweep", noted)
    monkeypatch.setattr(module, "SAVE_S", save_s)
    sweep(device(), tmp_path, wanted=WANTED)
    assert written == expected
    sweep(device(), tmp_path, wanted=WANTED)
    assert written == expected  # nothing new


def test_what_was_measured_before_a_failure_is_kept(tmp_path: Path) -> None:
    def fails() -> Built:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        sweep(device(), tmp_path, wanted=(WANTED[0], Probe("third", fails)))
    begun = read_sweep(tmp_path, fingerprint_of(machine_of(device())))
    assert begun is not None
    assert list(begun.probes) == ["first"]


def test_probes_have_names_of_their_own_and_are_the_same_each_time() -> None:
    names = [probe.name for probe in probes()]
    assert len(set(names)) == len(names)
    assert [probe.name for probe in probes()] == names
    chosen = [probe for probe in probes() if probe.name in ("images 4x14 0", "products 1", "stack 16 MB 2")]
    for probe in chosen:
        with torch.device("meta"):
            first, second = (program_from_module(*probe.build(), footprints=False).graph for _ in range(2))
        assert op_keys(first) == op_keys(second)


def test_probes_of_a_kind_are_far_apart() -> None:
    """So that no slow moment of the machine, of a tenth of the sweep, meets more than a third of them."""
    kinds = [probe.name.split()[0] for probe in interleaved(probes())]
    assert sorted(kinds) == sorted(probe.name.split()[0] for probe in probes())
    span = len(kinds) // 10
    for kind in ("images", "stack", "transformer", "recurrent"):
        met = max(kinds[start : start + span].count(kind) for start in range(len(kinds) - span))
        assert met <= kinds.count(kind) / 3


def test_few_probes_are_measured_in_training_and_all_of_them_exist() -> None:
    names = {probe.name for probe in probes()}
    assert names > TRAINED | TRAINED_BEHIND
    assert not TRAINED & TRAINED_BEHIND
    assert {probe.name for probe in probes() if probe.training} == TRAINED | TRAINED_BEHIND
    assert len(TRAINED | TRAINED_BEHIND) < len(names) / 3


def test_whatever_is_behind_a_parameter_has_a_way_back() -> None:
    (probe,) = [probe for probe in probes() if probe.name == "attention 1"]
    assert probe.training is not None
    behind, inputs = probe.training()
    keys = training_keys(program_from_module(behind, inputs, training=True, footprints=False).graph)
    attentions = [parse_key(key) for key in keys if "scaled_dot_product" in key]
    assert len(attentions) == 18
    assert all(op.gradients[:3] == (True, True, True) for op in attentions)
    plain, _ = probe.build()
    torch.testing.assert_close(behind(inputs[0]), plain(inputs[0]))  # its parameter is 1


FAMILIES = {"convolution", "product", "attention", "aten.lstm", "aten.gru", "aten.max_pool2d", "aten.embedding"} | {
    f"aten.{name}"
    for name in ("relu", "batch_norm", "layer_norm", "gelu", "softmax", "cat", "add", "mul", "view", "pow")
}


@pytest.mark.slow
def test_probes_cover_the_families_that_networks_are_made_of() -> None:
    """One probe of each sort is enough to see all of them, and of some sorts none."""
    sorts = {probe.name.split()[0]: probe for probe in reversed(probes()) if "large" not in probe.name}
    for other in ("attention", "products", "stems"):  # their families are in transformer and images too
        del sorts[other]
    with torch.device("meta"):
        assert {family for probe in sorts.values() for family in families(*probe.build())} >= FAMILIES


def families(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> set[str]:
    keys = op_keys(program_from_module(module.eval(), inputs, footprints=False).graph)
    return {features_of(parse_key(key), 1e9).family for key in set(keys)}
