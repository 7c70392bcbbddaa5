"""Groups: sequences that one pass advances together, each in a row of its own.

::

    row 0   p p p p p p g g g .        p  token of a prompt, read in chunks
    row 1   p p p g g g g . .          g  generated token, read one by one
    row 2   (free)                     a pass takes as many tokens of each row as its phase has, or fewer

A row with fewer tokens than the phase is filled up with tokens at later positions, which are written again before any
token attends to them. Rows of a recurrent network cannot be filled up: they read one token in each pass. A network with
an encoder reads the sources of its rows first, one in a pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from graphs.common.promises import Promise
from graphs.program.generation import GenerationProgram, Phase
from planner.runtime.inference.tasks import Tensors
from planner.runtime.stages.caches import GROUP


@dataclass(eq=False)
class Continuation:
    """One sequence that is generated."""

    number: int  # of the sequence, for its caller
    pending: list[int]  # tokens that are not in the caches yet
    left: int  # tokens to be generated
    generator: torch.Generator  # of its random numbers
    position: int = 0  # of the first pending token
    source: torch.Tensor | None = None  # what the encoder is still to read, [positions] ids or features
    read: int = 0  # positions of the source that count, where it is a text


@dataclass(eq=False)
class RowGroup:
    """Rows that one pass advances."""

    number: int  # of the group, whose caches the devices know by it
    rows: list[Continuation | None]
    on_way: "tuple[Phase, Promise[Tensors]] | None" = None  # the pass that has begun last, until its tokens are chosen

    @property
    def active(self) -> list[tuple[int, Continuation]]:
        """The rows with a sequence, and their sequences."""
        return [(row, one) for row, one in enumerate(self.rows) if one is not None]


def next_phase(model: GenerationProgram, rows: Sequence[Continuation]) -> Phase:
    """Return the sizes of the next pass of some sequences: the largest that one of them fills, or else the smallest.

    The rest of a prompt is filled up to the next smaller size above it: one pass reads all weights, whatever its size.
    """
    unread = next((one.source for one in rows if one.source is not None), None)
    if unread is not None:
        return _source_phase(model, unread)
    need = max(len(one.pending) for one in rows)
    farthest = max(one.position for one in rows)
    fitting: dict[int, Phase] = {}  # the largest first, each with as few positions as possible
    for tokens in model.sizes:
        enough = (length for length in model.lengths if length >= farthest + tokens)
        if found := next((Phase(tokens, length) for length in enough if Phase(tokens, length) in model.phases), None):
            fitting[tokens] = found
    full = [size for size in fitting if size <= need]
    above = [size for size in fitting if size > need]
    return fitting[above[-1] if full[0] == 1 < need and above else full[0]]


def _source_phase(model: GenerationProgram, source: torch.Tensor) -> Phase:
    """Return the sizes of the pass that encodes a source: the fewest positions that hold it."""
    n_ids = len(source) if model.source and model.source.has_ids else 0
    return Phase(0, next(each for each in model.source_lengths if each >= n_ids))


def pass_inputs(model: GenerationProgram, group: RowGroup, phase: Phase) -> dict[str, torch.Tensor]:
    """Return the inputs of the next pass of a group by the names of `GenerationProgram`; `GROUP` is for its caches."""
    if not phase.tokens:
        return _source_inputs(model, group, phase.length)
    ids = np.zeros((model.rows, phase.tokens), np.int64)
    begin, last, read = (np.full(model.rows, least) for least in (0, 0, 1))
    active = np.zeros(model.rows, np.bool_)
    for row, one in group.active:
        tokens = one.pending[: phase.tokens]
        ids[row, : len(tokens)] = tokens
        begin[row], last[row], read[row], active[row] = one.position, len(tokens) - 1, one.read, True
    positions = begin[:, None] + np.arange(phase.tokens)
    given = {"ids": ids, "positions": positions, "last": last, "active": active, "read": read}
    small = {"first": torch.tensor(begin[0]), GROUP.name: torch.tensor(group.number)}
    return {name: torch.from_numpy(array) for name, array in given.items()} | small  # as many operators take 0.2 ms


def _source_inputs(model: GenerationProgram, group: RowGroup, length: int) -> dict[str, torch.Tensor]:
    """Return the inputs of a pass that encodes the next source of a group; no row has a token in it."""
    row, source = next((row, one.source) for row, one in group.active if one.source is not None)
    known = source
    if model.source and model.source.has_ids:
        source = torch.zeros(length, dtype=model.source.dtype)
        source[: len(known)] = known
    return {
        "source": source[None],
        "source_tokens": torch.tensor([len(known)]),
        "row": torch.tensor([row]),
        "active": torch.zeros(model.rows, dtype=torch.bool),
        "positions": torch.zeros(model.rows, 1, dtype=torch.long),
        GROUP.name: torch.tensor(group.number),
    }


def advance(group: RowGroup, phase: Phase) -> list[tuple[int, Continuation]]:
    """Move the sequences of a group past the tokens of a pass; return the rows whose next token is to be chosen."""
    if not phase.tokens:
        one = next(one for _, one in group.active if one.source is not None)
        one.source, one.read = None, len(one.source) if one.source is not None else 0
        return []
    done = []
    for row, one in group.active:
        read = min(phase.tokens, len(one.pending))
        del one.pending[:read]
        one.position += read
        if not one.pending:
            done.append((row, one))
    return done
