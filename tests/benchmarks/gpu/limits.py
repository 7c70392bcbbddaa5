"""The checks of limits: CUDA graphs, NCCL, a network larger than the card, a full card and a card that is shared."""

import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import pytest
import torch

import planner
from costmodels.calibrate.clock import calls_s, clock_of
from costmodels.cluster.cluster import Device
from costmodels.host.affinity import run_on, torch_device_of
from graphs.common.errors import InputError
from graphs.importers.load import load_program
from planner.runtime.benchmark.check import compare_outputs
from planner.runtime.benchmark.measure import PlannedContender, measure
from planner.runtime.errors import StageError
from planner.runtime.stages.compile import CompiledStage, compile_stages
from tests.benchmarks.bars import at_least, at_most
from tests.benchmarks.gpu.check import Bars, check, close, near, said
from tests.benchmarks.gpu.networks import (
    CPU,
    GPU,
    SIZES,
    Size,
    device_of,
    gpu_plan,
    only,
    outputs_of,
    perceptron,
    program_of,
    this_host,
)
from tests.pretended_gpu import pretend_gpus

REPLAYS = 20
PRETENDED = "tiny"  # the size of the networks on a processor that pretends to be a GPU

TRANSFORMER = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 512,
    "n_positions": 64,
    "n_ctx": 64,
    "n_embd": 128,
    "n_layer": 4,
    "n_head": 4,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
"""A transformer without dropout, whose training is described in closed form."""


@check("graphs", 40)
def graphs(size: Size) -> Bars:
    """Replay a network's only stage as a CUDA graph: whether it computes the same, and where that pays."""
    for name in ("googlenet", "bert"):
        program = program_of(size.networks[name](), name=name)
        plan = gpu_plan(program, this_host(program))
        gpu = device_of(plan.cluster, GPU)
        (stage,) = compile_stages(program, plan.stages, plan.cluster.devices)[0].values()
        inputs = [each.to(torch_device_of(gpu)) for each in program.example_inputs]
        plain_s, graph_s, same = run_on(gpu, partial(_replayed, stage, inputs, gpu))
        yield said(f"graphs: {name} computes the same", same)
        print(f"       graphs: {name}: {plain_s:.4g} s as calls, {graph_s:.4g} s as a graph", flush=True)
        yield at_least(f"graphs: {name}: speed over calls", plain_s / graph_s, 1.0)


def _replayed(stage: CompiledStage, inputs: Sequence[torch.Tensor], gpu: Device) -> tuple[float, float, bool]:
    """Return the seconds of calls of a stage and of replays of its graph, and whether both compute the same."""
    clock = clock_of(gpu)
    calls = calls_s(clock, lambda: stage.call(*inputs))
    for _ in range(3):  # libraries choose their algorithms
        expected = stage.call(*inputs)
    plain_s = median(next(calls) for _ in range(REPLAYS))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        results = stage.call(*inputs)
    graph.replay()
    torch.cuda.synchronize()
    same = all(close(a, b) for a, b in zip(expected, results, strict=True))
    replays = calls_s(clock, graph.replay)
    return plain_s, median(next(replays) for _ in range(REPLAYS)), same


@check("larger", 60)
def larger(size: Size) -> Bars:
    """Plan and run a network that is twice as large as what the GPU may have; the rest stays on the host."""
    program = program_of(perceptron(size), name="perceptron")
    args, kwargs = program.example_arguments
    with torch.no_grad():
        expected = program.module(*args, **kwargs)  # the whole of it fits the host alone
    n_bytes = float(sum(tensor.nbytes for tensor in program.state.values()))
    cluster = this_host(program)
    small = replace(device_of(cluster, GPU), memory_bytes=n_bytes / 2)
    cluster = replace(cluster, devices=(small, device_of(cluster, CPU)))
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (n_bytes / 2 + 2**30) / total), 0)  # and room for libraries
    plan = planner.plan(
        program, cluster=cluster, goal="latency", search=planner.Search(rewrites="none", autotuning=False)
    )
    yield said("larger: the plan uses both devices", plan.n_used == 2)
    with planner.start(plan, program) as runner:
        got = outputs_of(runner(*args, **kwargs))[0].cpu()
        yield said("larger: the answer is the host's", close(outputs_of(expected)[0], got))
        yield near("larger: seconds alone", plan.latency_s, measure([PlannedContender(runner)], 1)["plan"].latency_s)
    torch.cuda.set_per_process_memory_fraction(1.0, 0)


