"""The checks of predictions: devices, operators, networks, training, precisions and streams, as they were measured."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from unittest.mock import patch

import numpy as np
import torch

import planner
from graphs.importers.load import load_program
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.benchmark.check import compare_outputs
from planner.runtime.benchmark.measure import Contender, Eager, PlannedContender, measure, timed
from planner.runtime.training.check import TINY_STEPS, mean_square
from planner.runtime.verification.deviation import TOLERANCE, deviation
from tests.benchmarks.bars import at_least, at_most
from tests.benchmarks.gpu.check import Bars, check, close, near, said
from tests.benchmarks.gpu.networks import (
    CPU,
    GPU,
    Size,
    device_of,
    gpu_plan,
    mixed_plan,
    outputs_of,
    perceptron,
    program_of,
    this_host,
)

ESTIMATED = 2.0  # median factor by which a roofline may miss an operator's time


@check("discovery", 75)
def discovery(_: Size) -> Bars:
    """Find the GPU, and measure its peaks and the links to the host and back."""
    cluster = this_host()
    gpu = device_of(cluster, GPU)
    yield said(f"discovery: {gpu.kind} with {gpu.memory_bytes:.4g} bytes", gpu.cuda == 0)
    for dtype, rate in gpu.flops_per_s.items():
        yield at_least(f"discovery: {dtype} FLOP/s", rate, 1e12)
    yield at_least("discovery: memory bytes/s", gpu.memory_bytes_per_s, 3e11)
    yield at_most("discovery: launch, seconds", gpu.launch_s, 2e-5)
    for link in cluster.links:
        yield at_least(f"discovery: {link.src} to {link.dst}, bytes/s", link.bytes_per_s, 2e9)
        yield at_most(f"discovery: {link.src} to {link.dst}, seconds of an empty message", link.latency_s, 5e-4)
    again = this_host()
    yield said("discovery: the cache has it", again == cluster)


@check("operators", 60)
def operators(size: Size) -> Bars:
    """Compare each operator's measured time with its estimate, and their sum with the network as PyTorch runs it."""
    program = program_of(size.networks["googlenet"](), name="googlenet")
    cluster = this_host(program)
    plan = gpu_plan(program, cluster)
    unmeasured = replace(cluster, devices=tuple(replace(each, profile="") for each in cluster.devices))
    number = cluster.index[GPU]
    measured_s = plan.table.forward_s[:, number]
    estimated_s = gpu_plan(program, unmeasured).table.forward_s[:, number]
    works = (measured_s > 0) & (estimated_s > 0)
    factor = np.maximum(measured_s[works] / estimated_s[works], estimated_s[works] / measured_s[works])
    for i in np.argsort(-np.abs(measured_s - estimated_s))[:10]:
        took, guess = measured_s[i] * 1e6, estimated_s[i] * 1e6
        print(f"       {plan.table.ops[i]:32} measured {took:9.1f} us, estimated {guess:9.1f} us", flush=True)
    yield at_most("operators: median factor of estimates", float(np.median(factor)), ESTIMATED)
    eager = Eager(program, device_of(cluster, GPU), "one device")
    yield near("operators: their sum and PyTorch's own run", float(measured_s.sum()), median(eager.single(10)))


def _network(name: str) -> Callable[[Size], Bars]:
    def run(size: Size) -> Bars:
        """Run a network on the GPU alone and on both devices; compare answers, times and memory with the prediction."""
        program = program_of(size.networks[name](), name=name)
        cluster = this_host(program)
        yield from _ran(f"{name} on the GPU", gpu_plan(program, cluster), program, size)
        both = mixed_plan(program, cluster)
        yield from _ran(f"{name} on both", both, program, size)
        yield said(f"{name}: every tensor at every cut is the reference model's", planner.verify(both, program).equal)

    return run


for _name in ("googlenet", "bert", "llama"):
    check(_name, 60)(_network(_name))


def _ran(name: str, plan: Plan, program: Program, size: Size) -> Bars:
    """Run a plan; compare its answer, its memory on the GPU and its times."""
    held = torch.cuda.memory_allocated(0)
    with planner.start(plan, program) as runner:
        answers = compare_outputs(runner)
        yield said(f"{name}: answers{''.join(f' ({line})' for line in answers.wrong)}", not answers.wrong)
        torch.cuda.reset_peak_memory_stats(0)
        for _ in runner.replay(program.example_arguments, 2 * plan.workload.in_flight):
            pass
        most = torch.cuda.max_memory_allocated(0) - held
        yield near(f"{name}: bytes on the GPU", float(plan.evaluation.memory_bytes[plan.cluster.index[GPU]]), most)
        contenders: list[Contender] = [PlannedContender(runner), Eager(program, device_of(plan.cluster, GPU), "eager")]
        found = measure(contenders, size.rounds)
        yield near(f"{name}: seconds alone", plan.latency_s, found["plan"].latency_s)
        yield near(f"{name}: seconds in a stream", plan.period_s, found["plan"].period_s)
        if plan.n_used == 1:
            yield at_least(f"{name}: throughput over PyTorch's own", found.speedup("plan", over="eager"), 0.95)
    del runner
    yield at_most(f"{name}: bytes left behind", torch.cuda.memory_allocated(0) - held, 2**26)  # workspaces of cuBLAS


