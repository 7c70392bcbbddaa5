"""``planner shard``: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest
import torch

from planner.cli import main
from planner.runtime.checkpoint.shards import read_shard
from tests.planner.cli.given import MNIST, Refused, pair_here


@pytest.fixture(autouse=True)
def _planned(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan with the two convolutions on one device, the rest on the other."""
    Path("pair.toml").write_text(pair_here(), encoding="utf-8")
    pins = ["--pin", "conv*=a", "--pin", "fc*=b"]
    assert main(["plan", MNIST, "--cluster", "pair.toml", "--goal", "throughput", *pins]) == 0
    capsys.readouterr()


def test_a_row_for_each_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", "plan.json", MNIST, "-o", "shards"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    # 832 + 51,264 and 1,606,144 + 5,130 parameters of 4 bytes
    assert rows[0] == ["mnist", "→", "shards"]
    assert rows[2] == ["a", "4", "204", "KiB", "3.1%", "a.safetensors"]
    assert rows[3] == ["b", "4", "6.15", "MiB", "96.9%", "b.safetensors"]
    for device, n_bytes in (("a", 208_384), ("b", 6_445_096)):
        _, program = read_shard(Path("shards"), device)
        assert sum(tensor.nbytes for tensor in program.state.values() if not tensor.is_meta) == n_bytes


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", "plan.json", MNIST, "-o", "shards", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "devices": {
            "a": {"file": "shards/a.safetensors", "n_tensors": 4, "n_bytes": 208_384},
            "b": {"file": "shards/b.safetensors", "n_tensors": 4, "n_bytes": 6_445_096},
        }
    }


def test_again_needs_force(refused: Refused) -> None:
    command = ["shard", "plan.json", MNIST, "-o", "shards"]
    assert main(command) == 0
    first = {path.name: path.read_bytes() for path in Path("shards").iterdir()}
    assert refused(command) == (
        "planner: 'shards' is there already; add --force to overwrite it, or choose another name"
    )
    assert main([*command, "--force"]) == 0
    assert {path.name: path.read_bytes() for path in Path("shards").iterdir()} == first


class TestBadInput:
    def test_before_the_model_is_imported(self, refused: Refused) -> None:
        Path("taken").touch()
        assert "'taken' is there already; add --force" in refused(["shard", "plan.json", "no:model", "-o", "taken"])
        assert "there is no folder" in refused(["shard", "plan.json", "no:model", "-o", "nowhere/shards"])

    def test_another_model(self, refused: Refused) -> None:
        line = refused(["shard", "plan.json", "examples.networks:cifar10", "-o", "shards"])
        assert line.startswith("planner: the plan is for 'mnist'")

    def test_a_config_has_no_weights(self, refused: Refused) -> None:
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = sizes | {"model_type": "bert", "vocab_size": 50, "max_position_embeddings": 8}
        Path("config.json").write_text(json.dumps(config), encoding="utf-8")
        command = ["plan", "config.json", "--cluster", "pair.toml", "--goal", "throughput", "-o", "bert.json"]
        assert main(command) == 0
        line = refused(["shard", "bert.json", "config.json", "-o", "shards"])
        assert line.endswith(
            "' has a shape but no values (the model was imported from a config), so there is nothing to divide; "
            "give a model with weights, as .pt2 or package.module:factory"
        )

    def test_no_folder_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as stopped:
            main(["shard", "plan.json", MNIST])
        assert stopped.value.code == 2
        assert "-o/--output" in capsys.readouterr().err


def test_a_pt2_file(capsys: pytest.CaptureFixture[str]) -> None:
    torch.export.save(torch.export.export(torch.nn.Linear(4, 4), (torch.ones(2, 4),)), "linear.pt2")
    assert main(["plan", "linear.pt2", "--cluster", "pair.toml", "--goal", "latency", "-o", "linear.json"]) == 0
    assert main(["shard", "linear.json", "linear.pt2", "-o", "shards"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[1:3] == ["2", "80"]
