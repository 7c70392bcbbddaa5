"""Training the MNIST and CIFAR-10 networks under a plan, on synthetic data: losses beside those of the whole network.

The planner divides each network between two cores of this host; a step has four micro-batches in a 1F1B pipeline. The
same network in one piece trains on the same batches with plain PyTorch.

    python -m examples.train_divided
"""

import os
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

import planner
from costmodels.cluster.file import cluster_of
from examples.networks import NETWORKS
from planner.cli.console import Console

STEPS, MICRO_BATCHES, MICRO_BATCH, CLASSES = 8, 4, 8, 10
SAME = 1e-5  # relative
SGD = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)


def cluster() -> planner.Cluster:
    """Two cores of this host, with rough peaks; the plan is as right with others."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    peaks = {"memory": "4 GiB", "flops": {"float32": "50 GFLOP/s"}, "memory_bandwidth": "10 GB/s", "kind": "core"}
    devices = [{"name": f"cpu{core}", "cores": [core], **peaks} for core in cores]
    link = {"between": [device["name"] for device in devices], "bandwidth": "8 GB/s", "latency": "20 us"}
    return cluster_of({"version": 1, "device": devices, "link": [link] if len(cores) > 1 else []}, "two cores")


def data(inputs: Tensor) -> list[tuple[Tensor, Tensor]]:
    """A batch for each step: pictures of noise, brighter by their class, so that there is something to learn."""
    generator = torch.Generator().manual_seed(0)
    samples = MICRO_BATCHES * MICRO_BATCH
    targets = [torch.randint(CLASSES, (samples,), generator=generator) for _ in range(STEPS)]
    noise = [torch.rand((samples, *inputs.shape[1:]), generator=generator) for _ in range(STEPS)]
    return [(x + y.reshape(-1, 1, 1, 1) / CLASSES, y) for x, y in zip(noise, targets, strict=True)]


def whole_losses(model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    """The loss of each step in one piece."""
    optimizer, losses = SGD(model.parameters()), []
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        losses.append(loss.item())
    return losses


def divided_losses(name: str, batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[list[float], int]:
    """The loss of each step under a plan, and how many devices it uses."""
    model, inputs = NETWORKS[name](MICRO_BATCH)
    work = planner.Workload("training", batch=MICRO_BATCH, micro_batches=MICRO_BATCHES, optimizer="momentum")
    plan = planner.plan(model, inputs, cluster=cluster(), goal="training", workload=work)
    with planner.train(plan, model, inputs, loss=nn.functional.cross_entropy, optimizer=SGD) as trainer:
        return [float(trainer.step(x, y)) for x, y in batches], plan.n_used


def main() -> int:
    """Print both curves; 1 if they differ."""
    console, equal = Console(), True
    torch.set_num_threads(1)  # as each device has: one thread rounds in one order, and waits for no other
    for name in ("mnist", "cifar10"):
        model, (inputs,) = NETWORKS[name](MICRO_BATCH)
        batches = data(inputs)
        whole, (divided, used) = whole_losses(model, batches), divided_losses(name, batches)
        off = max(abs(one - other) / one for one, other in zip(whole, divided, strict=True))
        equal = equal and off < SAME
        rows = [(f"{one:.3f}", f"{other:.3f}") for one, other in zip(whole, divided, strict=True)]
        console.show({}, f"{name}: {MICRO_BATCHES} micro-batches of {MICRO_BATCH}", ("whole", "divided"), rows)
        console.say(f"on {used} devices; {'equal' if off < SAME else f'off by {off:.1e}'} within {SAME:g}")
    return 0 if equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
