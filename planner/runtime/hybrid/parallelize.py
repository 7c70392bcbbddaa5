"""Divide a stage among devices: tensor parallelism by `parallelize_module`, ZeRO by `fully_shard`.

ZeRO 0 is FSDP2 on an axis of replicas that hold everything; 1 and 2 keep parameters gathered until the backward pass is
over, of which 1 sums up the gradients of all micro-batches first; 3 gathers parameters anew for each pass.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from planner.parallelism.closed_form.config import ParallelConfig
from planner.parallelism.network.tensor_styles import Style, read_by, weight_of
from planner.runtime.hybrid.mesh import REPLICATE, SHARD, TENSOR
from planner.runtime.hybrid.modules import LayerBlock, Runs, StageModule, placement_of


def divide_layers(stage: StageModule, runs: Runs, mesh: DeviceMesh) -> None:
    """Divide the layers that have a style among the devices of a tensor-parallel group."""
    graph = runs.program.graph
    divided: dict[str, nn.Parameter] = {}  # by name, where two layers share a weight
    for block in stage.blocks:
        assert isinstance(block, LayerBlock)
        for op_name, path in block.layer_of.items():
            op = graph.ops[graph.index[op_name]]
            style = _style(runs, op_name, read_by(op), op.outputs[0])
            layer = block.get_submodule(path)
            parallelize_module(layer, mesh[TENSOR], style, src_data_rank=None)
            layer.weight = divided.setdefault(weight_of(op), layer.weight)  # type: ignore[arg-type]


def _style(runs: Runs, op: str, read: str, written: str) -> ParallelStyle:
    """torch's style of a layer."""
    given, result = placement_of(runs.styles, read), placement_of(runs.styles, written)
    divided = result != Replicate()
    match Style(runs.styles.style[op]):
        case Style.COLUMN:
            return ColwiseParallel(input_layouts=given, output_layouts=result, use_local_output=False)
        case Style.GATHERED:
            return ColwiseParallel(input_layouts=given, output_layouts=Replicate())
        case Style.ROW:
            return RowwiseParallel(input_layouts=Shard(-1), output_layouts=result, use_local_output=not divided)
        case Style.VOCABULARY:
            return RowwiseParallel(input_layouts=Replicate(), output_layouts=result, use_local_output=not divided)


def divide_state(stage: StageModule, mesh: DeviceMesh, config: ParallelConfig, zero: int) -> None:
    """Divide parameters, gradients and the optimizer's state among replicas; blocks that share a weight go together.

    With products in bfloat16, each replica gathers parameters in bfloat16, and keeps its part of them in float32.
    """
    replicas = mesh[REPLICATE, SHARD] if zero == 0 else mesh[SHARD]
    policy = MixedPrecisionPolicy()
    if config.precision != "float32":
        policy = MixedPrecisionPolicy(torch.bfloat16, getattr(torch, config.gradients), cast_forward_inputs=False)
    for group in _groups(stage):
        fully_shard(
            group if len(group) > 1 else group[0],
            mesh=replicas,
            reshard_after_forward=zero == 3,
            mp_policy=policy,
        )
    fully_shard(stage, mesh=replicas, reshard_after_forward=False, mp_policy=policy)


def _groups(stage: StageModule) -> list[list[nn.Module]]:
    """Blocks with parameters, those together that share one."""
    groups: list[tuple[set[int], list[nn.Module]]] = []
    for block in stage.blocks:
        own = {id(parameter) for parameter in block.parameters()}
        if not own:
            continue
        sharing = [group for group in groups if group[0] & own]
        merged = own.union(*(ids for ids, _ in sharing)), [*(m for _, ms in sharing for m in ms), block]
        groups = [group for group in groups if group not in sharing] + [merged]
    return [modules for _, modules in groups]


def set_sync(stages: Sequence[StageModule], last: bool, zero: int) -> None:
    """Say before a backward pass whether it is the last one of a step."""
    for stage in stages:
        if isinstance(stage, FSDPModule):
            stage.set_is_last_backward(last)
            stage.set_requires_gradient_sync(last or zero >= 2)
            stage.set_reshard_after_backward(last or zero == 3)
