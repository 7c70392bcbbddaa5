"""A plan within its ``.onnx``: device configurations as ONNX has them since IR version 11.

::

    model.configuration         "placement": 2 devices, gpu0 and gpu1
    node.device_configurations  of "placement": pipeline_stage 3; the node's outputs are on device 1
    node.metadata_props         device = "gpu1", which Netron shows

A reader that knows nothing of it sees the model as before. Nodes that do not depend on the inputs have no device.
"""

from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import DeviceConfigurationProto, ModelProto, NodeDeviceConfigurationProto, NodeProto, ShardingSpecProto

from graphs.errors import InputError
from graphs.importers.from_onnx import onnx_module
from graphs.importers.onnx.module import OnnxModel
from graphs.ir import Role
from planner.export.records import refuse
from planner.plans.plan import Plan

NAME = "onnx-devices"
CONFIGURATION = "placement"
IR_VERSION = 11
DEVICE = "device"  # the key of the metadata


def onnx_devices(plan: Plan, path: Path) -> ModelProto:
    """The model that a plan was made for, with the device of each node; weights in other files stay there.

    Raise InputError if the plan is for another model, has copies of the network, or fused or split operators.
    """
    if plan.placement.others or plan.rewrites:
        reason, rule = "the plan has copies, fused or split operators", "has one device for each node"
        raise refuse(NAME, reason, rule, "plan with --rewrites none")
    shapes = [tensor.shape for tensor in plan.graph.tensors if tensor.role is Role.INPUT]
    module, _ = onnx_module(path, like=shapes)
    assert isinstance(module, OnnxModel)
    operators: dict[str, list[int]] = {}
    for number, op in enumerate(plan.graph.ops):
        operators.setdefault(op.module, []).append(number)
    stage_of = {op: number for number, stage in enumerate(plan.stages) for op in stage.ops}
    model = onnx.load(path, load_external_data=False)
    model.ir_version = max(model.ir_version, IR_VERSION)
    names = [device.name for device in plan.cluster.devices]
    del model.configuration[:]
    model.configuration.append(DeviceConfigurationProto(name=CONFIGURATION, num_devices=len(names), device=names))
    placed = 0
    for node in model.graph.node:
        ops = [op for name in node.output for op in operators.get(module.paths.get(name, ""), ())]
        if ops:
            devices = list(dict.fromkeys(plan.placement.device[op] for op in ops))
            _place(node, stage_of[ops[0]], devices, names)
            placed += 1
    if not placed:
        raise InputError(f"no node of {path} is an operator of the plan of {plan.graph.name}; give the model it is for")
    return model


def _place(node: NodeProto, stage: int, devices: Iterable[int], names: list[str]) -> None:
    """Write the devices of a node: of several, the operators that it became are on different ones."""
    devices = list(devices)
    del node.device_configurations[:]
    spec = [ShardingSpecProto(tensor_name=name, device=devices) for name in node.output if name]
    node.device_configurations.append(
        NodeDeviceConfigurationProto(configuration_id=CONFIGURATION, pipeline_stage=stage, sharding_spec=spec)
    )
    node.metadata_props.add(key=DEVICE, value=", ".join(names[device] for device in devices))
