"""Trainer: a planned model that is trained, step by step."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import nn

from graphs.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.importers.program import Program
from planner.plans import Plan
from planner.runtime.closing import Closing
from planner.runtime.runner import check_same, zeros_of
from planner.runtime.training.batches import divide
from planner.runtime.training.loop import Loop
from planner.runtime.training.names import model_state, values_of
from planner.runtime.training.optimizers import Factory
from planner.runtime.training.prepare import check_alone, layout_of, prepare
from planner.runtime.training.recipe import Recipe
from planner.runtime.training.scaling import Scale, check_wide
from planner.runtime.training.states import Progress, check_saved, progress_of, state_of
from planner.runtime.training.step import Loss, MicroBatch
from simulator.timeline import Timeline

if TYPE_CHECKING:
    from planner.runtime.processes.training_front import HostedTrainer


@overload
def train(
    plan: Plan,
    model: nn.Module | Program,
    example_inputs: tuple[Any, ...] | None = ...,
    *,
    loss: Loss | None,
    optimizer: Factory,
    recipe: Recipe | None = ...,
    processes: Literal[False] = ...,
) -> "Trainer": ...


@overload
def train(
    plan: Plan,
    model: nn.Module | Program,
    example_inputs: tuple[Any, ...] | None = ...,
    *,
    loss: Loss | None,
    optimizer: Factory,
    recipe: Recipe | None = ...,
    processes: bool,
) -> "Trainer | HostedTrainer": ...


def train(
    plan: Plan,
    model: nn.Module | Program,
    example_inputs: tuple[Any, ...] | None = None,
    *,
    loss: Loss | None,
    optimizer: Factory,
    recipe: Recipe | None = None,
    processes: bool = False,
) -> "Trainer | HostedTrainer":
    """Bring a model onto the devices of a plan, to train it there.

    ::

        adam = lambda parameters: torch.optim.Adam(parameters, lr=1e-3)
        with planner.train(plan, model, loss=F.cross_entropy, optimizer=adam) as trainer:
            for batch, target in data:
                loss = trainer.step(batch, target)
        model.load_state_dict(trainer.model_state_dict())

    Args:
        plan: with the goal "training", from `planner.plan` or `planner.load_plan`.
        model: the model that the plan was made for, or its Program where it has been imported already. It is left as it
            is: the devices train copies of its parameters.
        example_inputs: its positional arguments for one micro-batch; zeros of the planned shapes if left out.
        loss: takes what the model returns and the target, and returns the mean over its samples; None if the model
            returns its loss itself. It runs on the device of the last stage.
        optimizer: makes an optimizer from a list of parameters; called once for each device.
        recipe: how to go about it.
        processes: give each device a process of its own on this host, rather than a thread of this process. The loss
            and the optimizer must be functions that these can import; where they stand in the program that is started,
            it is read once more (``if __name__ == "__main__"``).

    Returns:
        A trainer; use it in a ``with`` statement, or close it.

    Raises:
        InputError: if the plan is for another model or goal, its schedule cannot run here, a device is not on this
            host, or the loss or the optimizer cannot be handed to a process.
        RankError: if a process does not start.
    """
    if isinstance(model, nn.Module):
        inputs = example_inputs or zeros_of(plan.graph)
        model = program_from_module(model, inputs, name=plan.graph.name, training=True)
    loss, recipe = loss or returned_loss, recipe or Recipe()
    if not processes:
        return Trainer(plan, model, loss, optimizer, recipe)
    from planner.runtime.processes.parcels import Tools
    from planner.runtime.processes.training_front import HostedTrainer

    return HostedTrainer(plan, model, Tools(loss, optimizer, recipe))


def returned_loss(result: Any, target: Any) -> torch.Tensor:
    """Of a model that returns its loss."""
    if target is not None:
        raise InputError("there is a target, but no loss that takes it; pass loss=, or give the model its target")
    loss: torch.Tensor = result
    return loss


class Trainer(Closing):
    """A model that is trained where its plan says. See `train`.

    Attributes:
        plan: where and in which order.
        program: the model, imported.
        recipe: how.
    """

    def __init__(self, plan: Plan, program: Program, loss: Loss, optimizer: Factory, recipe: Recipe) -> None:
        check_same(plan.graph, program.graph)
        check_alone(plan)
        self.plan = plan
        self.program = program
        self.recipe = recipe.under(plan.workload)
        self._counts = {name: update.tensor.detach().clone() for name, update in program.updates.items()}
        self._steps = 0  # that have succeeded
        self._waiting = 0  # of these, whose gradients wait for the optimizer
        self._scale = Scale.of(recipe.autocast, recipe.scaling)
        self._busy = threading.Lock()
        prepared = prepare(program, layout_of(plan), loss, self.recipe)
        if self._scale is not None:
            check_wide({name: program.state[name] for name in prepared.trained})
        self._loop = Loop(prepared, optimizer)

    def step(self, batch: Any, target: Any = None) -> torch.Tensor:
        """One training step: forward and backward of every micro-batch, and the optimizers.

        A step that fails changes nothing, and the next one may follow; gradients that waited for the optimizer (see
        ``Recipe.accumulate``) are dropped with it.

        Args:
            batch: as many samples as the plan's micro-batches have together: a tensor, a tuple of positional arguments,
                or a mapping of keyword arguments.
            target: for the loss; its tensors have as many samples.

        Returns:
            The mean loss, without a gradient.

        Raises:
            InputError: if the batch does not fit the plan, or the loss is none.
            StageError: if a stage fails; its cause is the original exception.
        """
        workload = self.plan.workload
        return self.step_through(divide(self.program, workload.batch, workload.micro_batches, batch, target))

    def step_through(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """The same for a batch that is divided already: as many micro-batches as the plan has."""
        accumulate, count = self.recipe.accumulate, self.plan.workload.micro_batches
        with self._busy:
            waiting, self._waiting = self._waiting, 0
            scale = 1.0 if self._scale is None else self._scale.value
            loss = self._loop.run(batches, self._steps, count * accumulate, scale)
            self._steps += 1
            for name, update in self.program.updates.items():
                self._counts[name] += update.increment * count
            self._waiting = (waiting + 1) % accumulate
            if not self._waiting:
                self._update()
            return loss

    def change_options(self, **options: Any) -> None:
        """Change options of all optimizers from the next step on, such as ``lr``.

        Raises:
            InputError: if they have none of that name; nothing is changed then.
        """
        with self._busy:
            self._loop.optimizers.change(options)

    @property
    def optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """Those of the devices that train something."""
        return tuple(optimizer for optimizer in self._loop.optimizers.each if optimizer is not None)

    def model_state_dict(self) -> dict[str, Any]:
        """The model's ``state_dict()`` as it is now, for `torch.nn.Module.load_state_dict`."""
        with self._busy:
            return model_state(self.program, self._loop.values() | self._counts)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on, with this plan or another one of the same model; for `torch.save`.

        Raises:
            InputError: if gradients wait for the optimizer.
        """
        with self._busy:
            check_saved(self._waiting, self.recipe.accumulate)
            return state_of(self.program, self._loop.values() | self._counts, self._loop.optimizers, self._progress())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, as if there had been no break.

        Args:
            state: of any trainer of this model, on threads or in processes; see `planner.runtime.training.states`.

        Raises:
            InputError: if it is of another model, optimizer, seed or version, or not whole.
        """
        with self._busy:
            progress = progress_of(state, self._progress())
            values = values_of(self.program, state["model"], {*self.program.state, *self._counts})
            self._loop.fill(values, self._loop.optimizers.divided(state["optimizer"]))
            for name, count in self._counts.items():
                count.copy_(values[name])
            self._steps, self._waiting, self._scale = progress.steps, 0, progress.scale

    def record(self) -> None:
        """Measure the steps that begin from here on; `timeline` returns what was seen."""
        self._loop.recorder.start()

    def timeline(self) -> Timeline:
        """What ran on which device since `record`, in the words of the schedule; recording ends."""
        return replace(self._loop.recorder.timeline(), devices=self.plan.table.devices)

    def close(self) -> None:
        """End the threads; a step that is on its way fails. May be called again."""
        self._loop.stop()
        with self._busy:
            self._loop.close()

    def _update(self) -> None:
        """Let the optimizers take their step, unless a scaled gradient has overflowed."""
        if self._scale is None:
            self._loop.update(self.recipe.clip_norm)
        else:
            self._scale = self._scale.after(self._loop.update(self.recipe.clip_norm, self._scale.value))

    def _progress(self) -> Progress:
        return Progress(self._steps, self.recipe.seed, self._scale)
