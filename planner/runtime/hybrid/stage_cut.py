"""StageCut: a network in stages, with what goes over from one to the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from graphs.common.errors import InputError
from graphs.ir import STATE, Role
from graphs.program.program import Program
from planner.parallelism.closed_form.config import ParallelConfig
from planner.parallelism.network.layers import NetworkLayers, learned_of
from planner.parallelism.network.tensor_styles import TensorStyles, tensor_styles
from planner.runtime.hybrid.mesh import REPLICATE, SHARD, TENSOR
from planner.runtime.hybrid.modules import LayerBlock, Runs, StageModule
from planner.runtime.hybrid.parallelize import divide_layers, divide_state


@dataclass(frozen=True)
class StageCut:
    """A network in stages.

    Attributes:
        config: how devices, batch and layers are divided.
        program: the network.
        layers: its layers.
        blocks: of each stage.
        styles: how devices share each stage.
        borders: [n_stages + 1], the tensors that come to each stage, and those that the last one returns.
        learned: tensors that have a gradient.
    """

    config: ParallelConfig
    program: Program
    layers: NetworkLayers
    blocks: tuple[tuple[tuple[int, ...], ...], ...]
    styles: tuple[TensorStyles, ...]
    borders: list[tuple[str, ...]]
    learned: frozenset[str]

    @classmethod
    def of(cls, config: ParallelConfig, program: Program) -> "StageCut":
        """Return the stages that a configuration asks for.

        Raises:
            InputError: if the network has other layers, or devices could share none of them.
        """
        layers = NetworkLayers.of(program.graph)
        blocks = layers.stages(counts_of(config))
        if config.degrees:
            each = zip(blocks, config.degrees, strict=True)
            styles = sum((tensor_styles(program.graph, [sum(own, ())], of.tensor) for own, of in each), ())
        else:
            styles = tensor_styles(program.graph, [sum(each, ()) for each in blocks], config.shape.tensor)
        return cls(config, program, layers, blocks, styles, _borders(layers, blocks), learned_of(program.graph))

    def stage(self, number: int, mesh: DeviceMesh, device: torch.device) -> StageModule:
        """Return a stage as this rank has it, divided among devices and replicas."""
        degrees, blocks = self.config.of_stage(number % self.config.shape.pipeline), self.blocks[number]
        runs = Runs(self.program, device, self.styles[number], mesh[TENSOR] if degrees.tensor > 1 else None)
        runs.precision = getattr(torch, self.config.precision)
        if self.config.degrees and degrees.data > 1:
            runs.norm_group = mesh.get_group(SHARD if degrees.zero else REPLICATE)
        held = _held(self.program, (*self.layers.free(blocks), *sum(blocks, ())), self.learned, device)
        stem = int(number == 0 and bool(self.layers.stem))
        modes = ["none"] * stem + modes_of(self.config, number) + ["none"]  # of a stem, the layers and a head
        made = [LayerBlock(runs, ops, held, mode) for ops, mode in zip(blocks, modes, strict=False)]
        ends = self.borders[number], self.borders[number + 1]
        last = number == len(self.blocks) - 1
        dtypes = {name: self._dtype(name, inner=not last) for name in ends[1]}
        stage = StageModule(runs, self.layers.free(blocks), made, (ends[0], dtypes), held)
        if degrees.tensor > 1:
            divide_layers(stage, runs, mesh)
        if degrees.data > 1:
            divide_state(stage, mesh, self.config, degrees.zero)
        return stage

    def hollow(self, number: int) -> tuple[torch.Tensor, ...]:
        """Return the tensors of a border without values."""
        tensors = (self.program.graph.tensor[name] for name in self.borders[number])
        return tuple(
            torch.empty(t.shape, dtype=self._dtype(t.name, number < len(self.blocks)), device="meta").requires_grad_(
                t.name in self.learned
            )
            for t in tensors
        )

    def _dtype(self, name: str, inner: bool) -> torch.dtype:
        """Return the type of a tensor on its way between stages, or of a result."""
        dtype: torch.dtype = getattr(torch, self.program.graph.tensor[name].dtype)
        return getattr(torch, self.config.precision) if inner and dtype == torch.float32 else dtype


def counts_of(config: ParallelConfig) -> list[int]:
    """Layers of each stage; a device has several stages where a schedule interleaves them."""
    return [len(modes_of(config, number)) for number in range(config.shape.pipeline * config.shape.chunks)]


def modes_of(config: ParallelConfig, number: int) -> list[str]:
    """Return the recomputation of each layer of a stage; layers that recompute more come first."""
    chunk, row = divmod(number, config.shape.pipeline)
    layers = config.stages[row]
    modes = ["full"] * layers.full + ["selective"] * layers.selective + ["none"] * layers.none
    bounds = [len(modes) * part // config.shape.chunks for part in range(config.shape.chunks + 1)]
    return [modes[start:stop] for start, stop in pairwise(bounds)][chunk]


def _borders(layers: NetworkLayers, cut: Sequence[Sequence[Sequence[int]]]) -> list[tuple[str, ...]]:
    """[n_stages + 1], what comes to each stage, and what the last one returns."""
    graph = layers.graph
    home = {name: n for n, blocks in enumerate(cut) for ops in blocks for op in ops for name in graph.ops[op].outputs}
    last: dict[str, int] = {}
    for number, blocks in enumerate(cut):
        last.update((name, number) for ops in blocks for op in ops for name in graph.ops[op].inputs)
    last.update(dict.fromkeys(graph.outputs, len(cut) - 1))
    moving = sorted(home.keys() & last.keys())
    borders = [tuple(name for name in moving if home[name] < n <= last[name]) for n in range(len(cut))]
    return [*borders, graph.outputs]


def _held(
    program: Program, ops: Sequence[int], learned: frozenset[str], device: torch.device
) -> dict[str, torch.Tensor]:
    """Copies of the parameters and buffers that operators read."""
    graph, held = program.graph, dict[str, torch.Tensor]()
    for number in ops:
        for name in graph.ops[number].inputs:
            if graph.tensor[name].role not in STATE or name in held:
                continue
            own = program.state[name]
            if own.is_meta:
                raise InputError(f"'{name}' has a shape but no values; give a model with weights")
            copy = own.detach().to(device, copy=True)
            trained = own.requires_grad and name in learned
            is_parameter = graph.tensor[name].role is Role.PARAMETER
            held[name] = nn.Parameter(copy, requires_grad=trained) if is_parameter else copy
    return held
