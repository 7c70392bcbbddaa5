"""Call: the sequences of one call of a runner, which end or fail one by one."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from graphs.common import checks
from graphs.common.errors import InputError
from graphs.program.generation import GenerationProgram
from planner.runtime.generation.groups import Continuation, RowGroup
from planner.runtime.generation.sampling import Sampling

Stop: TypeAlias = Callable[[int, int], bool]
"""Says whether a sequence ends, from its number and its latest token."""

Failed: TypeAlias = Callable[[int, BaseException], object]
"""Called with the number of a sequence that fails, and its error."""


class GenerationCall:
    """Sequences of one call: those that wait for a row of a group, and the error of the first one that has failed."""

    def __init__(self, sampling: Sampling, stop: Stop, failed: Failed | None) -> None:
        self.waiting: list[Continuation] = []  # the next one last
        self._sampling, self._stop, self._failed = sampling, stop, failed
        self._first: BaseException | None = None

    def enter(self, model: GenerationProgram, prompts: Sequence[Sequence[int]], more: int) -> None:
        """Let sequences wait that are to have up to ``more`` tokens; those with a wrong prompt fail."""
        for number, prompt in enumerate(prompts):
            try:
                ids = _checked(model, prompt, number, more)
            except InputError as error:
                self._fail(number, error)
            else:
                self.waiting.append(Continuation(number, ids, more, self._sampling.generator(number)))
        self.waiting.reverse()

    def fill(self, group: RowGroup) -> bool:
        """Begin waiting sequences in the free rows of a group; return whether it has any sequence then."""
        for row, one in enumerate(group.rows):
            if one is None and self.waiting:
                group.rows[row] = self.waiting.pop()
        return bool(group.active)

    def choose(self, group: RowGroup, row: int, logits: torch.Tensor) -> int | None:
        """Return the next token of a row's sequence, and free the row if that is the last; None if it fails."""
        one = group.rows[row]
        assert one is not None, "a pass has brought it so far"
        try:
            token = self._sampling.choose(logits, one.generator)
            stops = self._stop(one.number, token)
        except Exception as error:  # of the caller's function, or of logits that are no numbers
            group.rows[row] = None
            self._fail(one.number, error)
            return None
        one.pending.append(token)
        one.left -= 1
        if stops or one.left == 0:
            group.rows[row] = None
        return token

    def fail_all(self, group: RowGroup, error: BaseException) -> None:
        """Fail the sequences of a group, whose rows are free then."""
        for row, one in group.active:
            group.rows[row] = None
            self._fail(one.number, error)

    def raise_first(self) -> None:
        """Raise the error of the sequence that has failed first, unless the caller has been given it."""
        if self._first is not None:
            raise self._first

    def _fail(self, number: int, error: BaseException) -> None:
        if self._failed is not None:
            self._failed(number, error)
        elif self._first is None:
            self._first = error


def _checked(model: GenerationProgram, prompt: Sequence[int], number: int, more: int) -> list[int]:
    """Return the ids of a prompt, checked."""
    ids = [checks.integer(each, f"an id of prompt {number}") for each in prompt]
    if not ids:
        raise InputError(f"prompt {number} is empty; give it the id that begins a text, at least")
    if (largest := max(ids)) >= model.vocabulary:
        raise InputError(
            f"prompt {number} has the id {largest:,}, and the model knows those below {model.vocabulary:,}; use the "
            "tokenizer of this model"
        )
    if len(ids) + more - 1 > model.context:
        raise InputError(
            f"prompt {number} has {len(ids):,} tokens and up to {more:,} more to come, and the plan's context is "
            f"{model.context:,}; ask for fewer, or import the model with a longer context"
        )
    return ids
