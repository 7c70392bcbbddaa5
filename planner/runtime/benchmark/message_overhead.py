"""The overhead of a tensor that a device sends or receives: the runtime's own work, measured on the runtime itself.

The same operators run twice, all on one device and alternating between two, so that each is a stage of its own. The
difference in processor time is the overhead; what other processes do meanwhile does not count.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from costmodels.cluster import Cluster, Device, Link
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.plans.plan import BY_HAND, Plan
from planner.problem.problem import Goal
from planner.problem.result import Status
from planner.runtime.inference.runner import Runner
from simulator.placement import Placement

N_OPS = 32
WIDTH = 192  # an operator of some tens of microseconds, in which Python's lock is free
IN_FLIGHT = 8
ROUNDS = 9
COUNT = 20  # micro-batches of one round
DIGITS = 3


def measure_overhead(devices: Sequence[Device]) -> float:
    """Return the seconds that a device of this host is busy with each tensor that it sends or receives.

    The first two devices take part (for fewer the result is 0), each with one core and exact kernels: the runtime's own
    work is on one thread, and threads that spin while they wait would count as work.
    """
    if len(devices) < 2:
        return 0.0
    pair = tuple(replace(device, overhead_s=0.0, cores=device.cores[:1], kernels="exact") for device in devices[:2])
    program = _chain()
    alternating = [i % 2 for i in range(N_OPS)]
    with _runner(program, pair, [0] * N_OPS) as whole, _runner(program, pair, alternating) as divided:
        extra_s = [_processor_s(divided) - _processor_s(whole) for _ in range(ROUNDS)]
    n_ends = 2 * (N_OPS - 1)  # each tensor is sent by one device and received by another
    return max(0.0, float(f"{statistics.median(extra_s) / n_ends:.{DIGITS}g}"))


def _processor_s(runner: Runner) -> float:
    """Return the processor time of all threads for one micro-batch of a stream."""
    start_s = time.process_time()
    for _ in runner.replay(runner.program.example_arguments, COUNT):
        pass
    return (time.process_time() - start_s) / COUNT


def _chain() -> Program:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(N_OPS)]
    return program_from_module(nn.Sequential(*layers), (torch.ones(WIDTH, WIDTH),))


def _runner(program: Program, pair: tuple[Device, ...], placed: list[int]) -> Runner:
    a, b = (device.name for device in pair)
    cluster = Cluster("a pair", pair, (Link(a, b, float("inf")), Link(b, a, float("inf"))))
    graph, workload, placement = program.graph, Workload(in_flight=IN_FLIGHT), Placement(tuple(placed))
    table = tabulate(graph, cluster, workload, {})
    plan = Plan(graph, cluster, workload, table, Goal.THROUGHPUT, placement, str(Status.FEASIBLE), BY_HAND, bound_s=0.0)
    return Runner(plan, program)
