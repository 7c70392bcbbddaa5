"""Training across processes: a plan's stages and schedule, on torch.distributed.pipelining as the engine.

Every rank has one device and runs the same program: rank 0 has the device of the first stage, and so on. The parts that
the ranks save are one state (`planner.runtime.training.states.join_states`), from which any trainer goes on. A plan for
replicas needs its ranks once for each replica (`process_groups`); each replica takes its part of the batch.

As long as it is open, the ranks watch each other (`planner.runtime.distributed.transport.failure_detector`). When one
is stopped, ends, is cut off, or leaves the block by an error, a RankError on all others names it within seconds, also
where the block waits in torch's own functions; its cause is the error of that rank, if known. torch's process groups
cannot be used from then on, and all ranks are to be started again.

Source of the engine: https://docs.pytorch.org/docs/stable/distributed.pipelining.html. The order of every device is the
plan's own schedule, given to torch as a file.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from costmodels.host.affinity import bound
from graphs.common import checks
from graphs.common.errors import InputError
from graphs.program.pieces import Pieces
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.checkpoint.names import model_state, values_of
from planner.runtime.distributed.training.part import RankStages
from planner.runtime.distributed.training.process_groups import ProcessGroups
from planner.runtime.distributed.transport.liveness import FAR_SILENT_S
from planner.runtime.errors import RankError
from planner.runtime.inference.recorder import StepRecorder
from planner.runtime.matching import rewritten_for
from planner.runtime.training.any_trainer import AnyTrainer, check_batches
from planner.runtime.training.device_threads import DeviceContext
from planner.runtime.training.means import UNEVEN, Outcome
from planner.runtime.training.optimizers import Factory, Optimizers, clip_factor, copies
from planner.runtime.training.options import TrainerOptions, check_training
from planner.runtime.training.prepare import stage_layout
from planner.runtime.training.states import TrainingProgress, join_states, progress_of, state_of
from planner.runtime.training.step import Loss, MicroBatch
from simulator.timeline import Timeline

NONE = Outcome(torch.zeros(()), 0.0)
"""No micro-batch."""


class PipelineTrainer(AnyTrainer):
    """One rank of a model that is trained where its plan says. torch.distributed has been initialised.

    It needs those of the program's weights that its device holds.

    Attributes:
        device: of this rank.
        broken: whether a step has failed, after which the ranks no longer fit together.
    """

    def __init__(
        self,
        plan: Plan,
        program: Program,
        loss: Loss,
        optimizer: Factory,
        trainer_options: TrainerOptions | None = None,
        silence_s: float = FAR_SILENT_S,
    ) -> None:
        """Compile the stages of this rank, and begin to watch the other ranks; all ranks do so together.

        Args are those of `planner.train`. The program may be that of `planner.runtime.checkpoint.shards.read_shard`. A
        rank of another host is given up after ``silence_s`` without a heartbeat. Raise InputError if the plan is for
        another model or goal, there are more or fewer ranks than devices, this host does not have the device, or
        another rank has come with another plan.
        """
        trainer_options = TrainerOptions() if trainer_options is None else trainer_options
        program = rewritten_for(plan, program)
        check_training(plan, program, loss, optimizer, trainer_options)
        checks.seconds(silence_s, "the time without a heartbeat")
        layout = stage_layout(plan)
        self.plan, self.program = plan, program
        self.trainer_options = trainer_options = trainer_options.under(plan.workload)
        with ExitStack() as undo:
            self._groups = groups = undo.enter_context(ProcessGroups.of(plan, layout, silence_s))
            self._part = part = RankStages(plan, program, groups.row, loss, trainer_options, groups.pipeline)
            self._progress = TrainingProgress.of(trainer_options, part.own)
            self._optimizers = Optimizers(optimizer, [part.own])
            self.optimizers = tuple(each for each in self._optimizers.each if each is not None)
            stream = undo.enter_context(bound(part.device))
            self._undo = undo.pop_all()
        self.device = part.device
        self._seat = DeviceContext(0, part.device, part.torch_device, stream)
        self._recorder = StepRecorder([device.name for device in layout.devices], layout.schedule)
        self._ahead_s = 0.0  # by how much the clock of the first rank is ahead of the own one
        self._counted, self._n_counted = NONE, 0  # micro-batches whose gradients wait: their weights and number
        self.broken = False

    def step_through(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Take a step with a batch that is divided already: the micro-batches of all replicas."""
        loss = self._go_through(batches)
        self._progress.waiting = (self._progress.waiting + 1) % self.trainer_options.accumulate
        if not self._progress.waiting:
            self._update()
        return loss

    def _go_through(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Run forward and backward only; gradients are added to those that are there."""
        if self.broken:
            raise RankError("a step has failed, and the ranks no longer fit together; start them again")
        check_batches(batches, self.plan.workload.micro_batches * self._groups.n_replicas)
        share = len(batches) * self.trainer_options.accumulate
        first = self._groups.replica * self.plan.workload.micro_batches
        batches = batches[first : first + self.plan.workload.micro_batches]
        progress = self._progress
        self.broken = True
        with self._groups.detector.heeding():
            outcome = self._part.run(batches, progress.steps, first, share, progress.factor, self._recorder.on)
        mean = self._mean(outcome, share // self.trainer_options.accumulate)
        self.broken = False
        progress.steps += 1
        if self._recorder.on:
            self._keep_times()
        return mean

    def _mean(self, outcome: Outcome, n_batches: int) -> torch.Tensor:
        """Return the loss of all replicas, and keep what their micro-batches count for.

        Raise InputError if the means of replicas count different numbers of targets.
        """
        mine = [float(outcome.loss), outcome.total, outcome.unit, self._part.weights.mark]
        torch_device, last = self._part.torch_device, self._part.layout.schedule.device[-1]
        loss, total, unit, mark = self._groups.told_by(last, mine, self._progress.steps, torch_device)
        sums = torch.stack([torch.where(total > 0, loss * total, 0.0), total, mark, mark.square()]).to(torch_device)
        self._groups.add_up([sums])
        if sums[2].square() != self._groups.n_replicas * sums[3]:
            raise InputError(UNEVEN.format("replica by replica"))
        self._counted = Outcome(loss, self._counted.total + sums[1].item(), unit.item())
        self._n_counted += n_batches
        return loss if self._groups.n_replicas == 1 else (sums[0] / sums[1]).cpu()

    def _update(self, keeps: bool = False) -> dict[str, torch.Tensor | None]:
        """Add up the gradients of all replicas, let the optimizers of all ranks take a step, and drop the gradients.

        With a scale of the loss, none takes a step if a gradient of any rank has overflowed. Return the
        summed gradients before that, if they are to be kept.
        """
        start_s, finite = time.perf_counter(), True
        factor = self._counted.factor(self._n_counted)
        if factor != 1.0:
            self._optimizers.multiply(self._seat, factor)
        self._counted, self._n_counted = NONE, 0
        self._part.weights.fresh()
        gradients = {name: parameter.grad for name, parameter in self._optimizers.owned[0].items()}
        self._groups.add_up(grad for grad in gradients.values() if grad is not None)
        gradients = copies(gradients) if keeps else {}
        if (scale := self._progress.scale) is not None:
            finite = all(self._groups.gathered(self._optimizers.unscale(self._seat, scale.value)))
            self._progress.scale = scale.after(finite)
        if finite:
            clipped = None
            if (largest := self.trainer_options.clip_norm) is not None:
                norms = self._groups.gathered(self._optimizers.norms(self._seat))
                clipped = clip_factor(norms, self._part.trained, largest)
            self._optimizers.step(self._seat, clipped)
        else:
            self._optimizers.forget(self._seat)
        if self._recorder.on:
            end_s = time.perf_counter()
            self._recorder.add_update(self._groups.gathered((start_s + self._ahead_s, end_s + self._ahead_s)))
        return gradients

    def gradients(self, batches: Sequence[MicroBatch]) -> dict[str, torch.Tensor | None]:
        """Run one training step; return the gradients of the parameters that this rank trains."""
        self._go_through(batches)
        self._progress.waiting = 0
        return self._update(keeps=True)

    def change_options(self, **options: Any) -> None:
        """Change options of the optimizer from the next step on; all ranks do so together."""
        self._optimizers.change(options)

    def model_state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the model's ``state_dict()``; all ranks' together are the whole.

        Parts of a parameter that a split network divides have names of their own, which `whole_state_dict` resolves.
        """
        return model_state(self.program, self._part.state)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of all that is needed to go on, for `torch.save`; see `training.states`."""
        return state_of(self.program, self._part.state, self._optimizers, self._progress)

    def whole_state_dict(self) -> dict[str, Any] | None:
        """Return the parts of all ranks in one, on rank 0; None on the others. All ranks ask for it together."""
        parts = self._groups.at_first(self.state_dict())
        return None if parts is None else join_states(parts)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; all ranks do so together, and each reads its part.

        If it does not fit, or lacks something of a rank's, all ranks raise InputError, and nothing is changed.
        """
        tensors = self._part.state
        trouble = ""
        try:
            progress = progress_of(state, self._progress)
            values = values_of(self.program, state["model"], tensors)
            kept = Pieces.of(self.program).optimizer_of_parts(state["optimizer"])
            (optimizer,) = self._optimizers.divided(kept)
        except InputError as error:
            trouble = str(error)
        if trouble := next(filter(None, self._groups.gathered(trouble)), ""):
            raise InputError(trouble)
        with torch.no_grad():
            for name, value in values.items():
                tensors[name].copy_(value)
        self._optimizers.load(self._seat, optimizer)
        self._optimizers.forget(self._seat)
        self._progress = progress
        self._counted, self._n_counted = NONE, 0

    def record(self) -> None:
        """Measure the steps that begin from here on; all ranks do this together, as everything else."""
        self._ahead_s = self._groups.ahead_s()  # anew: clocks drift
        self._recorder.start()

    def timeline(self) -> Timeline:
        """Return what ran on which device and went between them since `record`, by the clock of the first rank."""
        return replace(self._recorder.timeline(), devices=self.plan.table.devices)

    def heeding(self) -> AbstractContextManager[None]:
        """Watch a block in which a program waits for other ranks: it ends by a RankError when one fails or is gone."""
        return self._groups.detector.heeding()

    def close(self) -> None:
        """Release the device, and stop watching the other ranks. May be called again."""
        self._undo.close()

    def __exit__(self, *error: Any) -> None:
        self._undo.__exit__(*error)  # an error is reported to the other ranks

    def _keep_times(self) -> None:
        """Keep the times of the last step, on all ranks."""
        (actions, message_ends), ahead_s = self._part.times(), self._ahead_s
        times = [(action, start_s + ahead_s, end_s + ahead_s) for action, start_s, end_s in actions]
        message_ends = [end._replace(at_s=end.at_s + ahead_s) for end in message_ends]
        rows = self._groups.gathered((times, message_ends))
        self._recorder.add_step([row for row, _ in rows], chain.from_iterable(ends for _, ends in rows))
