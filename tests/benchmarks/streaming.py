"""Streaming: how soon the first output is there, and whether memory stays the same over 10,000 micro-batches.

    python -m tests.benchmarks.streaming [--network NAME] [--quick] [--json FILE]

The start-up is from plan and model in hand, as `planner.start` takes them, to the first output: the model is imported,
compiled into stages and run once. It is measured three times with ResNet-50 on two devices, in this process, where
PyTorch is loaded. Memory is looked at while a small network with a stage for each of its operators streams, in a
process of its own, at 1,000 and at 10,000 micro-batches: resident bytes of the process, and tensors that are alive.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from torch import nn

import planner
from costmodels.cluster.cluster import Cluster
from examples.networks import NETWORKS
from graphs.importers.from_torch import program_from_module
from planner.cli.console import Console
from planner.runtime.inference.runner import Runner
from simulator.placement import Placement
from tests.benchmarks.bars import Bar, at_most, declare, report
from tests.planner.runtime.small import desk, live_tensors, make_plan

DEVICES = 2
STARTS = 3
SMALL, LARGE = 1_000, 10_000
WIDTH, DEPTH = 64, 12
MOST_GROWN_BYTES = 4 * 2**20  # a tensor that stays of each micro-batch would be 140 MiB
MEMORY = "--memory"  # for the process of its own


def startups_s(name: str, cluster: Cluster, count: int) -> list[float]:
    """Seconds from plan and model to the first output, several times."""
    model, inputs = NETWORKS[name]()
    plan = planner.plan(model, inputs, cluster=cluster)
    found = []
    for _ in range(count):
        start_s = time.perf_counter()
        with planner.start(plan, model, inputs) as runner:
            runner(*inputs)
            found.append(time.perf_counter() - start_s)
    return found


def resident_bytes() -> int:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def small_runner() -> Runner:
    """Linear layers in a row, each on another device than the one before; two devices of one core."""
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)]
    program = program_from_module(nn.Sequential(*layers), (torch.ones(WIDTH, WIDTH),))
    placement = Placement(tuple(i % DEVICES for i in range(len(program.graph.ops))))
    return Runner(make_plan(program, placement, desk(DEVICES)), program)


def memory() -> tuple[int, int]:
    """How many bytes and how many tensors more there are at 10,000 micro-batches than at 1,000."""

    def batches() -> Iterator[torch.Tensor]:
        for number in range(LARGE + 1):
            yield torch.full((WIDTH, WIDTH), float(number))

    seen: dict[int, tuple[int, int]] = {}
    with small_runner() as runner:
        for number, _ in enumerate(runner.stream(batches()), 1):
            if number in (SMALL, LARGE):
                tensors = live_tensors()
                seen[number] = resident_bytes(), tensors
    (bytes_before, tensors_before), (bytes_after, tensors_after) = seen[SMALL], seen[LARGE]
    return bytes_after - bytes_before, tensors_after - tensors_before


def measured_memory() -> tuple[int, int]:
    """The same, in a process that has done nothing else."""
    command = [sys.executable, "-m", "tests.benchmarks.streaming", MEMORY]
    n_bytes, n_tensors = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(n_bytes), int(n_tensors)


def main() -> int:
    """Measure, and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, default="resnet50", help="that is started (resnet50)")
    parser.add_argument(MEMORY, action="store_true", help=argparse.SUPPRESS)
    declare(parser)
    options = parser.parse_args()
    if options.memory:
        print(*memory())
        return 0
    console = Console()
    cluster = planner.calibrate(reporter=console).first(DEVICES)
    starts_s = startups_s(options.network, cluster, 1 if options.quick else STARTS)
    console.say(f"{options.network}: first output after {', '.join(f'{s:.2f} s' for s in starts_s)}")
    n_bytes, n_tensors = measured_memory()
    console.say(f"from {SMALL:,} to {LARGE:,} micro-batches: {n_bytes / 2**20:+.2f} MiB, {n_tensors:+} tensors")
    bars: list[Bar] = [
        at_most(f"{options.network}: seconds to the first output", median(starts_s), 3.0),
        at_most("MiB grown between 1,000 and 10,000 micro-batches", n_bytes / 2**20, MOST_GROWN_BYTES / 2**20),
        # what is on its way differs a little from one look to the other
        at_most("tensors more at 10,000 micro-batches than at 1,000", n_tensors, 4 * DEPTH),
    ]
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
