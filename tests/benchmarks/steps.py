"""One inference and one training step as anybody would write them, watched by a meter."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from graphs.importers.footprints import Meter
from graphs.program.program import Program
from tests.benchmarks.hollow import Hollow
from tests.benchmarks.plain import Plain

OPTIMIZERS: Mapping[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-6),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-6, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-6),
}


def inference_peak_bytes(program: Program, hollow: bool) -> int:
    """The most that is allocated while the operators run one after the other, dead tensors dropped."""
    graph = program.graph
    last = {name: i for i, op in enumerate(graph.ops) for name in (*op.outputs, *op.inputs)}
    held = {*graph.inputs, *graph.outputs}
    with _kernels(hollow), Meter() as meter, torch.no_grad():
        env = dict(program.state) | dict(zip(graph.inputs, program.example_inputs, strict=True))
        for tensor in env.values():
            meter.add(tensor)
        for i, op in enumerate(graph.ops):
            env.update(zip(op.outputs, program.execute(op, env), strict=True))
            for name in (*op.inputs, *op.outputs):
                if last[name] == i and name not in held:
                    env.pop(name, None)
    return int(meter.peak_bytes)


def training_peak_bytes(
    module: nn.Module, inputs: tuple[Any, ...], optimizer: str, hollow: bool, micro_batches: int = 1
) -> int:
    """The most that is allocated in the second step, when the optimizer has its states: forward, backward, update."""
    with _kernels(hollow), Plain() as meter:
        for tensor in (*module.parameters(), *module.buffers(), *inputs):
            meter.add(tensor)
        _train(module, inputs, optimizer, meter.restart, micro_batches)
    return int(meter.peak_bytes)


def allocator_peak_bytes(module: nn.Module, inputs: tuple[Any, ...], optimizer: str) -> int:
    """The same as PyTorch's allocator saw it, with what kernels take and give back inside."""
    there = sum(tensor.nbytes for tensor in {*module.parameters(), *module.buffers(), *inputs})
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        _train(module, inputs, optimizer, lambda: None)
    now: int = 0
    peak: int = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return int(there + peak)


def _train(
    module: nn.Module,
    inputs: tuple[Any, ...],
    optimizer: str,
    between: Callable[[], None],
    micro_batches: int = 1,
) -> None:
    """Two steps; the caller holds the inputs and the results, as one does who prints them."""
    module.train()
    update = OPTIMIZERS[optimizer](module.parameters())
    for _ in range(2):
        update.zero_grad()
        between()
        for _ in range(micro_batches):
            results: list[torch.Tensor] = []
            results = [leaf for leaf in pytree.tree_leaves(module(*inputs)) if isinstance(leaf, torch.Tensor)]
            loss = torch.stack([result.mean() for result in results if result.requires_grad]).sum()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        update.step()
        del results, loss
    update.zero_grad()
    module.eval()


def _kernels(hollow: bool) -> AbstractContextManager[Any]:
    return Hollow() if hollow else nullcontext()
