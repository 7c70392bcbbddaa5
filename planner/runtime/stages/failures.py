"""Errors of stages that have failed, for the caller of a plan."""

import torch

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import out_of_memory
from planner.runtime.errors import StageError


def stage_failure(where: str, device: Device, error: BaseException) -> StageError:
    """Return the error of a stage of a device; ``where`` says which one and in what it failed.

    A GPU that is out of memory gets back what the stage held: the cause has no frames then, which hold tensors.
    """
    if isinstance(error, torch.OutOfMemoryError):
        error.with_traceback(None)
        failure = StageError(f"{where}: {out_of_memory(device, error)}")
    else:
        failure = StageError(f"{where}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
