"""LayerProblem: layers in a chain, each data- or model-parallel on all devices, and the bytes that each device sends.

::

    {"networks": {"AlexNet": [{"name": "conv1", "parameters": 34944, "in": 150528, "out": 69984}, ..]},
     "layers": [{"network": "AlexNet", "batch": 128, "gpus": 8}, ..]}

With G devices, N samples and float32, a device sends in a step:

::

    data-parallel layer                    2 (G - 1) / G 4 parameters        gradients, all-reduced
    model-parallel layer                   2 (G - 1) / G 4 N in              input gathered, gradients scattered
    data-parallel after model-parallel     2 (G - 1) / G^2 4 N in            from features to samples, and back
    model-parallel last layer              2 (G - 1) / G^2 4 N out           the same, before the loss

The first layer's input is read where it is needed.

Source: Krizhevsky, One weird trick for parallelizing convolutional neural networks, arXiv 1404.5997.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from costmodels.cluster.collectives import Port, all_gather, all_to_all, ring_all_reduce
from graphs.common.brief import Brief
from graphs.common.errors import InputError, nearest
from graphs.common.json_object import JsonObject
from planner.parallelism.closed_form.memory import FLOAT32

LayerMode: TypeAlias = Literal["d", "m"]
ANY_PORT = Port(0.0, 1.0)  # bytes alone count


class ChainLayer(NamedTuple):
    """A layer, by its float32 values."""

    name: str
    parameters: int
    inputs: int  # of a sample
    outputs: int


@dataclass(frozen=True)
class LayerProblem(Brief):
    """A network, the samples of a step, and the devices."""

    network: str
    layers: tuple[ChainLayer, ...]
    batch: int
    devices: int

    def layer_bytes(self, number: int, mode: LayerMode, before: LayerMode) -> float:
        """Return the bytes that each device sends for a layer in ``mode`` after a layer in mode ``before``."""
        layer, n = self.layers[number], self.devices
        inputs = FLOAT32 * self.batch * layer.inputs
        gradients = ring_all_reduce(FLOAT32 * layer.parameters, n, ANY_PORT).sent_bytes if mode == "d" else 0.0
        if number == 0 or (mode, before) == ("d", "d"):
            return gradients
        moved = all_gather(inputs, n, ANY_PORT) if mode == "m" else all_to_all(inputs / n, n, ANY_PORT)
        return gradients + 2 * moved.sent_bytes

    def output_bytes(self, last: LayerMode) -> float:
        """Return the bytes that each device sends for the network's output."""
        outputs = FLOAT32 * self.batch * self.layers[-1].outputs
        return 2 * all_to_all(outputs / self.devices, self.devices, ANY_PORT).sent_bytes if last == "m" else 0.0

    def sent_bytes(self, modes: Sequence[LayerMode]) -> float:
        """Return the bytes that each device sends in a step."""
        before: Sequence[LayerMode] = ["d", *modes]
        sent = (self.layer_bytes(number, mode, before[number]) for number, mode in enumerate(modes))
        return sum(sent) + self.output_bytes(modes[-1])


def layer_problems(document: Mapping[str, Any]) -> list[LayerProblem]:
    """Return the cases of a file.

    Raises:
        InputError: if a field is missing or of the wrong kind, or a case names an unknown network.
    """
    top = JsonObject("the file", document)
    networks = top.object("networks")
    layers = {name: _layers(name, networks.records(name)) for name in networks.content}
    problems = []
    for position, content in enumerate(top.records("layers")):
        case = JsonObject(f"case number {position + 1}", content)
        network = case.label("network")
        if network not in layers:
            raise InputError(
                f"{case.where} names the network {network!r}{nearest(str(network), layers)}; list it in networks"
            )
        problems.append(LayerProblem(str(network), layers[network], case.count("batch", 1), case.count("gpus", 1)))
    return problems


def _layers(network: str, contents: Sequence[Any]) -> tuple[ChainLayer, ...]:
    records = [JsonObject(f"layer number {i + 1} of {network}", content) for i, content in enumerate(contents)]
    if not records:
        raise InputError(f"the network {network} has no layers; list one at least")
    return tuple(
        ChainLayer(str(record.label("name")), record.count("parameters"), record.count("in", 1), record.count("out", 1))
        for record in records
    )
