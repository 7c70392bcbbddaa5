"""A small layer-wise setting, for tests."""

from typing import Any


def small(**fields: Any) -> dict[str, Any]:
    """Two layers on two GPUs; 4 samples in 2 micro-batches.

    A sample takes 10 ms forward in a layer and 4 ms in embedding and head, and has 1 MB between layers.
    """
    known = {
        "model": {"layers": 2, "hidden": 512, "sequence": 1024},
        "cluster": {
            "gpus": 2,
            "memory_MB": 10000,
            "reserved_for_allocator": 0.2,
            "context_MB": 100,
            "overlap": 1.25,
        },
        "batch": 4,
        "chunks": 2,
        "uniform": False,
        "forward_ms_per_sample": {
            "sequence": [512, 1024, 2048],
            "layer": [5.0, 10.0, 20.0],
            "embedding_and_head": [2.0, 4.0, 8.0],
        },
        "layer_memory": {
            "parameters_MB": 100.0,
            "activation_MB_per_sample": {"1": 200.0, "2": 100.0},
            "recomputed_activation_MB_per_sample": 10.0,
        },
        "embedding_memory": {
            name: {
                "model_states_MB": {"1": 400.0, "2": 200.0},
                "activation_MB_per_sample": {"1": 40.0, "2": 20.0},
            }
            for name in ("only_stage", "first_stage", "last_stage")
        },
        "allreduce_MB_per_ms": {"2": {"near": 10.0, "spread": 5.0}},
        "p2p_MB_per_ms": {"2": 2.0},
        "collective_ms": {
            "message_MB": [1, 2, 4],
            "allreduce": {"2": [1.0, 2.0, 4.0]},
            "all2all": {"2": [0.5, 1.0, 2.0]},
        },
    }
    return known | fields
