"""Hosts of several GPUs over 56 Gb/s InfiniBand: seven ways to train, ranked for three networks.

Within a host and between hosts, gradients are added up in a ring or by a master that the others send to, or the GPUs
divide each layer among them (model parallelism). Layers that are divided between hosts are divided within them too,
which leaves seven ways. A way's step is computing, the same in all, and then communicating:

::

    data-parallel       gradients are added up within hosts, then between them, then shared within
    model-parallel      the inputs of each layer are gathered; on the way back, their gradients are added up

    python -m examples.hosts_of_gpus
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from costmodels.cluster.collectives import CollectiveCost, Port, parameter_server, ring_all_reduce
from costmodels.cluster.fabric import Fabric, FabricGroup, fabric_of
from costmodels.cluster.file import read_cluster
from costmodels.tabulate import tabulate
from costmodels.units import format_bytes, format_seconds
from costmodels.workload import Workload
from examples.chains import FLOAT32, layers_of, on_meta, parameter_bytes
from graphs.ir import Graph
from planner.cli.console import Console
from planner.literature.layerwise.layer_parallelism import ChainLayer

CLUSTER = "4x(4xV100-PCIe-16GB:PCIe3):InfiniBand-56"
SAMPLES = {"vgg16": 32, "resnet50": 32, "gpt2": 4}
"""Of each GPU in a step, those of GPT-2 with 1,024 tokens."""
RING, MASTER, MODEL = "ring", "master", "model"
WAYS = (
    *((within, between) for within in (RING, MASTER) for between in (RING, MASTER)),
    *((MODEL, between) for between in (RING, MASTER, MODEL)),
)


class Training(NamedTuple):
    """A network on hosts of GPUs."""

    layers: tuple[ChainLayer, ...]
    samples: int  # of each GPU
    computing_s: float  # of a step on each GPU
    fabric: Fabric

    @property
    def hosts(self) -> int:
        """How many hosts there are."""
        return len(self.fabric.devices) // self.fabric.host_devices

    @property
    def card(self) -> Port:
        """The port of a host, which all its GPUs share."""
        return self.fabric.between._replace(bytes_per_s=self.fabric.host_devices * self.fabric.between.bytes_per_s)

    def communicating_s(self, within: str, between: str) -> float:
        """Seconds of a step that are not computing."""
        each, n_bytes, inside = self.fabric.host_devices, parameter_bytes(self.layers), self.fabric.inside
        if between == MODEL:
            return self._layers_s(FabricGroup(self.hosts, each))
        sum_s = {RING: ring_all_reduce, MASTER: _by_master}[between](n_bytes, self.hosts, self.card).time_s
        if within == MODEL:
            return self._layers_s(FabricGroup(1, each)) + sum_s
        message_bytes = n_bytes / each if within == RING else n_bytes
        return 2 * (each - 1) * inside.time_s(message_bytes) + sum_s

    def _layers_s(self, group: FabricGroup) -> float:
        """Seconds in which GPUs that divide all layers gather inputs and add up their gradients; the first are read."""
        samples = self.samples * group.size
        inputs = (FLOAT32 * samples * layer.inputs for layer in self.layers[1:])
        return sum(2 * self.fabric.all_gather(n_bytes, group) for n_bytes in inputs)


def _by_master(n_bytes: float, hosts: int, card: Port) -> CollectiveCost:
    """One host is the master: what it keeps itself it does not send."""
    return parameter_server(n_bytes, hosts - 1, card)


def training(graph: Graph, samples: int) -> Training:
    """A network, imported for the samples of a GPU."""
    cluster = read_cluster(CLUSTER)
    table = tabulate(graph, cluster.first(1), Workload("training", batch=samples, micro_batches=1), {})
    computing_s = float(table.forward_s.sum() + table.backward_s.sum())
    return Training(layers_of(graph, samples), samples, computing_s, fabric_of(cluster))


def ranked(asked: Training) -> list[tuple[float, str, str]]:
    """The seven ways by the seconds of a step."""
    return sorted((asked.computing_s + asked.communicating_s(*way), *way) for way in WAYS)


def rows(asked: Training) -> Iterator[Sequence[str]]:
    """A row for each way, the fastest first."""
    best_s = ranked(asked)[0][0]
    for rank, (step_s, within, between) in enumerate(ranked(asked), 1):
        waiting = 1 - asked.computing_s / step_s
        yield str(rank), within, between, format_seconds(step_s), f"{step_s / best_s:.2f}", f"{waiting:.0%}"


def main() -> int:
    """Print a table for each network."""
    console = Console()
    for name, samples in SAMPLES.items():
        options = {"length": 1024} if name == "gpt2" else {}
        asked = training(on_meta(name, samples, **options), samples)
        size = format_bytes(parameter_bytes(asked.layers))
        title = f"{name}: {size} of gradients, {samples} samples a GPU, {CLUSTER}"
        heads = ("rank", "within hosts", "between hosts", "step", "× the best", "communicating")
        console.show({}, title, heads, rows(asked))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
