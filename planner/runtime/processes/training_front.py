"""Training front: a training plan in processes of this host, one for each device, whose steps are measured from here.

They are started as those of a `Runner` are (see `hosting`), each with its shard, and train on the example inputs with
a loss that any network has.
"""

import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is public

from graphs.errors import InputError
from graphs.importers.program import Program
from planner.plans import Plan
from planner.runtime.processes.failures import RankError, failure_from_text
from planner.runtime.processes.hosting import HERE, READY, STORE_S, Hosted
from planner.runtime.processes.layout import FRONT, Layout
from planner.runtime.processes.life import stopped_state
from planner.runtime.processes.meeting import MEET_S, asking, card_of, meet
from planner.runtime.processes.training_worker import Word, gradients_of, key_of
from planner.runtime.shards import write_shards
from planner.runtime.training.prepare import check_alone, layout_of
from simulator.timeline import Span, Timeline

ANSWER_S = 600.0  # for a word to be carried out
REASON_S = 2.0  # for the rank that failed to say why once another has noticed, or for one that is stopped to go on
LOOK_S = 0.01


class HostedTraining:
    """The processes of a training plan; for one caller.

    Attributes:
        pids: of the processes.
    """

    def __init__(self, plan: Plan, program: Program, timeout_s: float = MEET_S) -> None:
        """Start them.

        Args:
            plan: for training; all its devices are on this host.
            program: its model, with weights.
            timeout_s: for the processes to start.

        Raises:
            InputError: if a process cannot have its device or its weights, or the plan is for replicas.
            RankError: if one ends or does not come in time.
        """
        check_alone(plan)
        self._plan = plan
        self._layout = process_layout(plan)
        self._said = 0
        with ExitStack() as undo:
            self._folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="planner-")))
            self._store = TCPStore(HERE, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=STORE_S))
            shards = self._folder / "shards"
            self._hosted = Hosted(self._layout, plan, shards, self._store.port)  # they load torch meanwhile
            undo.callback(self._hosted.close)
            write_shards(plan, program, shards)
            self._store.set(READY, "")
            cards = meet(self._store, self._layout, FRONT, card_of(plan), self._hosted.ended, timeout_s)
            self.pids = tuple(cards[rank].pid for rank in self._layout.others)
            self._ask(Word.BEGIN)
            self._undo = undo.pop_all()

    def gradients(self) -> dict[str, torch.Tensor | None]:
        """Of a step, on all ranks together, by the names of the parameters in the program."""
        self._ask(Word.GRADIENTS)
        found: dict[str, torch.Tensor | None] = {}
        for rank in self._layout.others:
            found |= torch.load(gradients_of(self._folder, rank), weights_only=True)
        return found

    def step_s(self) -> float:
        """Seconds of a step: those of the rank that took the longest."""
        return max(map(float, self._ask(Word.STEP)))

    def recorded(self) -> Timeline:
        """What ran on which device in one step."""
        first, *_ = self._ask(Word.RECORD)
        spans = tuple(Span(*fields) for fields in first)
        return Timeline(self._plan.table.devices, self._plan.workload.micro_batches, spans)

    def close(self) -> None:
        """Send the processes home, and end those that do not go. May be called again."""
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._store.set(key_of(self._said), Word.END)
        self.close()

    def _ask(self, word: Word) -> list[Any]:
        """The answers of all ranks.

        Raises:
            InputError: if one of them cannot do it here.
            StageError: if a stage fails; its cause has the traceback of the other process.
            RankError: if a rank is gone or does not answer.
        """
        number, self._said = self._said, self._said + 1
        with asking():
            self._store.set(key_of(number), word)
        end_s = time.monotonic() + ANSWER_S
        noticed_s: float | None = None  # when something went wrong of which the reason may follow
        answers: dict[int, Any] = {}
        while len(answers) < len(self._layout.others):
            answers = self._answers(number)
            failures = [answer for answer in answers.values() if "failure" in answer]
            now_s = time.monotonic()
            noticed_s = (noticed_s or now_s) if failures or self._lost(answers) else None
            told = any(answer["kind"] != "rank" for answer in failures)
            if told or now_s > end_s or (noticed_s is not None and now_s > noticed_s + REASON_S):
                raise self._failure(answers, word)
            time.sleep(LOOK_S)
        if any("failure" in answer for answer in answers.values()):
            raise self._failure(answers, word)
        return [answers[rank]["value"] for rank in self._layout.others]

    def _answers(self, number: int) -> dict[int, Any]:
        """Those that are there."""
        with asking():
            there = [rank for rank in self._layout.others if self._store.check([key_of(number, rank)])]
            return {rank: json.loads(self._store.get(key_of(number, rank))) for rank in there}

    def _lost(self, answers: Mapping[int, Any]) -> str:
        """Which of the ranks that have not answered does nothing any more, and why; empty while all run."""
        gone = self._hosted.gone()
        for rank, pid in zip(self._layout.others, self.pids, strict=True):
            why = self._hosted.fate(rank) if rank in gone else stopped_state(pid)
            if why and rank not in answers:
                return f"{self._layout.title(rank)} is gone: {why}"
        return ""

    def _failure(self, answers: Mapping[int, Any], word: Word) -> Exception:
        """The one that says the most."""
        failures = [answer for answer in answers.values() if "failure" in answer]
        for told in failures:
            if told["kind"] != "rank":
                failure = failure_from_text(told["failure"])
                return InputError(str(failure)) if told["kind"] == "input" else failure
        if lost := self._lost(answers):
            return RankError(f"{lost}; start again")
        if failures:
            return RankError(str(failure_from_text(failures[0]["failure"])))
        return RankError(f"no answer to '{word}' within {ANSWER_S:.0f} s; start again")


def process_layout(plan: Plan) -> Layout:
    """The front alone, and a rank for each device, in the order of the schedule's rows."""
    devices = plan.cluster.devices
    rows = tuple((devices.index(device),) for device in layout_of(plan).devices)
    return Layout(((), *rows), tuple(device.name for device in devices))
