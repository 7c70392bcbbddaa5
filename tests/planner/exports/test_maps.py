"""Maps made by hand: their forms, how they name devices, what is wrong with them, and the plan that comes of one."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from costmodels.cluster.cluster import Cluster, Device
from graphs.common.errors import InputError
from planner.exports import map_of, read_map
from planner.exports.records import device_called, device_words
from simulator.placement import Placement
from tests.planner.exports.nets import CPUS, GPUS, MIXED, Block, Decoder, chain, cluster, graph_of

CHAIN = graph_of(chain(3))
PAIR = graph_of(nn.Sequential(nn.Linear(8, 8), Block()))  # 0 linear; 1.up, relu, 1.down, add of 1


@pytest.mark.parametrize(
    ("document", "placed"),
    [
        ({"": 0}, (0, 0, 0, 0, 0)),
        ({"0": 0, "1": 1}, (0, 1, 1, 1, 1)),
        ({"device_map": {"0": "cuda:2", "1": "gpu1"}}, (2, 1, 1, 1, 1)),
        ({"": 1, "1.down": 0}, (1, 1, 1, 0, 1)),  # the longest path counts
        ({"0": 0, "1.up": 1, "1.down": 2}, (0, 1, 1, 2, 2)),  # relu follows up, the sum the latest it reads: down
        ({"1.down": 1}, (1, 1, 1, 1, 1)),  # nothing before it is placed: with whom reads from it
        ({"0.weight": 2, "1": 0}, (2, 0, 0, 0, 0)),
        (["1"], (0, 1, 1, 1, 1)),
        (["1.down"], (0, 0, 0, 1, 1)),
        ({"split_spec": {"1.up": "END"}, "devices": [2, 0]}, (2, 2, 0, 0, 0)),
        ({"1.up": "BEGINNING", "1.down": "BEGINNING"}, (0, 1, 1, 2, 2)),
        ({"split_spec": {}, "devices": [1]}, (1, 1, 1, 1, 1)),
        ([1, 1], (0, 1, 1, 1, 1)),
        ([2], (0, 0, 0, 0, 0)),
        ({"balance": [1, 1], "devices": ["cuda:1", "0"]}, (1, 0, 0, 0, 0)),
    ],
)
def test_forms(document: Any, placed: tuple[int, ...]) -> None:
    assert map_of(document).placement(PAIR, GPUS) == Placement(placed)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (
            {"embed": 0, "l": 1},
            "no operator of 'Decoder' is in a module 'l'; there are embed, layers, layers.0, ...",
        ),
        (
            {"layer.0": 0},
            "no operator of 'Decoder' is in a module 'layer.0'; close to it: layers.0, layers.3, layers.2",
        ),
        (["embd"], "no operator of 'Decoder' is in a module 'embd'; close to it: embed, head"),
        ([""], "a split point names the whole model; name a module in it"),
        (
            {"": 3},
            "the map names the device 3; cluster 'paper' has gpu0 (0), gpu1 (1), gpu2 (2)",
        ),
        ({"": "disk"}, "the map names the device 'disk'; cluster 'paper' has gpu0 (0), gpu1 (1), gpu2 (2)"),
        (
            ["layers.0", "layers.1", "norm"],
            "the map has 4 stages, cluster 'paper' has 3 devices; name one for each stage in \"devices\", where a "
            "device may come again",
        ),
        (
            {"balance": [2, 2], "devices": [0]},
            'the map has 2 stages, the map names 1 devices; name one for each stage in "devices", where a device '
            "may come again",
        ),
        (
            [2, 2, 2],
            "the balance [2, 2, 2] has 6 layers, 'Decoder' has 4 children with operators; give each stage one or more, "
            "all of them together",
        ),
    ],
)
def test_what_is_not_there_is_named(document: Any, text: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        map_of(document).placement(graph_of(Decoder()), GPUS)


@pytest.mark.parametrize(
    "document", [[], {}, 3, "layers.0", [1, "a"], [True], {"a": None}, {"a": [1]}, {"balance": 2.5}]
)
def test_what_is_no_map_is_refused(document: Any, tmp_path: Path) -> None:
    (path := tmp_path / "map.json").write_text(json.dumps(document), encoding="utf-8")
    text = 'it is no map; write a device_map {"module": device}, split points ["module", ...], or a balance [2, 3]'
    with pytest.raises(InputError, match=f"^{re.escape(f'{path}: {text}')}$"):
        read_map(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^cannot read the map '.*none.json': No such file or directory; check the path$"
    ):
        read_map(tmp_path / "none.json")
    (path := tmp_path / "map.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"^the map '.*map.json' is not JSON \(Expecting .*\); write a device_map"):
        read_map(path)


def test_words_for_devices() -> None:
    assert device_words(GPUS) == (0, 1, 2)
    assert device_words(CPUS) == ("cpu:0", "cpu:1", "cpu:2")
    assert device_words(MIXED) == (0, "cpu")
    real = (("a", 1, ()), ("b", None, (0, 1)), ("c", 0, ()), ("d", None, ()))
    devices = tuple(Device(name, name, 1.0, {"float32": 1.0}, 1.0, cuda=cuda, cores=c) for name, cuda, c in real)
    assert device_words(Cluster("real", devices)) == (1, "cpu", 0, 2)


@pytest.mark.parametrize(
    ("on", "word", "number"),
    [
        *((GPUS, word, 1) for word in (1, "1", "cuda:1", "gpu1")),
        *((GPUS, word, 0) for word in ("cuda", 0)),
        *((MIXED, word, 1) for word in ("cpu", "cpu:0", "host")),
        *((CPUS, word, 0) for word in ("cpu", "cpu:0", "cpu0")),
        (CPUS, "cpu:2", 2),
        (cluster(b="A100", a="A100"), "a", 1),
    ],
)
def test_devices_are_called_in_many_ways(on: Cluster, word: object, number: int) -> None:
    assert device_called(word, on) == number


@pytest.mark.parametrize(("on", "word"), [(GPUS, "cpu"), (CPUS, 0), (MIXED, True), (MIXED, None), (MIXED, "host:0")])
def test_devices_that_are_not_there(on: Cluster, word: object) -> None:
    with pytest.raises(InputError, match=f"^the map names the device {word!r}; cluster 'paper' has "):
        device_called(word, on)
