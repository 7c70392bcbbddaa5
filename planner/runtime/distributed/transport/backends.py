"""Which backend of torch.distributed carries the tensors of ranks: gloo, or NCCL between GPUs."""

import os

import torch
from torch.distributed import Store  # type: ignore[attr-defined]  # it is public
from torch.distributed.constants import default_pg_timeout


def backend_for(gpus: bool) -> str:
    """Return the backend of ranks with GPUs, or of ranks without."""
    return "cpu:gloo,cuda:nccl" if gpus else "gloo"


def own_gpu() -> int | None:
    """Return the number of this rank's GPU, the rank's number on its host; None if the host has too few GPUs."""
    number = int(os.environ.get("LOCAL_RANK", "-1"))
    return number if 0 <= number < torch.cuda.device_count() else None


def gpus_for_all(store: Store, rank: int, n_ranks: int) -> bool:
    """Return whether each rank has a GPU; all ranks ask together, since all have one backend."""
    keys = [f"gpu of rank {number}" for number in range(n_ranks)]
    store.set(keys[rank], "no" if own_gpu() is None else "yes")
    store.wait(keys, default_pg_timeout)
    return all(store.get(key) == b"yes" for key in keys)
