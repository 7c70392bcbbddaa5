"""Small clusters and transformers, drawn at random or by hand."""

from dataclasses import replace
from random import Random

from costmodels.cluster.cluster import Device
from costmodels.cluster.collectives import Port
from costmodels.cluster.fabric import Fabric
from planner.parallelism.closed_form.config import TrainingSetting
from planner.parallelism.closed_form.transformer import Transformer

A100 = Device("gpu", "A100", 80e9, {"bfloat16": 312e12}, 2039e9)
INSIDE, BETWEEN = Port(2e-6, 300e9), Port(5e-6, 25e9)


def a100s(count: int, host_devices: int = 8) -> Fabric:
    return Fabric((A100,) * count, host_devices, INSIDE, BETWEEN)


def random_setting(seed: int) -> TrainingSetting:
    """Up to 5 layers on 4 devices, of two kinds where the seed is even, with little memory."""
    rng = Random(seed)
    network = Transformer(rng.choice([3, 4, 5]), rng.choice([4096, 8192]), 32, vocabulary=rng.choice([32000, 256000]))
    first = replace(A100, memory_bytes=rng.choice([12, 16, 20, 24, 32, 48]) * 1e9)
    second = first
    if seed % 2 == 0:
        second = replace(first, kind="half", memory_bytes=0.7 * first.memory_bytes, flops_per_s={"bfloat16": 150e12})
    fabric = Fabric((first, first, second, second), rng.choice([2, 4]), INSIDE, BETWEEN)
    return TrainingSetting(network, fabric, rng.choice([4, 8]))


def random_unlike_setting(seed: int) -> TrainingSetting:
    """Three or four layers on three or five devices, of two kinds or one, which equal stages seldom use well."""
    rng = Random(seed)
    network = Transformer(rng.choice([3, 4]), 4096, 32, vocabulary=rng.choice([32000, 256000]))
    first = replace(A100, memory_bytes=rng.choice([16, 24, 32, 48]) * 1e9)
    n_bytes = rng.choice([0.7, 1.0]) * first.memory_bytes
    slow = replace(first, kind="half", memory_bytes=n_bytes, flops_per_s={"bfloat16": 150e12})
    fast, slower = rng.choice([(3, 0), (2, 1), (1, 2), (5, 0), (2, 3)])
    devices = (first,) * fast + (slow,) * slower
    return TrainingSetting(network, Fabric(devices, rng.choice([1, len(devices)]), INSIDE, BETWEEN), rng.choice([4, 8]))
