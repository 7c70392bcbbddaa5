"""A document of each format."""

import json
import tomllib
from typing import Any

from planner.plans.files import plan_to_dict
from tests.planner.sample import PLAN

CLUSTER = """
version = 1

[cluster]
name = "desk"
overlap = false
sharing = "fair"

[[device]]
name = "cpu0"
kind = "cpu"
memory = "12 GiB"
flops = { float32 = "120 GFLOP/s", bfloat16 = ".5 TFLOPS" }
memory_bandwidth = "20 GB/s"
launch = "2 us"
overhead = "20 us"
cores = [0, 1]
profile = "a1b2c3d4e5f6"

[[device]]
name = "gpu0"
like = "A100-SXM-80GB"
cuda = 0

[replicas]
count = 4
bandwidth = "50 GB/s"
latency = "5 us"

[[link]]
between = ["cpu0", "gpu0"]
bandwidth = "100 Gbit/s"
latency = "20 us"
channel = "bus"
points = [["64 KiB", "30 us"], ["1 MB", "1e-3 s"]]
via = "threads"
"""


def cluster_document() -> dict[str, Any]:
    return tomllib.loads(CLUSTER)


def plan_document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(plan_to_dict(PLAN)))
    return document


def at(document: Any, *path: str | int) -> Any:
    for key in path:
        document = document[key]
    return document
