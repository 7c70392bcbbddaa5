"""Devices of the host that the tests run on."""

import os

from costmodels.cluster.cluster import Device

CORE = min(os.sched_getaffinity(0))
OTHER = max(os.sched_getaffinity(0))  # the same where there is only one


def device(name: str = "cpu0", *cores: int, profile: str = "") -> Device:
    """Made-up peaks; nobody looks at them before they are measured."""
    return Device(name, "cpu", 1e9, {"float32": 1e9}, 1e9, cores=cores or (CORE,), profile=profile)
