"""The runtime's own work, measured on the runtime itself: for a tensor between devices, and for a micro-batch.

The same operators run twice, all on one device and alternating between two, so that each is a stage of its own. The
difference in processor time is the overhead of the tensors; what other processes do meanwhile does not count.

A micro-batch comes from the caller's thread, and its answer goes back there. Both threads need Python's interpreter, so
the device waits for it now and then. The difference in wall time between a stream and its stage alone is a request's.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations

import torch
from torch import nn

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.host.affinity import run_on
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.plans.plan import BY_HAND, Plan
from planner.problem.problem import Goal
from planner.problem.result import Status
from planner.runtime.inference.runner import Runner
from planner.runtime.stages.compile import compile_stages
from simulator.placement import Placement

N_OPS = 32
WIDTH = 192  # an operator of some tens of microseconds, in which Python's lock is free
REQUEST_WIDTH = 64  # a tenth of that
IN_FLIGHT = 8
ROUNDS = 9
COUNT = 20  # micro-batches of one round
DIGITS = 3


def measure_overhead(devices: Sequence[Device]) -> float:
    """Return the seconds that a device of this host is busy with each tensor that it sends or receives.

    Two CPU devices take part (for fewer devices the result is 0), each with one core and exact kernels: the runtime's
    own work is on one thread, and threads that spin while they wait, as for a GPU, would count as work.
    """
    hosts = [device for device in devices if device.cores]
    spare = [replace(device, name=f"{device.name}'s", cores=device.cores[1:]) for device in hosts if device.cores[1:]]
    pair = tuple(map(_plain, [*hosts, *spare][:2]))
    if len(devices) < 2 or len(pair) < 2:
        return 0.0
    program = _chain(WIDTH)
    alternating = [i % 2 for i in range(N_OPS)]
    with _runner(program, pair, [0] * N_OPS) as whole, _runner(program, pair, alternating) as divided:
        now = time.process_time  # of all threads
        extra_s = [_stream_s(divided, now) - _stream_s(whole, now) for _ in range(ROUNDS)]
    n_ends = 2 * (N_OPS - 1)  # each tensor is sent by one device and received by another
    return max(0.0, float(f"{statistics.median(extra_s) / n_ends:.{DIGITS}g}"))


def measure_request(devices: Sequence[Device]) -> float:
    """Return the seconds that a micro-batch occupies a device of this host besides its stage.

    The first CPU device takes part, with one core and exact kernels; without one, the result is 0.
    """
    hosts = [device for device in devices if device.cores]
    if not hosts:
        return 0.0
    device, program = _plain(hosts[0]), _chain(REQUEST_WIDTH)
    with _runner(program, (device,), [0] * N_OPS) as whole:
        compiled, _ = compile_stages(program, whole.plan.stages, (device,))
        call = partial(compiled[0].call, *program.example_inputs)
        now = time.perf_counter
        _stream_s(whole, now)  # warms up
        extra_s = [_stream_s(whole, now) - run_on(device, partial(_alone_s, call)) for _ in range(ROUNDS)]
    return max(0.0, float(f"{statistics.median(extra_s):.{DIGITS}g}"))


def _plain(device: Device) -> Device:
    return replace(device, overhead_s=0.0, request_s=0.0, cores=device.cores[:1], kernels="exact")


def _stream_s(runner: Runner, now: Callable[[], float]) -> float:
    """Return the seconds by a clock for one micro-batch of a stream."""
    start_s = now()
    for _ in runner.replay(runner.program.example_arguments, COUNT):
        pass
    return (now() - start_s) / COUNT


def _alone_s(call: Callable[[], object]) -> float:
    """Return the seconds of a stage that nothing disturbs."""
    call()
    start_s = time.perf_counter()
    for _ in range(COUNT):
        call()
    return (time.perf_counter() - start_s) / COUNT


def _chain(width: int) -> Program:
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(0)
        layers = [nn.Linear(width, width, bias=False) for _ in range(N_OPS)]
    return program_from_module(nn.Sequential(*layers), (torch.ones(width, width),))


def _runner(program: Program, devices: tuple[Device, ...], placed: list[int]) -> Runner:
    links = (Link(a.name, b.name, float("inf")) for a, b in permutations(devices, 2))
    cluster = Cluster("alone or a pair", devices, tuple(links))
    graph, workload, placement = program.graph, Workload(in_flight=IN_FLIGHT), Placement(tuple(placed))
    table = tabulate(graph, cluster, workload, {})
    plan = Plan(graph, cluster, workload, table, Goal.THROUGHPUT, placement, str(Status.FEASIBLE), BY_HAND, bound_s=0.0)
    return Runner(plan, program, share_weights=True)
