"""Loop: the device threads run one step after the other; what a failed step has changed is undone."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from costmodels.host.affinity import Stopped
from planner.runtime.errors import StageError
from planner.runtime.inference.recorder import StepRecorder
from planner.runtime.training.device_threads import DeviceContext, DeviceThreads
from planner.runtime.training.means import Outcome
from planner.runtime.training.optimizers import Factory, Optimizers, clip_factor, copies
from planner.runtime.training.step import MicroBatch, StepProgram, StepRun

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
                raise StageError(
                    f"the optimizer on '{context.device.name}' failed: {type(error).__name__}: {error}"
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
