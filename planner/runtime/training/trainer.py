"""Trainer: a planned model that is trained, step by step."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from costmodels.host.affinity import Stopped
from graphs.program.pieces import Pieces
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.checkpoint.names import model_state, values_of, whole_model_state
from planner.runtime.closing import Ending
from planner.runtime.inference.recorder import StepRecorder
from planner.runtime.matching import rewritten_for
from planner.runtime.stages.failures import stage_failure
from planner.runtime.training.any_trainer import AnyTrainer, check_batches
from planner.runtime.training.device_threads import DeviceContext, DeviceThreads
from planner.runtime.training.means import Outcome
from planner.runtime.training.optimizers import Factory, Optimizers, clip_factor, copies
from planner.runtime.training.options import TrainerOptions, check_training
from planner.runtime.training.prepare import check_alone, prepare, stage_layout
from planner.runtime.training.states import TrainingProgress, join_states, progress_of, state_of
from planner.runtime.training.step import Loss, MicroBatch, StepProgram, StepRun
from simulator.timeline import Timeline

CLOSED = "the trainer is closed; make a new one"
CLOSED_MEANWHILE = "the trainer was closed while a step was on its way"
TORN = (
    "the last step ended while it changed parameters, so some may have changed and others not; load_state_dict() a "
    "saved state, or make a new trainer"
)


class Loop:
    """The threads of a trainer with all that they hold. One thread may use it at a time; any thread may call `stop`."""

    def __init__(self, program: StepProgram, optimizer: Factory) -> None:
        self.held = tuple(program.state.owned(row) for row in range(len(program.devices)))  # by device and name
        trained = [{name: held[name] for name in program.trained if name in held} for held in self.held]
        self.optimizers = Optimizers(optimizer, trained)
        self.recorder = StepRecorder([device.name for device in program.devices], program.schedule)
        self._program = program
        self._step: StepRun | None = None
        self._closed = False
        self._torn = False  # whether an update was left half done
        self._threads = DeviceThreads(program.devices)

    def run(self, batches: Sequence[MicroBatch], number: int, share: int, scale: float = 1.0) -> Outcome:
        """Run forward and backward of all micro-batches; gradients are added to those that are there. See `StepRun`.

        Raises:
            InputError: if the mean of the losses is not that of the batch.
            StageError: if a stage fails. Statistics are as before then, and gradients are gone.
            RuntimeError: if it is closed, before or meanwhile, or something was left half done.
        """
        if self._torn or self._closed:
            raise RuntimeError(TORN if self._torn else CLOSED)
        step = self._step = StepRun(self._program, batches, number, share, scale, self.recorder.on)
        if self._closed:  # just now: the thread that closes waits for this step
            step.stop()
        try:
            times = self._threads.each(step.run, step.stop)
            self.recorder.add_step(times)
            return step.outcome()
        except BaseException as error:
            self._undo(step)
            if isinstance(error, Stopped):
                raise RuntimeError(CLOSED_MEANWHILE) from None
            raise
        finally:
            self._step = None

    def update(self, clip_norm: float | None, scale: float | None = None, factor: float = 1.0) -> bool:
        """Let the optimizers take their step, and drop the gradients; return False if a scaled gradient is not finite.

        The gradients are multiplied by ``factor``, divided by ``scale``, if any, and clipped to ``clip_norm``, the
        largest norm of all together, if any. Raise StageError if an optimizer fails; only `fill` helps then.
        """
        finite, clipped = True, None
        self._program.weights.fresh()
        try:
            if factor != 1.0:
                self._threads.each(lambda context: self.optimizers.multiply(context, factor))
            if scale is not None:
                finite = all(self._threads.each(lambda context: self.optimizers.unscale(context, scale)))
            if finite and clip_norm is not None:
                clipped = clip_factor(self._threads.each(self.optimizers.norms), self._program.trained, clip_norm)
        except BaseException:
            self._threads.each(self.optimizers.forget)
            raise

        def take_step(context: DeviceContext) -> tuple[float, float]:
            start_s = time.perf_counter()
            try:
                (self.optimizers.step(context, clipped) if finite else self.optimizers.forget(context))
            except Exception as error:
                raise stage_failure(
                    f"the optimizer on '{context.device.name}' failed", context.device, error
                ) from error
            return start_s, time.perf_counter()

        self._torn = True
        try:
            self.recorder.add_update(self._threads.each(take_step))
        except KeyboardInterrupt:  # the device threads have ended their work nevertheless
            self._torn = False
            raise
        self._torn = False
        return finite

    def fill(self, values: Mapping[str, torch.Tensor], states: Sequence[dict[str, Any]]) -> None:
        """Put values and optimizers' states (see `Optimizers.divided`) into all devices; drop gradients."""

        def put(context: DeviceContext) -> None:
            with torch.no_grad():
                for name, tensor in self.held[context.number].items():
                    if name in values:
                        tensor.copy_(values[name])
            self.optimizers.load(context, states[context.number])
            self.optimizers.forget(context)

        if self._closed:
            raise RuntimeError(CLOSED)
        self._torn = True
        self._program.weights.fresh()
        self._threads.each(put)
        self._torn = False

    def values(self) -> dict[str, torch.Tensor]:
        """Return the parameters and buffers, by name; raise RuntimeError if they were left half changed."""
        if self._torn:
            raise RuntimeError(TORN)
        return {name: tensor for held in self.held for name, tensor in held.items()}

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """Copies of the gradients that are there, by the names of the parameters."""
        values = self.values()
        return copies({name: values[name].grad for name in self._program.trained})

    def stop(self) -> None:
        """Fail the step that is on its way, and all that follow."""
        self._closed = True
        if (step := self._step) is not None:
            step.stop()

    def close(self) -> None:
        """End the threads. May be called again."""
        self._threads.close()

    def _undo(self, step: StepRun) -> None:
        """Undo what a step that failed has changed."""

        def undo(context: DeviceContext) -> None:
            step.undo(context)
            self.optimizers.forget(context)

        self._torn = True
        self._program.weights.fresh()
        self._threads.each(undo)
        self._torn = False


