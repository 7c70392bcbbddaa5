"""The networks of the checks in three sizes, the cluster of this host's GPU and CPU, and plans on both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import planner
from costmodels.cluster.cluster import Cluster, Device
from examples.networks import bert_base, googlenet, llama, mlp, mnist
from examples.networks.factory import Network
from graphs.importers.from_torch import program_from_module
from graphs.program.generation import GenerationProgram
from graphs.program.program import Program
from planner.plans.plan import Plan, plan_by_hand
from simulator.placement import Placement

GPU, CPU = "gpu0", "cpu0"


@dataclass(frozen=True)
class Size:
    """How large the networks are, and how long they are measured."""

    networks: Mapping[str, Callable[[], Network]]  # by the names that checks ask for
    rounds: int  # turns of each contender
    samples: int  # of a micro-batch of the perceptron
    width: int  # of the perceptron that is larger than the card
    depth: int  # likewise
    trained: str  # the perceptron that is trained, as on the command line


def _bert(**options: int) -> Network:
    from transformers import BertConfig

    return bert_base(2, 16, BertConfig(vocab_size=64, **options))


def _llama(batch: int, length: int, layers: int, width: int, words: int) -> Network:
    """A Llama with grouped heads, without the billion parameters of the published ones."""
    from transformers import LlamaConfig

    heads = max(2, width // 64)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
    )
    return llama(batch, length, config)


SIZES = {
    "whole": Size(
        {
            "googlenet": lambda: googlenet(16),
            "bert": lambda: bert_base(8),
            "llama": lambda: _llama(4, 256, 12, 1024, 32000),
        },
        rounds=5,
        samples=1024,
        width=8192,
        depth=8,
        trained="examples.networks:mlp",
    ),
    "small": Size(
        {"googlenet": googlenet, "bert": bert_base, "llama": lambda: _llama(1, 64, 4, 512, 4000)},
        rounds=2,
        samples=1024,
        width=2048,
        depth=6,
        trained="examples.networks:mlp",
    ),
    "tiny": Size(
        {
            "googlenet": lambda: mnist(2),
            "bert": lambda: _bert(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64),
            "llama": lambda: _llama(1, 8, 1, 128, 50),
        },
        rounds=1,
        samples=4,
        width=16,
        depth=4,
        trained="examples.networks:mnist",
    ),
}


def program_of(network: Network, training: bool = False, name: str = "") -> Program:
    """Import a network with its example inputs."""
    module, inputs = network
    return program_from_module(module.train(training), inputs, name=name, training=training)


def perceptron(size: Size, dtype: torch.dtype = torch.float32) -> Network:
    """Square layers of the size's width and depth."""
    module, (x,) = mlp(size.samples, size.depth, size.width)
    return module.to(dtype), (x.to(dtype),)


def this_host(program: Program | GenerationProgram | None = None, training: bool = False) -> Cluster:
    """The GPU, and all cores as one device, measured with a program's operators; the cache keeps the measurements."""
    options = planner.CalibrationOptions(training=training, split_cpu=1, kernels="exact", rewrites="none")
    return only(planner.calibrate(program, calibration_options=options), GPU, CPU)


def only(cluster: Cluster, *names: str) -> Cluster:
    """Return the cluster with these devices alone, in this order."""
    links = tuple(link for link in cluster.links if link.src in names and link.dst in names)
    return replace(cluster, devices=tuple(device_of(cluster, name) for name in names), links=links)


def device_of(cluster: Cluster, name: str) -> Device:
    """Return a device by its name."""
    return next(device for device in cluster.devices if device.name == name)


def mixed_plan(program: Program, cluster: Cluster) -> Plan:
    """Put the first tenth and the last tenth of the operators on the CPU and the others on the GPU: two crossings."""
    count = len(program.graph.ops)
    few = max(1, count // 10)
    return _placed(program, cluster, [CPU if i < few or i >= count - few else GPU for i in range(count)])


def gpu_plan(program: Program, cluster: Cluster) -> Plan:
    """Put all operators on the GPU."""
    return _placed(program, cluster, [GPU] * len(program.graph.ops))


def _placed(program: Program, cluster: Cluster, names: Sequence[str]) -> Plan:
    search = planner.Search(time_limit_s=3, rewrites="none", autotuning=False)
    found = planner.plan(program, cluster=cluster, goal="latency", search=search)
    return plan_by_hand(found, Placement(tuple(cluster.index[name] for name in names)))


def outputs_of(result: Any) -> list[torch.Tensor]:
    """Return the tensors of a result."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def parameters_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's parameters."""
    return sum(parameter.nbytes for parameter in module.parameters())
