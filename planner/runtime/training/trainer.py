"""Trainer: a planned model that is trained, step by step."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.checkpoint.names import model_state, values_of
from planner.runtime.closing import Ending
from planner.runtime.matching import check_same, check_types
from planner.runtime.training.any_trainer import AnyTrainer, check_batches
from planner.runtime.training.loop import Loop
from planner.runtime.training.optimizers import Factory
from planner.runtime.training.options import TrainerOptions, check_tools
from planner.runtime.training.prepare import check_alone, layout_of, prepare
from planner.runtime.training.states import TrainingProgress, progress_of, state_of
from planner.runtime.training.step import Loss, MicroBatch
from simulator.timeline import Timeline


class Trainer(AnyTrainer):
    """A model that is trained by threads of this process. See `planner.train`.

    A step that fails changes nothing, and the next one may follow; gradients that waited for the optimizer (see
    ``TrainerOptions.accumulate``) are dropped with it.
    """

    def __init__(
        self, plan: Plan, program: Program, loss: Loss, optimizer: Factory, trainer_options: TrainerOptions
    ) -> None:
        check_types(plan, program)
        check_tools(loss, optimizer, trainer_options)
        check_same(plan.graph, program.graph)
        check_alone(plan)
        self.plan = plan
        self.program = program
        self.trainer_options = trainer_options.under(plan.workload)
        self._counts = {name: update.tensor.detach().clone() for name, update in program.updates.items()}
        self._counted = 0.0  # what the micro-batches count for whose gradients wait for the optimizer
        self._busy = threading.Lock()
        prepared = prepare(program, layout_of(plan), loss, self.trainer_options)
        trained = {name: program.state[name] for name in prepared.trained}
        self._progress = TrainingProgress.of(self.trainer_options, trained)
        self._loop = Loop(prepared, optimizer)
        self.optimizers = tuple(each for each in self._loop.optimizers.each if each is not None)
        self._ending = Ending(self, "trainer", partial(_end, self._loop, self._busy))

    def step_through(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Take a step with a batch that is divided already: as many micro-batches as the plan has."""
        with self._in_turn():
            loss, factor = self._go_through(batches)
            if not self._progress.waiting:
                self._update(factor)
            return loss

    def gradients(self, batches: Sequence[MicroBatch]) -> dict[str, torch.Tensor | None]:
        """Run one training step; return its gradients, by the names of the parameters in the program."""
        with self._in_turn():
            _, factor = self._go_through(batches)
            self._progress.waiting = 0
            gradients = self._loop.gradients()
            self._update(factor)
            return gradients

    def change_options(self, **options: Any) -> None:
        """Change options of all optimizers from the next step on, such as ``lr``."""
        with self._in_turn():
            self._loop.optimizers.change(options)

    def model_state_dict(self) -> dict[str, Any]:
        """Return the model's ``state_dict()`` as it is now, for ``load_state_dict`` of the module."""
        with self._in_turn():
            return model_state(self.program, self._loop.values() | self._counts)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on, with this plan or another one of the same model, for `torch.save`."""
        with self._in_turn():
            return state_of(self.program, self._loop.values() | self._counts, self._loop.optimizers, self._progress)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, as if there had been no break."""
        with self._in_turn():
            progress = progress_of(state, self._progress)
            values = values_of(self.program, state["model"], {*self.program.state, *self._counts})
            self._loop.fill(values, self._loop.optimizers.divided(state["optimizer"]))
            for name, count in self._counts.items():
                count.copy_(values[name])
            self._progress = progress

    def record(self) -> None:
        """Measure the steps that begin from here on; `timeline` returns what was seen."""
        self._loop.recorder.start()

    def timeline(self) -> Timeline:
        """Return what ran on which device since `record`, with the labels of the schedule, and stop recording."""
        return replace(self._loop.recorder.timeline(), devices=self.plan.table.devices)

    def close(self) -> None:
        """End the threads; a step that is on its way fails. May be called again.

        They also end when nobody refers to the trainer any more.
        """
        self._ending.now()

    def _go_through(self, batches: Sequence[MicroBatch]) -> tuple[torch.Tensor, float]:
        """Run forward and backward only; return the mean loss, and the factor for the gradients."""
        accumulate, count = self.trainer_options.accumulate, self.plan.workload.micro_batches
        check_batches(batches, count)
        progress = self._progress
        waiting, progress.waiting = progress.waiting, 0
        outcome = self._loop.run(batches, progress.steps, count * accumulate, progress.factor)
        progress.steps += 1
        for name, update in self.program.updates.items():
            self._counts[name] += update.increment * count
        progress.waiting = (waiting + 1) % accumulate
        self._counted = outcome.total + (self._counted if waiting else 0.0)
        return outcome.loss, replace(outcome, total=self._counted).factor(count * accumulate)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Let one caller in at a time, in the process that has the threads."""
        self._ending.check()
        with self._busy:
            yield

    def _update(self, factor: float) -> None:
        """Let the optimizers take their step with the gradients times a factor, unless a scaled one has overflowed."""
        scale = self._progress.scale
        value = None if scale is None else scale.value
        finite = self._loop.update(self.trainer_options.clip_norm, value, factor)
        self._progress.scale = None if scale is None else scale.after(finite)


def _end(loop: Loop, busy: threading.Lock) -> None:
    """Fail the step that is on its way, and end the threads."""
    loop.stop()
    with busy:
        loop.close()
