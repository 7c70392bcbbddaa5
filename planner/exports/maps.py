"""Maps made by hand or by another tool, as placements.

::

    {"embed": 0, "layers.0": 0, "layers.1": "cuda:1", "": "cpu"}      a device_map; also inside of "device_map"
    ["layers.1", "head"]                                              split points: a stage begins with each
    {"split_spec": {"layers.1": "BEGINNING"}, "devices": [0, 1]}      as torch-split-spec is exported
    [2, 3]                                                            balance: layers of each stage
    {"balance": [2, 3], "devices": [1, 0]}                            as torchgpipe is exported
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from costmodels.cluster.cluster import Cluster
from graphs.common.documents import read_json_value
from graphs.common.errors import InputError
from graphs.ir import Graph
from planner.exports.device_map import op_devices
from planner.exports.modules import ROOT, Modules, ancestors
from planner.exports.records import device_called
from planner.exports.split_spec import BEGINNING, END
from simulator.placement import Placement

FORMS = 'a device_map {"module": device}, split points ["module", ...], or a balance [2, 3]'


@dataclass(frozen=True)
class Map:
    """A map with one of its three forms."""

    device_map: Mapping[str, Any] | None = None  # module or parameter path → a device, see `device_called`
    split_points: Mapping[str, str] | None = None  # module path → BEGINNING or END
    balance: tuple[int, ...] = ()  # [n_stages], number of an nn.Sequential's children in each stage
    devices: tuple[Any, ...] = ()  # [n_stages]; the order of the cluster if empty

    def placement(self, graph: Graph, cluster: Cluster) -> Placement:
        """Return the placement of a model's operators.

        Raises:
            InputError: for a module or a device that does not exist, or more stages than devices.
        """
        modules = Modules(graph)
        if self.device_map is not None:
            named = {path for tensor in graph.tensors for path in ancestors(tensor.name)}
            for path in self.device_map:
                if path not in named:
                    modules.known(path)
            homes = {path: device_called(word, cluster) for path, word in self.device_map.items()}
            return Placement(op_devices(graph, homes))
        if self.split_points is not None:
            firsts = [_cut(modules, path, point) for path, point in self.split_points.items()]
        else:
            firsts = _children(modules, self.balance)
        own = [device_called(word, cluster) for word in self.devices]
        devices = own or list(range(len(cluster.devices)))
        if len(devices) <= len(firsts):
            whose = "the map names" if own else f"cluster '{cluster.name}' has"
            raise InputError(
                f"the map has {len(firsts) + 1} stages, {whose} {len(devices)} devices; name one for each stage in "
                '"devices", where a device may come again'
            )
        return Placement(tuple(devices[sum(op >= first for first in firsts)] for op in range(len(graph.ops))))


def read_map(path: Path) -> Map:
    """Read a map from a JSON file.

    Raises:
        InputError: if the file is missing, no JSON, or no map.
    """
    document = read_json_value(path, "map", mend=f"write {FORMS}")
    try:
        return map_of(document)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def map_of(document: Any) -> Map:
    """Return a map from what JSON holds.

    Raises:
        InputError: if it has none of the known forms.
    """
    inner, devices = _unwrapped(document)
    if isinstance(inner, dict) and (inner or "split_spec" in document):  # no split point makes one stage
        if all(point in (BEGINNING, END) for point in inner.values()):
            return Map(split_points=inner, devices=devices)
        if all(isinstance(word, int | str) for word in inner.values()):
            return Map(device_map=inner)
    if isinstance(inner, list) and inner:
        if all(isinstance(path, str) for path in inner):
            return Map(split_points=dict.fromkeys(inner, BEGINNING), devices=devices)
        if all(type(count) is int for count in inner):
            return Map(balance=tuple(inner), devices=devices)
    raise InputError(f"it is no map; write {FORMS}")


def _unwrapped(document: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the map inside of an exported document and the devices of its stages; else the document itself."""
    if isinstance(document, dict):
        for key in ("device_map", "split_spec", "balance"):
            if isinstance(document.get(key), dict | list):
                devices = document.get("devices")
                return document[key], tuple(devices) if isinstance(devices, list) else ()
    return document, ()


def _cut(modules: Modules, path: str, point: str) -> int:
    """Return the operator with which a stage begins."""
    if modules.known(path) == ROOT:
        raise InputError("a split point names the whole model; name a module in it")
    ops = modules.under[path]
    return ops[0] if point == BEGINNING else ops[-1] + 1


def _children(modules: Modules, balance: Sequence[int]) -> list[int]:
    """Return the first operators of all stages but the first one."""
    children, numbers = modules.children[ROOT], modules.layer_numbers
    total = numbers[-1] + 1 if numbers else 0
    if sum(balance) != total or min(balance) < 1:
        raise InputError(
            f"the balance {list(balance)} has {sum(balance)} layers, '{modules.graph.name}' has {total} children "
            "with operators; give each stage one or more, all of them together"
        )
    return [
        next(modules.under[name][0] for name, number in zip(children, numbers, strict=True) if number >= start)
        for start in list(accumulate(balance))[:-1]
    ]
