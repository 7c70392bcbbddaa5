"""HybridTrainer: one rank of a network that is trained as a row of `planner choose` says.

::

    trainer = HybridTrainer(config, model, inputs, loss=F.cross_entropy, optimizer=adam)      on every rank
    for batch, target in data:
        trainer.step(batch, target)
    model.load_state_dict(trainer.model_state_dict())

Every rank is given the whole batch, and takes the micro-batches of its replica. The state that it saves has the model's
own names and is whole, so that any trainer goes on from it, under other degrees or under a plan.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from graphs.common.errors import InputError
from graphs.importers.from_torch import imported
from graphs.program.program import Program
from planner.parallelism.closed_form.config import ParallelConfig
from planner.runtime.checkpoint.names import values_of
from planner.runtime.distributed.training.engine import EngineStage, quiet_schedules, runtime_of
from planner.runtime.distributed.transport.backends import own_gpu
from planner.runtime.hybrid.division import full, like, local, part_of
from planner.runtime.hybrid.mesh import PIPELINE, REPLICATE, SHARD, mesh_of, pipelines_of, replica_of
from planner.runtime.hybrid.micro_losses import MicroLosses
from planner.runtime.hybrid.modules import LayerBlock, StageModule
from planner.runtime.hybrid.parallelize import set_sync
from planner.runtime.hybrid.shared_weights import SharedWeights
from planner.runtime.hybrid.stage_cut import StageCut
from planner.runtime.hybrid.unequal import StageRanks, UnequalStage
from planner.runtime.training.any_trainer import check_batches, divide
from planner.runtime.training.optimizers import Factory, Optimizers
from planner.runtime.training.prepare import check_trained
from planner.runtime.training.states import TrainingProgress, join_states, progress_of, state_of
from planner.runtime.training.step import Loss, MicroBatch
from simulator.schedules import SCHEDULES


class HybridTrainer:
    """One rank of a network that is trained by data, tensor and pipeline parallelism; torch.distributed is initialised.

    Attributes:
        config: how devices, batch and layers are divided.
        program: the network, imported in training mode for a micro-batch.
        optimizers: of the parameters of this rank.
    """

    def __init__(
        self,
        config: ParallelConfig,
        model: nn.Module | Program,
        example_inputs: Any = None,
        *,
        loss: Loss,
        optimizer: Factory,
        seed: int = 0,
    ) -> None:
        """Divide the network; all ranks do so together, each with all of its weights.

        Args:
            config: a row of `planner choose`.
            model: the network, left as it is; its Program where it has been imported already.
            example_inputs: of one micro-batch, in any form that `planner.plan` takes.
            loss: takes what the network returns and the target, and returns the mean over its samples.
            optimizer: makes an optimizer from a list of parameters.
            seed: of random operators.

        Raises:
            InputError: if the degrees do not fit the ranks, or the network cannot be divided so.
        """
        if config.shape.expert > 1:
            raise InputError(
                f"the row divides experts among {config.shape.expert} replicas, which this trainer does not do; choose "
                "with --expert 1"
            )
        program = imported(model, example_inputs, training=True)
        check_trained(program)
        self.config, self.program = config, program
        self._device = _device()
        self._ranks = StageRanks(config, dist.get_rank()) if config.degrees else None
        if self._ranks is None:
            cut, self._mesh = StageCut.of(config, program), mesh_of(config.shape, self._device.type)
            self._replica, self._row = replica_of(self._mesh), self._mesh.get_local_rank(PIPELINE)
            self._line: dist.ProcessGroup | None = self._mesh.get_group(PIPELINE)
        else:
            self._mesh, self._line = self._ranks.mesh(self._device.type), None
            self._replica, self._row = 0, self._ranks.stage
            cut = StageCut.of(config, self._ranks.own_program(program))
            self._ranks.check(cut, program)
        mesh = self._mesh
        self._own = range(self._row, len(cut.blocks), config.shape.pipeline)
        self._stages = [cut.stage(number, mesh, self._device) for number in self._own]
        self._held = _by_name(self._stages)
        lines = pipelines_of(mesh) if self._ranks is None else [self._ranks.every]
        self._shared = SharedWeights(program.graph, cut.blocks, lines)
        self._parameters = {
            name: copies[0] for name, copies in self._held.items() if isinstance(copies[0], nn.Parameter)
        }
        trained = {name: tensor for name, tensor in self._parameters.items() if tensor.requires_grad}
        self._counts = {name: update.tensor.detach().clone() for name, update in program.updates.items()}
        self._optimizers = Optimizers(optimizer, _alike(trained))
        self.optimizers = tuple(each for each in self._optimizers.each if each is not None)
        self._progress = TrainingProgress(0, seed, None)
        samples = config.shape.samples // (config.degrees[self._row].data if self._ranks else 1)
        self._losses = MicroLosses(program, loss, samples)
        self._runtime: Any = self._pipeline(cut) if config.shape.pipeline > 1 else None

    def step(self, batch: Any, target: Any = None) -> torch.Tensor:
        """Run one training step on the global batch; return its mean loss. All ranks do so together.

        Raises:
            InputError: if the batch does not fit, or the loss is none.
            StageError: if a stage fails; its cause is the original exception.
        """
        return self.step_through(self._divided(batch, target))

    def step_through(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Run one training step on the micro-batches of all replicas; return their mean loss."""
        loss = self._backward(batches)
        for optimizer in self.optimizers:
            optimizer.step()
        self._shared.keep_equal(self._held)
        self._forget()
        return loss

    def gradients(self, batch: Any, target: Any = None) -> dict[str, torch.Tensor | None]:
        """Return the gradients of a step by the names of all parameters, whole, on every rank; no parameter changes."""
        return self.gradients_through(self._divided(batch, target))

    def gradients_through(self, batches: Sequence[MicroBatch]) -> dict[str, torch.Tensor | None]:
        """Return the gradients of a step, as `gradients` does, for the micro-batches of all replicas."""
        self._backward(batches)
        own = {
            name: None if tensor.grad is None else full(tensor.grad)
            for name, tensor in self._parameters.items()
            if tensor.requires_grad
        }
        self._forget()
        return {name: grad for part in self._gathered(own) for name, grad in part.items()}

    def model_state_dict(self) -> dict[str, Any]:
        """Return the model's ``state_dict()`` as it is now, whole, on every rank."""
        model: dict[str, Any] = self.state_dict()["model"]
        return model

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on, whole, on every rank; see `planner.runtime.training.states`."""
        values = {name: full(copies[0]) for name, copies in self._held.items()} | self._counts
        values |= self._mean_statistics(values)
        state = state_of(self.program, values, self._optimizers, self._progress)
        whole = join_states(self._gathered(pytree.tree_map_only(DTensor, full, state)))
        return whole | {"model": {name: whole["model"][name] for name in self.program.module.state_dict()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, as if there had been no break.

        Raises:
            InputError: if it is of another model, optimizer, seed or version; nothing is changed then.
        """
        progress = progress_of(state, self._progress)
        values = values_of(self.program, state["model"], self._held.keys() | self._counts.keys())
        saved = {**state["optimizer"], "state": self._parts_of(state["optimizer"]["state"])}
        divided = self._optimizers.divided(saved)
        with torch.no_grad():
            for name, value in values.items():  # what no state holds, such as tables of positions, stays
                for tensor in self._held.get(name) or [self._counts[name]]:
                    local(tensor).copy_(part_of(value, tensor))
        for optimizer, own in zip(self._optimizers.each, divided, strict=True):
            if optimizer is not None:
                optimizer.load_state_dict(own)
        self._progress = progress
        self._forget()

    # --- a step ------------------------------------------------------------------------------------------------------

    def _divided(self, batch: Any, target: Any) -> list[MicroBatch]:
        shape = self.config.shape
        return divide(self.program, shape.samples, shape.data * shape.micro_batches, batch, target)

    def _backward(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Run forward and backward of the micro-batches of this replica; gradients are those of all."""
        shape = self.config.shape
        check_batches(batches, shape.data * shape.micro_batches)
        own = batches[self._replica * shape.micro_batches :][: shape.micro_batches]
        own = own if self._ranks is None else [self._ranks.own_part(batch) for batch in own]
        torch.manual_seed(hash((self._progress.seed, self._progress.steps, self._replica, self._row)) % 2**63)
        for stage in self._stages:
            stage.inputs = [{name: tensor.to(self._device) for name, tensor in each.inputs.items()} for each in own]
        last = self.config.of_stage(shape.pipeline - 1)
        n_batches = last.data * shape.micro_batches
        self._losses.begin(self._progress.steps, len(own), n_batches)
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # views, which no operator writes into
            self._run_alone(own) if self._runtime is None else self._run_pipeline(own)
        for name, count in self._counts.items():
            count += self.program.updates[name].increment * shape.data * shape.micro_batches
        self._progress.steps += 1
        self._shared.add_up(self._held)
        for tensor in self._parameters.values():
            if isinstance(tensor, DTensor) and isinstance(tensor.grad, DTensor):
                tensor.grad = tensor.grad.redistribute(placements=tensor.placements)
        try:
            return self._losses.mean(self._device, last.devices, shape.micro_batches, n_batches)
        except InputError:
            self._forget()
            raise

    def _run_alone(self, batches: Sequence[MicroBatch]) -> None:
        (stage,) = self._stages
        for number, batch in enumerate(batches):
            set_sync(self._stages, number == len(batches) - 1, self.config.of_stage(0).zero)
            loss = self._loss_of(stage(micro_batch=number), batch.target)
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here

    def _run_pipeline(self, batches: Sequence[MicroBatch]) -> None:
        for stage in self._engines:
            stage.times.clear()
            stage.has_backward = True
            stage.clear_runtime_states()
        numbers = [{"micro_batch": number} for number in range(len(batches))]
        with quiet_schedules():
            self._runtime._step_microbatches(
                [()] * len(batches), numbers, [batch.target for batch in batches], return_outputs=False
            )

    def _loss_of(self, outputs: tuple[torch.Tensor, ...], target: Any) -> torch.Tensor:
        """Return the part that a micro-batch has in the mean of its replica."""
        target = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(self._device), target)
        loss = self._losses.add(outputs, target, self._stages[-1].counting)
        return loss / self.config.shape.micro_batches

    def _pipeline(self, cut: StageCut) -> Any:
        """torch's runtime for the stages of this rank."""
        shape = self.config.shape
        make: Callable[..., EngineStage] = partial(EngineStage, group=self._line)
        if self._ranks is not None:
            make = partial(UnequalStage, ranks=self._ranks)
        self._engines = [
            make(
                stage,
                str(self._device),
                number,
                len(cut.blocks),
                self._device,
                input_args=cut.hollow(number),
                output_args=cut.hollow(number + 1),
                dw_builder=lambda: lambda: None,  # the backward pass is complete after its first part
            )
            for number, stage in zip(self._own, self._stages, strict=True)
        ]
        schedule = SCHEDULES[shape.schedule](shape.pipeline, shape.micro_batches, shape.chunks)
        return runtime_of(self._engines, schedule, self._loss_of)

    def _forget(self) -> None:
        for tensor in self._parameters.values():
            tensor.grad = None

    # --- states ------------------------------------------------------------------------------------------------------

    def _gathered(self, own: Any) -> list[Any]:
        """Return what each rank of the pipeline passes."""
        parts: list[Any] = [None] * dist.get_world_size(self._line)
        dist.all_gather_object(parts, own, group=self._line)
        return parts

    def _mean_statistics(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Running statistics, as the mean over the replicas, each of which saw other samples."""
        means, data = {}, self.config.of_stage(self._row).data
        for name in self.program.statistics & values.keys():
            total = values[name].detach().clone()
            for axis in (REPLICATE, SHARD):
                dist.all_reduce(total, group=self._mesh.get_group(axis))
            means[name] = total / data if total.is_floating_point() else values[name]
        return means

    def _parts_of(self, states: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the optimizer's states of this rank's parameters, divided as these are."""
        return {
            name: {
                key: like(value, tensor) if isinstance(value, torch.Tensor) and value.shape == tensor.shape else value
                for key, value in states[name].items()
            }
            for name, tensor in self._parameters.items()
            if name in states
        }


def _device() -> torch.device:
    """Return the GPU of this rank where the ranks talk by NCCL, else the CPU."""
    if "nccl" not in str(dist.get_backend()):
        return torch.device("cpu")
    gpu = torch.device("cuda", own_gpu() or 0)
    torch.cuda.set_device(gpu)
    return gpu


def _by_name(stages: Sequence[StageModule]) -> dict[str, list[torch.Tensor]]:
    """Return the copies of each parameter and buffer of this rank; a weight may be in several stages."""
    found: dict[str, list[torch.Tensor]] = {}
    for stage in stages:
        own: dict[str, torch.Tensor] = dict(stage.constants)
        for block in stage.blocks:
            assert isinstance(block, LayerBlock)
            own |= {name: block.tensor(name) for name in block.path_of}
        for name, tensor in own.items():
            found.setdefault(name, []).append(tensor)
    return found


def _alike(parameters: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Return the parameters in groups that one optimizer can take: DTensors of one mesh, or plain tensors."""
    groups: dict[Any, dict[str, torch.Tensor]] = {}
    for name, tensor in parameters.items():
        groups.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, {})[name] = tensor
    return list(groups.values())
