"""Call: the sequences of one call of a runner, which end or fail one by one."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch

from graphs.common.errors import InputError
from graphs.program.generation import GenerationProgram
from planner.runtime.generation.groups import Continuation, RowGroup
from planner.runtime.generation.prompts import Prompt, beginnings, continuation
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

    def enter(
        self,
        model: GenerationProgram,
        prompts: Sequence[Prompt],
        decoder_ids: Iterable[Sequence[int]] | None,
        more: int,
    ) -> None:
        """Let sequences wait that are to have up to ``more`` tokens; those with a wrong prompt fail."""
        begun = beginnings(model, prompts, decoder_ids)
        for number, (prompt, ids) in enumerate(zip(prompts, begun, strict=True)):
            try:
                self.waiting.append(continuation(model, number, prompt, ids, (more, self._sampling)))
            except InputError as error:
                self._fail(number, error)
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
