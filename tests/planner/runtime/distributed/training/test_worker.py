"""What a rank answers to its words, without another process."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # it is public

from graphs.common.errors import InputError
from planner.runtime.distributed.training.worker import (
    SHARED_BUFFER,
    CommandLoop,
    SharedBuffer,
    answer_from_text,
    answer_key,
    answer_to_text,
    key_of,
)
from planner.runtime.distributed.transport.checksums import DamagedMessage
from planner.runtime.errors import RankError, StageError, failure_from_text


class Trainer:
    """Fails as it is told."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.broken = False
        self.closed = 0

    def record(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def close(self) -> None:
        self.closed += 1


def answers(make: Callable[[], Any], folder: Path, n_words: int) -> list[dict[str, Any]]:
    """Of rank 1, to words that have been said already; at the last one it fails."""
    store, said = HashStore(), []
    for number in range(n_words):
        store.set(key_of(number), "record")
    keeping = SimpleNamespace(wait=store.wait, get=store.get, set=lambda *each: said.append(each))
    CommandLoop(keeping, folder, 1).serve(make)  # type: ignore[arg-type]  # a store that keeps all that is set
    assert [key for key, _ in said] == [answer_key(1)] * n_words
    return [answer_from_text(number, text.encode()) for number, (_, text) in enumerate(said)]


def test_an_answer_that_is_damaged_or_to_another_command_is_none() -> None:
    text = answer_to_text(4, {"value": [0.5, 1.0]}).encode()
    assert answer_from_text(4, text)["value"] == [0.5, 1.0]
    with pytest.raises(DamagedMessage, match=r"^an answer to command 4 instead of 5$"):
        answer_from_text(5, text)
    for damaged in (text[:-1], text.replace(b"0.5", b"0.6"), b"", b"\xff" + text):
        with pytest.raises(DamagedMessage, match=r"^bytes that are damaged$"):
            answer_from_text(4, damaged)


def test_what_can_be_mended_is_told_and_the_next_word_heard(tmp_path: Path) -> None:
    trainer = Trainer(InputError("no such option"), StageError("stage 1 on 'b' failed"))
    first, second = answers(lambda: trainer, tmp_path, 2)
    assert (first["kind"], first["over"]) == ("input", False)
    assert (second["kind"], second["over"]) == ("stage", True)
    assert str(failure_from_text(second["failure"])) == "stage 1 on 'b' failed"
    assert trainer.closed == 1


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (ValueError("Invalid rate: -1"), "stage", "rank 1 failed at 'record': ValueError: Invalid rate: -1"),
        (RuntimeError("no memory"), "stage", "rank 1 failed at 'record': RuntimeError: no memory"),
        (RankError("rank 2 is gone"), "rank", "rank 2 is gone"),
    ],
)
def test_whatever_is_raised_is_told_with_its_traceback(error: Exception, kind: str, told: str, tmp_path: Path) -> None:
    """By the optimizer, say, where it is made or takes its step."""

    def make() -> Any:
        raise error

    for fails in (lambda: Trainer(error), make):
        (answer,) = answers(fails, tmp_path, 1)
        assert (answer["kind"], answer["over"]) == (kind, True)
        failure = failure_from_text(answer["failure"])
        assert str(failure) == told
        assert str(failure.__cause__).endswith(f"{type(error).__name__}: {error}\n")


def test_a_mistake_before_there_is_a_trainer_ends_it(tmp_path: Path) -> None:
    def make() -> Any:
        raise InputError("'words.weight' has a shape but no values")

    (answer,) = answers(make, tmp_path, 1)
    assert (answer["kind"], answer["over"]) == ("input", True)


def test_targets_may_be_kept_and_inputs_lie_on_the_tray(tmp_path: Path) -> None:
    shared_buffer = SharedBuffer(tmp_path / SHARED_BUFFER)
    shared_buffer.put([({"x": torch.zeros(3)}, [torch.zeros(3), "name"])])
    (batch,) = CommandLoop(HashStore(), tmp_path, 1)._batches()
    shared_buffer.put([({"x": torch.ones(3)}, [torch.ones(3), "other"])])
    assert torch.equal(batch.inputs["x"], torch.ones(3))
    assert torch.equal(batch.target[0], torch.zeros(3))
    assert batch.target[1] == "name"
