"""A plan within its ``.onnx``: device configurations as ONNX has them since IR version 11.

::

    model.configuration         "placement": 2 devices, gpu0 and gpu1; or "copy 1", "copy 2" of the network
    node.device_configurations  of "placement": pipeline_stage 3; the node's outputs are on device 1
                                of an operator in parts: axis 1 of its output in 2 shards on devices 0 and 1
    node.metadata_props         device = "gpu1", which Netron shows; split = "in 2 by output features"

A reader that knows nothing of it sees the model as before. Nodes that do not depend on the inputs have no device.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx
from onnx import (
    DeviceConfigurationProto,
    ModelProto,
    NodeDeviceConfigurationProto,
    NodeProto,
    ShardedDimProto,
    ShardingSpecProto,
    SimpleShardedDimProto,
)

from graphs.common.errors import InputError
from graphs.importers.from_onnx import onnx_module
from graphs.importers.load import load_graph
from graphs.importers.onnx.module import OnnxModel
from graphs.ir import STATE, Graph, Role
from graphs.rewrites.sharding import Shard, Sharding
from graphs.rewrites.sharding_rules import shardings
from planner.explanations.common_ops import NetworkOps
from planner.plans.plan import Plan
from simulator.stages import split_stages

CONFIGURATION = "placement"
IR_VERSION = 11
DEVICE, SPLIT = "device", "split"  # keys of the metadata


def onnx_devices(plan: Plan, path: Path) -> ModelProto:
    """Return the model that a plan was made for, with the devices of each node; weights in other files stay there.

    Each copy of the network is a configuration of its own. Raise InputError if the plan is for another model.
    """
    shapes = [tensor.shape for tensor in plan.graph.tensors if tensor.role is Role.INPUT]
    module, _ = onnx_module(path, like=shapes)
    assert isinstance(module, OnnxModel)
    model = onnx.load(path, "protobuf", load_external_data=False)
    placed = _Placed(NetworkOps(plan, rewritten=True), _network(plan, path), module.paths, model)
    model.ir_version = max(model.ir_version, IR_VERSION)
    names = [device.name for device in plan.cluster.devices]
    del model.configuration[:]
    for name in placed.configurations:
        model.configuration.append(DeviceConfigurationProto(name=name, num_devices=len(names), device=names))
    if not [node for node in model.graph.node if placed.place(node)]:
        raise InputError(f"no node of {path} is an operator of the plan of {plan.graph.name}; give the model it is for")
    return model


def _network(plan: Plan, path: Path) -> Graph:
    """Return the graph without fused and split operators."""
    ops = NetworkOps(plan, rewritten=True)
    if not plan.is_split:
        return ops.graph
    network = load_graph(str(path), like=plan.graph)
    if network.fingerprint != plan.network_fingerprint:
        of = plan.network_fingerprint or "unknown"
        raise InputError(
            f"the plan divides operators of a network with the fingerprint {of}, and {path} has {network.fingerprint}; "
            "give the model that the plan is for, or plan again"
        )
    return network


@dataclass(frozen=True)
class _Placed:
    """The nodes of a model with their devices."""

    ops: NetworkOps  # where the operators of the network are
    network: Graph  # the network
    paths: Mapping[str, str]  # the module of each result of the model's nodes
    model: ModelProto

    @property
    def configurations(self) -> list[str]:
        """The names of the configurations."""
        n = len(self.ops.plan.placement.copies)
        return [CONFIGURATION] if n == 1 else [f"copy {number}" for number in range(1, n + 1)]

    def place(self, node: NodeProto) -> bool:
        """Write the devices of a node, and whether it has any: of several, its operators are on different ones."""
        names = [name for key in node.output for name in self._of_module.get(self.paths.get(key, ""), ())]
        if not names:
            return False
        del node.device_configurations[:]
        copies = self.ops.plan.placement.copies
        for number, (configuration, copy) in enumerate(zip(self.configurations, copies, strict=True)):
            ops = [op for name in names for op in self.ops.members[name]]
            devices = list(dict.fromkeys(copy.device[op] for op in ops))
            node.device_configurations.append(
                NodeDeviceConfigurationProto(
                    configuration_id=configuration,
                    pipeline_stage=self._stage_of[number][ops[0]],
                    sharding_spec=self._specs(node, names, devices),
                )
            )
        known = self.ops.plan.table.devices
        on = dict.fromkeys(known[home] for op in ops for home in self.ops.plan.placement.homes[op])
        node.metadata_props.add(key=DEVICE, value=", ".join(on))
        if how := dict.fromkeys(filter(None, map(self.ops.how, names))):
            node.metadata_props.add(key=SPLIT, value=", ".join(how))
        return True

    @cached_property
    def _of_module(self) -> Mapping[str, list[str]]:
        """The operators of each module."""
        found: dict[str, list[str]] = {}
        for op in self.network.ops:
            if op.name in self.ops.members:
                found.setdefault(op.module, []).append(op.name)
        return found

    @cached_property
    def _stage_of(self) -> Sequence[Mapping[int, int]]:
        """[n_copies], the stage of each operator of the plan's graph."""
        plan = self.ops.plan
        stages = (split_stages(plan.table, replace(copy, others=())) for copy in plan.placement.copies)
        return [{op: number for number, stage in enumerate(each) for op in stage.ops} for each in stages]

    def _specs(self, node: NodeProto, names: Sequence[str], devices: list[int]) -> Iterator[ShardingSpecProto]:
        """Yield the devices of a node's results and, if it is one operator, how its inputs and results are divided."""
        if len(names) > 1 or not self.ops.how(names[0]):
            yield from (ShardingSpecProto(tensor_name=name, device=devices) for name in node.output if name)
            return
        op = self.network.ops[self.network.index[names[0]]]
        kind, _ = self.ops.choices[op.name]
        sharding: Sharding = next(one for one in shardings(self.network, op) if one.name == kind)
        on = list(self.ops.parts_on(op.name))
        weights = {tensor.name for tensor in self.model.graph.initializer}
        read = [(n, s) for n, s in zip(op.inputs, sharding.inputs, strict=True) if not self._is_state(n)]
        given = [name for name in node.input if name and name not in weights]
        ends = list(zip(given, read, strict=True)) if len(given) == len(read) else []
        written = list(zip(op.outputs, sharding.outputs, strict=True))
        ends += zip([name for name in node.output if name], written, strict=False)
        for name, (tensor, shard) in ends:
            dims = [self._divided(shard, tensor, len(on))] if shard else []
            yield ShardingSpecProto(tensor_name=name, device=on, sharded_dim=dims)

    def _divided(self, shard: Shard, tensor: str, parts: int) -> ShardedDimProto:
        """Return an axis that is divided, run by run."""
        extent = self.network.tensor[tensor].shape[shard.axis] // shard.runs
        runs = [SimpleShardedDimProto(dim_value=extent, num_shards=parts)] * shard.runs
        return ShardedDimProto(axis=shard.axis, simple_sharding=runs)

    def _is_state(self, tensor: str) -> bool:
        return self.network.tensor[tensor].role in STATE
