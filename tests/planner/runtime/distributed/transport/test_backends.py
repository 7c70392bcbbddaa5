"""Ranks talk by NCCL where each has a GPU of its own, and else all by gloo."""

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # it is public

from planner.runtime.distributed.transport.backends import backend_for, gpus_for_all


@pytest.mark.parametrize(
    ("local_rank", "n_gpus", "other", "backend"),
    [
        ("1", 2, "yes", "cpu:gloo,cuda:nccl"),
        ("1", 2, "no", "gloo"),  # a host of the others has no GPU
        ("1", 1, "yes", "gloo"),  # the GPU is that of rank 0
        ("1", 0, "no", "gloo"),
        ("", 2, "yes", "gloo"),  # nobody says which of the GPUs is free
    ],
)
def test_ranks_with_a_gpu_each_talk_by_nccl(
    monkeypatch: pytest.MonkeyPatch, local_rank: str, n_gpus: int, other: str, backend: str
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    store = HashStore()
    store.set("gpu of rank 0", other)
    assert backend_for(gpus_for_all(store, 1, 2)) == backend
