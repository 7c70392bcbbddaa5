"""A CPU of 24 cores divided into k devices of t cores: what was published for one device, and what division brings.

Published on 24 cores: a batch of CIFAR-10 takes 867 ms with one thread and 126 ms with 24, one of MNIST 496 and 83 ms.
By Amdahl's law, that leaves 11 % and 13 % of the work serial, so that many small devices do more together than one of
all cores. Each device takes whole batches in turn (copies), or the planner's stage of the network (pipeline). Memory
that devices share is left out, so that the gain of many copies is the most that can be.

    python -m examples.cpu_divided          24 cores, simulated
    python -m examples.cpu_divided here     also measures the divisions of this host's cores
"""

import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from typing import Any

import numpy as np

import planner
from costmodels.cluster.file import read_cluster
from costmodels.operator_times import OperatorTimes, operator_times
from costmodels.table import CostTable, Source
from costmodels.tabulate import assemble
from costmodels.units import format_seconds
from costmodels.workload import Workload
from examples.chains import on_meta
from examples.networks import NETWORKS
from graphs.ir import Graph
from planner.cli.console import Console

CORES, BATCH = 24, 128
DIVISIONS = tuple(k for k in range(1, CORES + 1) if CORES % k == 0)
PUBLISHED_S = {"cifar10": (0.867, 0.126), "mnist": (0.496, 0.083)}  # with one thread, and with all cores
CPU, LINK = "Xeon-E5-2690v4", "PCIe3"
ROUNDS, BATCHES = 3, 12


def serial_share(one_s: float, all_s: float) -> float:
    """The share of the work that one core does alone, by Amdahl's law."""
    return (all_s / one_s - 1 / CORES) / (1 - 1 / CORES)


def batch_s(name: str, threads: int) -> float:
    """Seconds of a batch on one device of so many cores."""
    one_s, all_s = PUBLISHED_S[name]
    serial = serial_share(one_s, all_s)
    return one_s * (serial + (1 - serial) / threads)


def table(graph: Graph, devices: int, seconds: float) -> CostTable:
    """Costs on equal devices, on each of which the whole network takes so long."""
    cluster, work = read_cluster(f"{devices}x{CPU}:{LINK}"), Workload(batch=BATCH)
    roofline_s = operator_times(graph, cluster, work, {}).forward_s
    forward_s = roofline_s * (seconds / roofline_s[:, 0].sum())
    return assemble(graph, cluster, work, OperatorTimes(forward_s, np.full(forward_s.shape, str(Source.GIVEN))))


def simulated(name: str) -> Iterator[Sequence[str]]:
    """A row for each division of 24 cores."""
    graph, whole_s = on_meta(name, BATCH), batch_s(name, CORES)
    for devices in DIVISIONS:
        each_s = batch_s(name, CORES // devices)
        found = planner.solve(planner.Problem(table(graph, devices, each_s), planner.Goal.THROUGHPUT), "chain-dp")
        one_s, all_s = PUBLISHED_S[name]
        published = {1: format_seconds(all_s), CORES: format_seconds(one_s)}.get(devices, "")
        yield (
            *(f"{devices} × {CORES // devices}", format_seconds(each_s), published),
            *(format_seconds(each_s / devices), f"{devices * whole_s / each_s:.2f}"),
            *(format_seconds(found.objective_s), f"{whole_s / found.objective_s:.2f}"),
        )


def measured(name: str) -> Iterator[Sequence[str]]:
    """A row for each division of this host's cores: predicted and measured seconds of a batch that streams."""
    model, inputs = NETWORKS[name](BATCH)
    options = planner.CalibrationOptions(split_cpu="auto")
    planner.calibrate(model, inputs, calibration_options=options)
    plans = [planner.plan(model, inputs, cluster=cluster) for cluster in planner.divisions()]
    found_s: list[list[float]] = [[] for _ in plans]
    for _ in range(ROUNDS):  # in turns, so that the host's other work disturbs all alike
        for plan, seconds in zip(plans, found_s, strict=True):
            with planner.start(plan, model, inputs) as runner:
                seconds.append(_period_s(runner.stream(repeat(inputs, 2 * BATCHES))))
    for plan, seconds in zip(plans, found_s, strict=True):
        cores = len(plan.cluster.devices[0].cores)
        times = format_seconds(plan.period_s), format_seconds(float(np.median(seconds)))
        yield f"{len(plan.cluster.devices)} × {cores}", *times


def _period_s(results: Iterator[Any]) -> float:
    """Seconds between results, once half of them have come."""
    list(islice(results, BATCHES))
    start_s, count = time.perf_counter(), sum(1 for _ in results)
    return (time.perf_counter() - start_s) / count


def main(words: Sequence[str] = ()) -> int:
    """Print the tables."""
    console = Console()
    heads = ("devices × cores", "a batch on one", "published", "copies, a batch", "× one", "pipeline, a batch", "× one")
    for name in PUBLISHED_S:
        title = f"{name}, batches of {BATCH} on {CORES} cores; {serial_share(*PUBLISHED_S[name]):.1%} serial"
        console.show({}, title, heads, simulated(name))
    for name in PUBLISHED_S if "here" in words else ():
        title = f"{name}, batches of {BATCH} on this host"
        console.show({}, title, ("devices × cores", "predicted, a batch", "measured"), measured(name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
