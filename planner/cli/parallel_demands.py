"""What the options of ``planner choose`` ask of a configuration."""

import argparse
from dataclasses import replace

from costmodels.cluster import Cluster
from planner.problem.hybrid_training.config import Demands


def limited(cluster: Cluster, memory_bytes: float | None) -> Cluster:
    """The cluster with no more than so much memory of each device, if there is a limit."""
    if memory_bytes is None:
        return cluster
    devices = (
        replace(device, memory_bytes=min(device.usable_bytes, memory_bytes), reserve_bytes=0.0)
        for device in cluster.devices
    )
    return replace(cluster, devices=tuple(devices))


def demands_of(options: argparse.Namespace) -> Demands:
    """The demands; what an option leaves out stays open."""
    return Demands(
        devices=options.devices,
        tensor=options.tensor,
        pipeline=options.pipeline,
        data=options.data,
        samples=options.micro_batch,
        zero=options.zero,
        schedule=options.schedule,
        recompute=options.recompute,
        precision=options.precision,
        gradients=options.gradients,
    )
