"""Tables: the costs of ways to divide devices and a batch, as plans run them or layer by layer."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.fabric import Fabric, fabric_of
from costmodels.profile_cache import cached_profiles, learned_costs
from costmodels.table import CostTable
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.common.arrays import Floats
from graphs.common.errors import InputError
from graphs.ir import Graph
from planner.parallelism.closed_form.config import Demands
from planner.parallelism.closed_form.half_precision import in_bfloat16
from planner.parallelism.closed_form.shared_costs import SharedNetwork, ZeroStage
from planner.parallelism.network.tensor_styles import tensor_styles
from planner.parallelism.network.training_shapes import Shape
from planner.problem.reporter import Reporter
from simulator.placement import Placement
from simulator.training import TrainingStep


class ShapeCosts(NamedTuple):
    """The costs of a way to divide devices and batch, and the part of them that is computing."""

    table: CostTable
    forward_s: Floats  # [n_ops, n_devices]
    backward_s: Floats  # [n_ops, n_devices]

    def computing_s(self, placement: Placement, device: int, step: TrainingStep) -> float:
        """Return seconds of a step in which a device computes."""
        ops = list(placement.operators(device))
        computing = replace(self.table, forward_s=self.forward_s)
        seconds = self.forward_s + computing.again_s(step.recompute) + self.backward_s
        return step.micro_batches * float(seconds[ops, device].sum())

    def slower(self, other: "ShapeCosts") -> "ShapeCosts":
        """Return the costs of devices that wait for each other at every operator."""
        one, two = self.table, other.table
        rates = ("optimizer_s_per_byte", "sync_s_per_byte", "sync_latency_s")
        assert one.training is not None
        assert one.update is not None
        update = replace(
            one.update, **{name: np.maximum(getattr(one.update, name), getattr(two.update, name)) for name in rates}
        )
        table = replace(
            one,
            forward_s=np.maximum(one.forward_s, two.forward_s),
            capacity_bytes=np.minimum(one.capacity_bytes, two.capacity_bytes),
            training=replace(one.training, backward_s=np.maximum(one.backward_s, two.backward_s), update=update),
        )
        return ShapeCosts(
            table, np.maximum(self.forward_s, other.forward_s), np.maximum(self.backward_s, other.backward_s)
        )


class Tables:
    """Cost tables for each way to divide devices and batch, built on demand."""

    def __init__(
        self,
        graph_of: Callable[[int], Graph],
        cluster: Cluster,
        workload: Workload,
        demands: Demands,
        reporter: Reporter,
    ) -> None:
        self._demands = demands
        self._graph_of, self._cluster, self._workload, self._reporter = graph_of, cluster, workload, reporter
        self._profiles, self._learned = cached_profiles(cluster), cache(learned_costs)
        self._shared: dict[tuple[int, int], SharedNetwork | None] = {}  # by samples in a micro-batch, devices
        self._known: dict[tuple[Shape, int], tuple[Cluster, CostTable]] = {}  # by shape without ZeRO, cluster
        self.graphs: dict[int, Graph] = {}  # by samples in a micro-batch
        self.refused: dict[int, InputError] = {}  # by the network: a batch norm cannot learn from a single value
        self._last_import_s = 0.0

    def of(self, shape: Shape) -> ShapeCosts | None:
        """Return the costs of a shape, as a plan runs it or in layers; None if the network refuses it."""
        if not self.plain(shape):
            return self._in_layers(shape, self._cluster)
        graph = self.graph(shape.samples)
        if graph is None:
            return None
        table = self._tabulated(graph, shape, self._cluster)
        return ShapeCosts(table, table.forward_s, table.backward_s)

    def of_stage(self, shape: Shape, cluster: Cluster) -> ShapeCosts | None:
        """Return the costs of a stage with degrees of its own on devices of a cluster; None if the network refuses."""
        return self._in_layers(shape, cluster, own_degrees=True)

    def _in_layers(self, shape: Shape, cluster: Cluster, own_degrees: bool = False) -> ShapeCosts | None:
        graph = self.graph(shape.samples)
        network = None if graph is None else self.network(graph, shape.samples, shape.tensor)
        if network is None:
            return None
        part, work = self._work(shape, cluster)
        table = self._tabulated(network.graph, shape, cluster)
        launch_s = np.array([device.launch_s for device in part.devices])
        zero = self._zero(shape)._replace(own_degrees=own_degrees)
        costs = network.costs(table, self.fabric, launch_s, work, zero)
        return ShapeCosts(costs, *network.computing_s(table, launch_s))

    def _tabulated(self, graph: Graph, shape: Shape, cluster: Cluster) -> CostTable:
        """Return the costs on one device of each group, which are the same for all stages of ZeRO."""
        several = min(2, shape.micro_batches)
        key = replace(shape, zero=0, micro_batches=several), id(cluster)
        if key not in self._known:
            table = tabulate(graph, *self._work(shape, cluster), self._profiles, self._learned)
            self._known[key] = cluster, table  # with the cluster, lest another one gets its id
        return self._known[key][1]

    def _work(self, shape: Shape, cluster: Cluster) -> tuple[Cluster, Workload]:
        """Return the device groups of one replica of a shape, and their workload."""
        part = cluster.first(shape.n_devices).divided(shape.replicas).grouped(shape.tensor)
        return part, replace(self._workload, batch=shape.samples, micro_batches=1 + (shape.micro_batches > 1))

    def plain(self, shape: Shape) -> bool:
        """Return whether choices of a shape are plans, in which devices share nothing and all is float32."""
        return shape.plain and self._demands.precision == "float32"

    def _zero(self, shape: Shape) -> ZeroStage:
        """Return how replicas divide states, which include float32 parameters if products are in bfloat16."""
        zero = ZeroStage(shape.zero, shape.replicas)
        if self._demands.precision == "float32":
            return zero
        return zero._replace(states=2.0, gradients=2.0 if self._demands.gradients == "float32" else 1.0)

    @cached_property
    def fabric(self) -> Fabric:
        """The hosts of the cluster."""
        return fabric_of(self._cluster)

    def network(self, graph: Graph, samples: int, tensor: int) -> SharedNetwork | None:
        """Return the network for a number of samples on groups of devices; None if groups cannot share it."""
        key = samples, tensor
        if key not in self._shared:
            network = graph if self._demands.precision == "float32" else in_bfloat16(graph)
            self._shared[key] = SharedNetwork.of(network, tensor)
        return self._shared[key]

    def check(self, tensor: int) -> None:
        """Raise InputError if no table can be made: no micro-batch size works, or ``tensor`` devices share no layer."""
        if self.refused and not self.graphs:
            raise list(self.refused.values())[-1]
        for graph in self.graphs.values():
            tensor_styles(graph, [range(len(graph.ops))], tensor)

    def import_s(self, shape: Shape) -> float:
        """Return the seconds of the last import, if a shape needs another one; 0 if not."""
        return 0.0 if shape.samples in self.graphs.keys() | self.refused.keys() else self._last_import_s

    def graph(self, samples: int) -> Graph | None:
        """Return the network for ``samples`` samples; None if it refuses them."""
        if samples not in self.graphs.keys() | self.refused.keys():
            start_s = time.perf_counter()
            try:
                self.graphs[samples] = self._graph_of(samples)
            except InputError as error:
                self.refused[samples] = error
                self._reporter.on_step(f"leaving out micro-batches of {samples}: {error}", 0, 0)
            self._last_import_s = time.perf_counter() - start_s
        return self.graphs.get(samples)
