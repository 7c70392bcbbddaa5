"""Hosted trainer: a training plan in processes of this host, one for each device, which obey this process.

They are started like those of a `Runner` (see `launcher`), each with its shard.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from graphs.common import checks
from graphs.common.errors import InputError
from graphs.program.pieces import Pieces
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.checkpoint.names import whole_model_state
from planner.runtime.closing import Ending
from planner.runtime.distributed.inference.launcher import FOLDER, LocalLauncher
from planner.runtime.distributed.training.worker import (
    BEGIN,
    GRADIENTS,
    SHARED_BUFFER,
    STEP,
    RankSetup,
    SharedBuffer,
    answer_from_text,
    answer_key,
    file_at,
    key_of,
    payload_file,
    read_back,
    write_tools,
)
from planner.runtime.distributed.transport.checksums import DamagedMessage
from planner.runtime.distributed.transport.layout import training_layout
from planner.runtime.distributed.transport.liveness import stopped_state
from planner.runtime.distributed.transport.rendezvous import MEET_S, asking, peer_info_of
from planner.runtime.errors import RankError, failure_from_text, failure_to_text
from planner.runtime.matching import rewritten_for
from planner.runtime.training.any_trainer import AnyTrainer, check_batches
from planner.runtime.training.optimizers import check_own_hooks
from planner.runtime.training.options import check_training
from planner.runtime.training.prepare import check_alone, check_trained
from planner.runtime.training.states import check_state, join_states
from planner.runtime.training.step import MicroBatch
from planner.runtime.training.trainer import CLOSED, CLOSED_MEANWHILE
from simulator.timeline import Timeline

REASON_S = 2.0  # for a failed rank to say why after another one has noticed, or for a stopped one to go on
LOOK_S = 0.05  # between checks of which ranks still run
SHARE = 0.02  # pause between checks for answers, as a share of the time that has passed
SOON_S, LATE_S = 0.0005, 0.01  # the shortest and the longest pause
BROKEN = "the ranks of this trainer have failed; make a new one, and load_state_dict() a saved state"


class HostedTrainer(AnyTrainer):
    """A model that is trained by processes of this host, one for each device. See `planner.train`.

    After a step that fails, or is interrupted, they have ended: a new trainer goes on from a saved state.
    """

    def __init__(self, plan: Plan, program: Program, tools: RankSetup, timeout_s: float = MEET_S) -> None:
        """Start the processes within ``timeout_s``, which are all on this host.

        Raises:
            InputError: if a process cannot have its device, its weights or the tools, there is nothing to train, or
                the plan is for replicas.
            RankError: if one ends or does not come in time.
        """
        checks.instance(tools, RankSetup, "the tools", "RankSetup: a loss, an optimizer and a trainer options")
        program = rewritten_for(plan, program)
        check_training(plan, program, tools.loss, tools.optimizer, tools.trainer_options)
        checks.seconds(timeout_s, "the time to start")
        check_alone(plan)
        check_trained(program)
        check_own_hooks()
        self.plan, self.program = plan, program
        self.trainer_options = tools.trainer_options.under(plan.workload)
        self._layout = training_layout(plan, coordinator=True)
        self._busy = threading.RLock()
        self._said = 0  # words
        self._broken, self._closed = False, threading.Event()
        made = ExitStack()
        self._ending = Ending(self, "trainer", partial(_end, self._closed, self._busy, made))
        with ExitStack() as undo:
            undo.callback(self._ending.now)
            self._folder = Path(tempfile.mkdtemp(prefix=FOLDER))
            made.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._shared_buffer = SharedBuffer(self._folder / SHARED_BUFFER)
            write_tools(replace(tools, trainer_options=self.trainer_options), self._folder)
            self._launcher = LocalLauncher(self._layout, plan, program, self._folder)
            made.callback(self._launcher.close)
            self._store = self._launcher.store
            peer_infos = self._launcher.meet(peer_info_of(plan), timeout_s)
            self.pids = tuple(peer_infos[rank].pid for rank in self._layout.others)
            self._ask(BEGIN)
            undo.pop_all()

    def step_through(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Run one training step on a batch that is divided already: as many micro-batches as the plan has."""
        (loss, _), *_ = self._ask(STEP, self._parts_of(batches))
        return torch.tensor(loss, dtype=torch.float64)

    def step_s(self, batches: Sequence[MicroBatch]) -> float:
        """Run one training step; return the seconds of the slowest rank, without passing the batch."""
        return max(float(seconds) for _, seconds in self._ask(STEP, self._parts_of(batches)))

    def gradients(self, batches: Sequence[MicroBatch]) -> dict[str, torch.Tensor | None]:
        """Run one training step; return its gradients, by the names of the parameters in the program."""
        parts = self._parts(GRADIENTS, self._parts_of(batches))
        return Pieces.of(self.program).whole({name: grad for part in parts for name, grad in part.items()})

    def change_options(self, **options: Any) -> None:
        """Change options of all optimizers from the next step on, such as ``lr``."""
        self._ask("change_options", ((), options))

    def model_state_dict(self) -> dict[str, Any]:
        """Return the model's ``state_dict()`` as it is now, for ``load_state_dict`` of the module."""
        return whole_model_state(self.program, self._parts("model_state_dict"))

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on, with this plan or another one of the same model, for `torch.save`."""
        return join_states(self._parts("state_dict"))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, as if there had been no break."""
        check_state(state)
        self._ask("load_state_dict", ((state,), {}))

    def record(self) -> None:
        """Measure the steps that begin from here on; `timeline` returns what was seen."""
        self._ask("record")

    def timeline(self) -> Timeline:
        """Return what ran on which device and went between them since `record`, and stop recording."""
        timeline: Timeline = self._parts("timeline")[0]
        return timeline

    def _parts_of(self, batches: Sequence[MicroBatch]) -> list[tuple[dict[str, torch.Tensor], Any]]:
        """Return micro-batches as the ranks take them."""
        check_batches(batches, self.plan.workload.micro_batches)
        return [(dict(batch.inputs), batch.target) for batch in batches]

    def _parts(self, command: str, content: Any = None) -> list[Any]:
        """Return what each rank has written into its file."""
        self._ending.check()
        with self._busy:  # until they are read
            files = self._ask(command, content)
            return [self._read(rank, *file) for rank, file in zip(self._layout.others, files, strict=True)]

    def _read(self, rank: int, name: str, mark: int) -> Any:
        """Read the file of a rank; raise RankError if it is damaged."""
        try:
            return read_back(self._folder, name, mark)
        except DamagedMessage as error:
            self._broken = True
            raise self._damaged(rank, str(error)) from error

    def _ask(self, command: str, content: Any = None) -> list[Any]:
        """Give a command, with content if it needs any, and return the answers of all ranks.

        Raises:
            InputError: if one of them cannot do it; if all say so, they can go on.
            StageError: if a stage fails; its cause has the traceback of the other process.
            RankError: if a rank is gone, now or before. There is no time limit as long as all run.
            RuntimeError: if it is closed, before or meanwhile.
        """
        self._ending.check()
        with self._busy:
            if self._closed.is_set() or self._broken:
                raise RuntimeError(CLOSED) if self._closed.is_set() else RankError(BROKEN)
            number = self._said
            shared = command in (STEP, GRADIENTS)
            if shared:
                self._shared_buffer.put(content)
            given = nullcontext() if shared or content is None else payload_file(content, file_at(self._folder, number))
            with given:
                self._said, self._broken = number + 1, True  # until all have answered
                with asking():
                    self._store.set(key_of(number), command)
                answers = self._wait_for(number)
            self._broken = any(answer.get("over") for answer in answers.values())
            if any("failure" in answer for answer in answers.values()):
                raise self._failure(answers, self._lost(answers))
            return [answers[rank]["value"] for rank in self._layout.others]

    def _wait_for(self, number: int) -> dict[int, Any]:
        """Wait for all answers, unless one says that no others will come."""
        keys = [answer_key(rank) for rank in self._layout.others]
        start_s = look_s = now_s = time.monotonic()
        noticed_s: float | None = None  # when something went wrong of which the reason may follow
        with asking():
            while not self._store.check(keys):
                if self._closed.is_set():
                    raise RuntimeError(CLOSED_MEANWHILE)
                if now_s >= look_s:
                    answers = self._answers(number)
                    over, lost = [answer for answer in answers.values() if answer.get("over")], self._lost(answers)
                    noticed_s = (noticed_s or now_s) if over or lost else None
                    told = any(answer["kind"] != "rank" for answer in over)
                    if told or (noticed_s is not None and now_s > noticed_s + REASON_S):
                        raise self._failure(answers, lost)
                    look_s = now_s + LOOK_S
                time.sleep(min(LATE_S, SOON_S + SHARE * (now_s - start_s)))
                now_s = time.monotonic()
            answers = self._answers(number)
            for key in (key_of(number), *keys):
                self._store.delete_key(key)
        return answers

    def _answers(self, number: int) -> dict[int, Any]:
        """Return the answers that are there."""
        return {
            rank: self._answer(number, rank) for rank in self._layout.others if self._store.check([answer_key(rank)])
        }

    def _answer(self, number: int, rank: int) -> dict[str, Any]:
        """Return the answer of a rank; a damaged one says that this rank has failed."""
        try:
            return answer_from_text(number, self._store.get(answer_key(rank)))
        except DamagedMessage as error:
            return {"kind": "rank", "failure": failure_to_text(self._damaged(rank, str(error))), "over": True}

    def _damaged(self, rank: int, what: str) -> RankError:
        return RankError(f"{self._layout.title(rank)} has sent {what}; start again")

    def _lost(self, answers: Mapping[int, Any]) -> str:
        """Return which of the ranks without an answer does nothing any more, and why; empty while all run."""
        gone = self._launcher.gone()
        for rank, pid in zip(self._layout.others, self.pids, strict=True):
            why = self._launcher.fate(rank) if rank in gone else stopped_state(pid)
            if why and rank not in answers:
                return f"{self._layout.title(rank)} is gone: {why}"
        return ""

    def _failure(self, answers: Mapping[int, Any], lost: str) -> Exception:
        """Return the failure that says the most; there are some, or a rank is lost."""
        failures = [
            (answer["kind"], failure_from_text(answer["failure"])) for answer in answers.values() if "failure" in answer
        ]
        for kind, failure in failures:
            if kind != "rank":
                return InputError(str(failure)) if kind == "input" else failure
        if lost:
            return RankError(f"{lost}; start again")
        (_, failure), *_ = failures
        broken = RankError(str(failure))
        broken.__cause__ = failure.__cause__
        return broken


def _end(closed: threading.Event, busy: threading.RLock, made: ExitStack) -> None:
    """Fail the step that is on its way, and end the processes."""
    closed.set()
    with busy:
        made.close()