@check("full", 45)
def full(size: Size) -> Bars:
    """Let the GPU run out of memory at its start and in a run: one clear error, and nothing left behind."""
    program = program_of(perceptron(size), name="perceptron")
    plan = gpu_plan(program, this_host(program))
    held = torch.cuda.memory_allocated(0)
    with _all_but(2**26):
        try:
            planner.start(plan, program).close()
            refusal = ""
        except InputError as error:
            refusal = str(error)
    print(f"       {refusal}", flush=True)
    yield said("full: no room for weights is one line that names the GPU", "cuda:0" in refusal and "\n" not in refusal)
    with planner.start(plan, program) as runner:
        args, kwargs = program.example_arguments
        expected = outputs_of(runner(*args, **kwargs))[0].cpu()
        running = torch.cuda.memory_allocated(0)
        with _all_but(2**23):
            try:
                runner(*args, **kwargs)
                failure: StageError | None = None
            except StageError as error:
                failure = error
        print(f"       {failure}", flush=True)
        yield said("full: no room in a run is one line that names the device", f"'{GPU}' has run out" in str(failure))
        left = torch.cuda.memory_allocated(0) - running  # while the error is still in hand
        yield at_most("full: bytes that the failed micro-batch left behind", left, 2**20)
        yield said("full: the next micro-batch is right", close(expected, outputs_of(runner(*args, **kwargs))[0].cpu()))
    del runner, failure
    gc.collect()
    yield at_most("full: bytes left behind", torch.cuda.memory_allocated(0) - held, 2**26)


@contextmanager
def _all_but(n_bytes: int) -> Iterator[None]:
    """Take the memory of the GPU but for some bytes, for a while."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(0)
    block = torch.empty(max(0, free - n_bytes), dtype=torch.uint8, device="cuda:0")
    try:
        yield
    finally:
        del block
        torch.cuda.empty_cache()


@check("nccl", 60)
def nccl(size: Size) -> Bars:
    """Train with one rank on the GPU, as torchrun starts it: a plan, and a row of `planner choose`, over NCCL.

    The ranks of a pretended GPU are on the CPU.
    """
    program = load_program(size.trained, training=True)
    device = CPU if size is SIZES[PRETENDED] else GPU
    plan = planner.plan(program, cluster=only(this_host(program, training=True), device), goal="training")
    with tempfile.TemporaryDirectory() as folder:
        planner.save_plan(plan, Path(folder) / "plan.json")
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(TRANSFORMER), encoding="utf-8")
        planner.choose(config, cluster="1xA100-SXM-80GB", global_batch=4).save(Path(folder) / "row.json")
        for name, model in (("plan", size.trained), ("row", str(config))):
            done = _ranks([str(Path(folder) / f"{name}.json"), model, "--rounds", "2", "--json"])
            print(f"       {done.stdout.strip()[-800:]} {done.stderr.strip()[-600:]}", flush=True)
            yield said(f"nccl: a rank trains the {name} (exit status {done.returncode})", done.returncode == 0)
            equal = done.returncode == 0 and json.loads(done.stdout).get("equal") is not False
            yield said(f"nccl: losses and gradients of the {name} are the model's", equal)


def _ranks(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run one rank under torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "--module"]
    return subprocess.run(
        [*launcher, "planner", "rank", *words], capture_output=True, text=True, timeout=50, check=False
    )


@check("shared", 60)
def shared(size: Size) -> Bars:
    """Run the same network in two processes on one card at once: both answers are right."""
    code = "import tests.benchmarks.gpu.limits as own, sys; sys.exit(own.one_of_two(sys.argv[1]))"
    name = next(key for key, each in SIZES.items() if each is size)
    running = [subprocess.Popen([sys.executable, "-c", code, name]) for _ in range(2)]
    ended = [process.wait(timeout=55) for process in running]
    yield at_most("shared: processes that fail or answer wrongly", sum(map(bool, ended)), 0)


def one_of_two(name: str) -> int:
    """Run a network many times; the exit status is 1 if an answer is wrong."""
    if name == PRETENDED:
        pretend_gpus(pytest.MonkeyPatch())
    program = program_of(SIZES[name].networks["googlenet"](), name="googlenet")
    plan = gpu_plan(program, this_host(program))
    with planner.start(plan, program) as runner:
        wrong = list(compare_outputs(runner).wrong)
        results = [outputs_of(result)[0].cpu() for result in runner.replay(program.example_arguments, 200)]
    return int(bool(wrong) or not all(close(results[0], result) for result in results))