class Trainer(AnyTrainer):
    """A model that is trained by threads of this process. See `planner.train`.

    A step that fails changes nothing, and the next one may follow; gradients that waited for the optimizer (see
    ``TrainerOptions.accumulate``) are dropped with it.
    """

    def __init__(
        self, plan: Plan, program: Program, loss: Loss, optimizer: Factory, trainer_options: TrainerOptions
    ) -> None:
        program = rewritten_for(plan, program)
        check_training(plan, program, loss, optimizer, trainer_options)
        check_alone(plan)
        self.plan = plan
        self.program = program
        self.trainer_options = trainer_options.under(plan.workload)
        self._counts = {name: update.tensor.detach().clone() for name, update in program.updates.items()}
        self._counted = 0.0  # what the micro-batches count for whose gradients wait for the optimizer
        self._busy = threading.Lock()
        prepared = prepare(program, stage_layout(plan), loss, self.trainer_options)
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
        """Run one training step; return its gradients, by the names of the parameters in the network."""
        with self._in_turn():
            _, factor = self._go_through(batches)
            self._progress.waiting = 0
            gradients = Pieces.of(self.program).whole(self._loop.gradients())
            self._update(factor)
            return gradients

    def change_options(self, **options: Any) -> None:
        """Change options of all optimizers from the next step on, such as ``lr``."""
        with self._in_turn():
            self._loop.optimizers.change(options)

    def model_state_dict(self) -> dict[str, Any]:
        """Return the model's ``state_dict()`` as it is now, for ``load_state_dict`` of the module."""
        with self._in_turn():
            return whole_model_state(self.program, [model_state(self.program, self._loop.values() | self._counts)])

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on, with this plan or another one of the same model, for `torch.save`."""
        with self._in_turn():
            values = self._loop.values() | self._counts
            return join_states([state_of(self.program, values, self._loop.optimizers, self._progress)])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, as if there had been no break."""
        with self._in_turn():
            progress = progress_of(state, self._progress)
            values = values_of(self.program, state["model"], {*self.program.state, *self._counts})
            kept = Pieces.of(self.program).optimizer_of_parts(state["optimizer"])
            self._loop.fill(values, self._loop.optimizers.divided(kept))
            for name, count in self._counts.items():
                count.copy_(values[name])
            self._progress = progress

    def record(self) -> None:
        """Measure the steps that begin from here on; `timeline` returns what was seen."""
        self._loop.recorder.start()

    def timeline(self) -> Timeline:
        """Return what ran on which device since `record`, with the labels of the schedule, and stop recording."""
        return replace(self._loop.recorder.timeline(), devices=self.plan.table.devices)

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