@check("training", 60)
def training(size: Size) -> Bars:
    """Train a network of which both devices have a part; compare gradients and the time of a step."""
    program = load_program(size.trained, training=True)
    cluster = this_host(program, training=True)
    few = max(1, len(program.graph.ops) // 4)
    for name, n_first in (("on the GPU", 0), ("on both", few)):
        pins = tuple(planner.pin(op.name, CPU if i < n_first else GPU) for i, op in enumerate(program.graph.ops))
        plan = planner.plan(program, cluster=cluster, goal="training", constraints=pins)
        found = planner.verify(plan, program, training=True)
        yield said(
            f"training {name}: {found.n_gradients} gradients{f' ({found.finding})' if found.finding else ''}",
            found.equal,
        )
        batch = program.example_inputs[0]
        whole = batch.repeat(plan.workload.micro_batches, *(1 for _ in batch.shape[1:]))
        with planner.train(plan, program, loss=mean_square, optimizer=TINY_STEPS["sgd"]) as trainer:
            trainer.step(whole, None)
            steps_s = [timed(lambda: trainer.step(whole, None).item()) for _ in range(5)]  # noqa: B023 - called at once
            yield near(f"training {name}: seconds of a step", plan.predicted_s, median(steps_s))


@check("precisions", 45)
def precisions(size: Size) -> Bars:
    """Run products in every precision on the GPU, against the same in float64 on the CPU."""
    module, (x,) = perceptron(replace(size, samples=min(size.samples, 512), width=min(size.width, 2048)))
    exact = module.double()(x.double()).detach()
    seconds: dict[str, float] = {}
    before = torch.get_float32_matmul_precision()
    for name, dtype, tf32 in (
        ("float32", torch.float32, "highest"),
        ("TF32", torch.float32, "high"),
        ("bfloat16", torch.bfloat16, "highest"),
        ("float16", torch.float16, "highest"),
    ):
        torch.set_float32_matmul_precision(tf32)
        program = program_of((module.to(dtype), (x.to(dtype),)), name=f"perceptron in {name}")
        cluster = this_host(program)
        plan = gpu_plan(program, cluster)
        with planner.start(plan, program) as runner:
            args, kwargs = program.example_arguments
            got = outputs_of(runner(*args, **kwargs))[0].double().cpu()
            off = deviation(exact, got)
            yield at_most(f"{name}: largest error as a share", off.share if off else 0.0, TOLERANCE[dtype])
            seconds[name] = measure([PlannedContender(runner)], size.rounds)["plan"].latency_s
            yield near(f"{name}: seconds alone", plan.latency_s, seconds[name])
    torch.set_float32_matmul_precision(before)
    for name in ("TF32", "bfloat16", "float16"):
        yield at_least(f"{name}: speed over float32", seconds["float32"] / seconds[name], 1.0)


@check("streams", 45)
def streams(size: Size) -> Bars:
    """Stream micro-batches through both devices: a GPU's thread waits for nothing, and the devices overlap."""
    program = program_of(size.networks["bert"](), name="bert")
    cluster = this_host(program)
    plan = mixed_plan(program, cluster)
    waits: list[str] = []
    with planner.start(plan, program) as runner:
        outputs = [outputs_of(result)[0].cpu() for result in runner.replay(program.example_arguments, 4)]
        yield said("streams: every micro-batch has the same answer", all(close(outputs[0], each) for each in outputs))
        with _noted(waits):
            for _ in runner.replay(program.example_arguments, 8):
                pass
        held_up = [thread for thread in waits if thread == f"device-{GPU}"]
        yield at_most(f"streams: waits of the GPU's thread, of {len(waits)}", len(held_up), 0)
        found = measure([PlannedContender(runner)], size.rounds)["plan"]
    yield at_most("streams: seconds in a stream over seconds alone", found.period_s / found.latency_s, 1.05)


@contextmanager
def _noted(waits: list[str]) -> Iterator[None]:
    """Note the thread of each wait for a GPU."""

    def noting(kept: Callable[..., object]) -> Callable[..., object]:
        def wait(*args: object) -> object:
            waits.append(threading.current_thread().name)
            return kept(*args)

        return wait

    with ExitStack() as stack:
        for owner in (torch.cuda.Stream, torch.cuda.Event, torch.cuda):
            stack.enter_context(patch.object(owner, "synchronize", noting(owner.synchronize)))
        yield
