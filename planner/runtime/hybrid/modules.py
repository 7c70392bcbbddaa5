"""The stages of a network as modules: blocks with the model's own names, run operator by operator.

::

    stage   ── block ── block ── block ──►        ZeRO gathers the parameters of a block, and recomputation runs a
               stem     layer    layer            block again; tensors that are divided among devices are DTensors
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.utils.checkpoint import checkpoint

from costmodels.memory.recomputation import runs_once
from graphs.ir import STATE, Graph, Op, Role
from graphs.operator_kinds import plain
from graphs.program.program import Program, home_of, on_device
from planner.parallelism.network.layers import is_batch_norm
from planner.parallelism.network.tensor_styles import TensorStyles, read_by
from planner.runtime.hybrid.batch_norm import synchronized_batch_norm
from planner.runtime.stages.random_generators import is_random, rrelu
from planner.runtime.stages.recomputation import once, selective_contexts
from planner.runtime.training.means import MeanRecorder, averages

ATTENTION = "aten.scaled_dot_product_attention"
NORM_ARGUMENTS = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")


class Runs:
    """How operators run: on which device, and on which tensors divided how."""

    def __init__(self, program: Program, device: torch.device, styles: TensorStyles, mesh: DeviceMesh | None) -> None:
        self.program, self.device, self.styles, self.mesh = program, device, styles, mesh
        self.precision = torch.float32  # of products
        self.norm_group: dist.ProcessGroup | None = None  # replicas that have parts of the same micro-batch
        self.once = frozenset(  # chance comes from one generator: what runs again draws the same if all draw again
            op.name
            for op, kept in zip(program.graph.ops, runs_once(program.graph), strict=True)
            if kept and not is_random(program.calls[op.name].node)
        )

    def mixed(self) -> torch.autocast:
        """Return the context in which products are in a lower precision than parameters."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision != torch.float32)

    def run(self, op: Op, env: Mapping[str, torch.Tensor], layer: nn.Module | None) -> tuple[torch.Tensor, ...]:
        """Run an operator, or the layer that stands for it; divided results are DTensors."""
        if layer is not None:
            return (layer(env[read_by(op)]),)
        axes = self.styles.reads.get(op.name)
        if axes is not None and plain(op.kind) == ATTENTION:
            return self._attention(op, env, axes)
        if self.norm_group is not None and is_batch_norm(op):
            return (self._batch_norm(op, env),)
        call = self.program.calls[op.name]
        given = gathered if axes is None else self._in_parts
        args, kwargs = on_device(self.program.arguments(op, lambda name: given(env[name])), self.device)
        target: Any = call.node.target
        if target is torch.ops.aten.rrelu.default and is_random(call.node):
            target = rrelu
        if axes is not None and target is torch.ops.aten.view.default:
            target = torch.ops.aten.reshape.default  # strides of a part may be others than those of the trace
        result = target(*args, **kwargs)
        results = tuple(result) if call.unpack else (result,)
        return results if axes is None else tuple(map(self._divided, op.outputs, results))

    def _attention(
        self, op: Op, env: Mapping[str, torch.Tensor], axes: Sequence[int | None]
    ) -> tuple[torch.Tensor, ...]:
        """Run attention on each device's own heads; DTensor has no rule for the kernel of CPUs."""
        assert self.mesh is not None
        own = {
            name: self._in_parts(env[name])
            .redistribute(placements=[Replicate() if axis is None else Shard(axis)])
            .to_local(grad_placements=[Partial() if axis is None else Shard(axis)])
            for name, axis in zip(op.inputs, axes, strict=True)
        }
        results = self.program.execute(op, own)
        return tuple(
            DTensor.from_local(result, self.mesh, [placement_of(self.styles, name)], run_check=False)
            for name, result in zip(op.outputs, results, strict=True)
        )

    def _batch_norm(self, op: Op, env: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Run a batch norm on the samples of all replicas."""
        assert self.norm_group is not None
        args, options = self.program.arguments(op, lambda name: gathered(env[name]))
        bound: Any = dict(zip(NORM_ARGUMENTS, args, strict=False)) | dict(options)
        x, weight, bias, mean, variance, _, momentum, eps = (bound.get(name) for name in NORM_ARGUMENTS)
        return synchronized_batch_norm(self.norm_group, x, (weight, bias), (mean, variance), momentum, eps)

    def _in_parts(self, tensor: torch.Tensor) -> DTensor:
        """Return a tensor as every device has it; in the backward pass the gradients of all devices are summed."""
        if isinstance(tensor, DTensor):
            return tensor
        return DTensor.from_local(tensor, self.mesh, [Replicate()], run_check=False)

    def _divided(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a result with the placement that the styles say."""
        assert isinstance(tensor, DTensor)
        placed: torch.Tensor = tensor.redistribute(placements=[placement_of(self.styles, name)])
        return placed


def placement_of(styles: TensorStyles, name: str) -> Placement:
    """Return how a tensor lies on the devices."""
    axis = styles.axis.get(name)
    return Replicate() if axis is None else Shard(axis)


def _leaving(graph: Graph, ops: Sequence[Op]) -> tuple[str, ...]:
    """Return the tensors that these operators write and others, or the caller, read."""
    own = {op.name for op in ops}
    read = {name for op in graph.ops for name in op.inputs if op.name not in own} | set(graph.outputs)
    return tuple(name for op in ops for name in op.outputs if name in read)


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of which each device has all, gathered if it is divided."""
    return tensor.redistribute(placements=[Replicate()]).to_local() if isinstance(tensor, DTensor) else tensor


class LayerBlock(nn.Module):
    """Some successive operators, with their parameters and buffers under the model's own names."""

    def __init__(self, runs: Runs, ops: Sequence[int], held: Mapping[str, torch.Tensor], recompute: str) -> None:
        super().__init__()
        graph = runs.program.graph
        self._runs, self._recompute = runs, recompute
        self.ops = [graph.ops[number] for number in ops]
        written = {name for op in self.ops for name in op.outputs}
        read = dict.fromkeys(name for op in self.ops for name in op.inputs if name not in written)
        state = [name for name in read if graph.tensor[name].role in STATE]
        self.reads = tuple(name for name in read if name not in state)
        self.writes = _leaving(graph, self.ops)
        self.layer_of: dict[str, str] = {}  # operator -> path of its layer
        self.path_of: dict[str, tuple[str, str]] = {}  # parameter or buffer -> path of its module, attribute
        for op in self.ops:
            if op.name in runs.styles.style:
                self._add_layer(op, held)
        for name in state:
            if name not in self.path_of:
                home, last_part = home_of(self, name)
                _register(home, last_part, held[name])
                self.path_of[name] = name.rpartition(".")[0], last_part

    def _add_layer(self, op: Op, held: Mapping[str, torch.Tensor]) -> None:
        """Add a linear layer or an embedding as a module, which torch can divide."""
        attributes = dict(op.attrs)
        if plain(op.kind) == "aten.embedding":
            names = {"weight": op.inputs[0]}
            n_rows, width = held[op.inputs[0]].shape
            padding = attributes.get("padding_idx", -1)
            padding = padding if isinstance(padding, int) and padding >= 0 else None
            layer: nn.Module = nn.Embedding(n_rows, width, padding, device="meta")
        else:
            names = dict(zip(("weight", "bias"), op.inputs[1:], strict=False))
            n_rows, width = held[names["weight"]].shape
            layer = nn.Linear(width, n_rows, bias="bias" in names, device="meta")
        for attribute, name in names.items():
            layer.register_parameter(attribute, held[name])  # type: ignore[arg-type]
        path = names["weight"].rpartition(".")[0]
        taken = path in self.layer_of.values()
        path = f"{op.module}_{op.name}" if taken else path  # a weight that two layers share
        home, last = home_of(self, path)
        home.add_module(last, layer)
        self.layer_of[op.name] = path
        for attribute, name in names.items():
            self.path_of.setdefault(name, (path, attribute))

    def tensor(self, name: str) -> torch.Tensor:
        """Return a parameter or buffer, by its name in the model, as it is now."""
        path, attribute = self.path_of[name]
        tensor: torch.Tensor = getattr(self.get_submodule(path), attribute)
        return tensor

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the operators on ``reads``; return ``writes``."""
        if self._recompute == "none":
            return self._run(tensors)
        context: dict[str, Any] = {}
        if self._recompute == "selective":
            context["context_fn"] = selective_contexts
        passes = count()

        def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self._run(tensors, again=next(passes) > 0)

        result: tuple[torch.Tensor, ...] = checkpoint(run, *tensors, use_reentrant=False, **context)
        return result

    def _run(self, tensors: Sequence[torch.Tensor], again: bool = False) -> tuple[torch.Tensor, ...]:
        """Run the operators; ``again`` for the backward pass, which leaves running statistics as they are."""
        env = dict(zip(self.reads, tensors, strict=True))
        env |= {name: self.tensor(name) for name in self.path_of}
        if again:
            env |= {name: env[name].clone() for name in self._runs.program.statistics & self.path_of.keys()}
        for op in self.ops:
            layer = self.get_submodule(self.layer_of[op.name]) if op.name in self.layer_of else None
            run = once(self._runs.run) if op.name in self._runs.once else self._runs.run
            env.update(zip(op.outputs, run(op, env, layer), strict=True))
        return tuple(env[name] for name in self.writes)


def _register(home: nn.Module, name: str, tensor: torch.Tensor) -> None:
    if isinstance(tensor, nn.Parameter):
        home.register_parameter(name, tensor)
    else:
        home.register_buffer(name, tensor)


class StageModule(nn.Module):
    """A stage: operators that depend on no parameter, then its blocks; takes tensors of the stage before."""

    def __init__(
        self,
        runs: Runs,
        free: Sequence[int],
        blocks: Sequence[LayerBlock],
        borders: tuple[Sequence[str], Mapping[str, torch.dtype]],
        held: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__()
        graph = runs.program.graph
        self._runs, self._arrives, self._leaves = runs, *borders
        self._free = [graph.ops[number] for number in free]
        read = [name for op in self._free for name in op.inputs if graph.tensor[name].role is Role.BUFFER]
        self.constants = {name: held[name] for name in read}  # of masks and positions
        self.blocks = nn.ModuleList(blocks)
        self.inputs: Sequence[Mapping[str, torch.Tensor]] = ()  # of each micro-batch
        self.counting = MeanRecorder()  # of the latest micro-batch
        ops = [*self._free, *(op for block in blocks for op in block.ops)]
        self._averages = any(averages(graph, op) for op in ops)

    def forward(self, *args: torch.Tensor, micro_batch: int) -> tuple[torch.Tensor, ...]:
        """Run the stage on what the previous stage has sent; return what the next stage reads, or the outputs."""
        env = dict(self.inputs[micro_batch]) | self.constants | dict(zip(self._arrives, args, strict=True))
        with torch.no_grad():
            for op in self._free:
                env.update(zip(op.outputs, self._runs.run(op, env, None), strict=True))
        self.counting = MeanRecorder()
        with self._runs.mixed(), self.counting if self._averages else nullcontext():
            for block in self.blocks:
                assert isinstance(block, LayerBlock)
                env.update(zip(block.writes, block(*(env[name] for name in block.reads)), strict=True))
        return tuple(_sent(gathered(env[name]).to(dtype)) for name, dtype in self._leaves.items())


def _sent(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that torch may detach in place."""
    tensor = tensor.contiguous()
    return tensor.view_as(tensor)
