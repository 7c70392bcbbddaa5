"""The ranks of a training as a mesh: stages of a pipeline × replicas × devices that share every layer.

::

    order "data"       pipeline, replicate, shard, tensor      rank = (stage × replicas + replica) × tensor + part
    order "pipeline"   replicate, shard, pipeline, tensor      stages of a replica are neighbours

Replicas are in one of two axes: in "replicate" each holds everything (ZeRO 0), in "shard" they divide it (ZeRO 1 to 3).
"""

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from graphs.common.errors import InputError
from planner.parallelism.closed_form.config import ParallelShape

PIPELINE, REPLICATE, SHARD, TENSOR = "pipeline", "replicate", "shard", "tensor"


def mesh_of(shape: ParallelShape, device: str) -> DeviceMesh:
    """Return the mesh of all ranks; torch.distributed has been initialised.

    Raises:
        InputError: if there are more or fewer ranks than devices in the shape.
    """
    if dist.get_world_size() != shape.devices:
        raise InputError(
            f"data {shape.data} × tensor {shape.tensor} × pipeline {shape.pipeline} takes {shape.devices} ranks, and "
            f"there are {dist.get_world_size()}; start {shape.devices}"
        )
    replicas = {REPLICATE: 1 if shape.zero else shape.data, SHARD: shape.data if shape.zero else 1}
    sizes = {PIPELINE: shape.pipeline, **replicas, TENSOR: shape.tensor}
    if shape.order == "pipeline":
        sizes = {**replicas, PIPELINE: shape.pipeline, TENSOR: shape.tensor}
    return init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def pipelines_of(mesh: DeviceMesh) -> list[list[list[int]]]:
    """[n_pipelines, n_rows, 1], the ranks of each row of every pipeline."""
    assert mesh.mesh_dim_names is not None
    axis = mesh.mesh_dim_names.index(PIPELINE)
    columns = mesh.mesh.movedim(axis, 0).reshape(mesh.mesh.shape[axis], -1)
    return [[[rank] for rank in column] for column in columns.T.tolist()]


def replica_of(mesh: DeviceMesh) -> int:
    """Return the number of this rank's replica."""
    return mesh.get_local_rank(REPLICATE) * mesh[SHARD].size() + mesh.get_local_rank(SHARD)
