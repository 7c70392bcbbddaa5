"""A language model that generates: one network at several sizes of a pass, with the same operators and caches.

::

    prompt of 150 tokens     [128 tokens] ─► [16] ─► [16, of which 6 count]      phases: 128, 16 and 1 tokens
    then token by token      [1] ─► [1] ─► ...

A phase is the network for one number of tokens and one number of cached positions that attention reads. All phases have
the same operators by name, the same weights and the same caches, so a placement of one is a placement of all.

A network with an encoder is one network too: a pass runs the encoder, which writes keys and values for a row's source
into caches, or the decoder, which reads them (see `graphs.caches.ops_of_pass`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from graphs.caches import encoded
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.phases import Phase as Phase
from graphs.program.program import Program


@dataclass(frozen=True)
class EncoderSource(Brief):
    """The input of an encoder, which one pass reads for one row.

    Attributes:
        shape: of one source: [positions] of token ids, or that of features.
        dtype: of its numbers.
        start: ids that a continuation begins with; empty if the model names none.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    start: tuple[int, ...]

    @property
    def has_ids(self) -> bool:
        """Whether it is a text of any length up to its positions."""
        return not self.dtype.is_floating_point


@dataclass(frozen=True)
class GenerationProgram(Brief):
    """A language model as programs with a cache.

    The programs take, in this order, ``ids`` and ``positions`` [rows, tokens] int64, ``last`` [rows] int64 (which token
    of each row the logits are of), ``active`` [rows] bool (whether a row has tokens in this pass) and the caches, and
    return logits [rows, vocabulary] and the caches. A row's tokens may be followed by others at positions that are
    written again later. Those of a network with an encoder also take ``source`` [1, ...], ``source_tokens`` [1] int64
    (how many of its ids count), ``row`` [1] int64 (whose source it is) and ``read`` [rows] int64 (how many positions of
    each row's source count).

    Attributes:
        module: the user's own model.
        phases: the programs, by their sizes; one of them is a token at the whole context.
        rows: sequences that one pass advances.
        context: positions of a cache: the most tokens of a prompt and its continuation.
        vocabulary: number of token ids.
        growing: names of the caches with a place for each position, in their third dimension; each token changes the
            others as a whole, so their rows cannot be filled up with other tokens.
        stops: ids after which the model ends a sequence.
        source: the input of its encoder, if it has one.

    Raises:
        InputError: if two phases have not the same operators, inputs, outputs and caches by name.
    """

    module: nn.Module
    phases: Mapping[Phase, Program]
    rows: int
    context: int
    vocabulary: int
    growing: frozenset[str] = field(default_factory=frozenset)
    stops: frozenset[int] = field(default_factory=frozenset)
    source: EncoderSource | None = None

    def __post_init__(self) -> None:
        for phase, program in self.phases.items():
            if (difference := unlike(program.graph, self.decode.graph)) is not None:
                raise InputError(f"the network for {phase.tokens} tokens is not the one for 1 token: {difference}")

    @cached_property
    def decode(self) -> Program:
        """The program for one token at the whole context, which plans are made for."""
        return self.phases[Phase(1, self.context)]

    @cached_property
    def encoded(self) -> frozenset[str]:
        """Names of the caches that the encoder writes; their third dimension are the positions of a source."""
        return encoded(self.decode.graph)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of tokens of a pass, the largest first."""
        return tuple(sorted({phase.tokens for phase in self.phases if phase.tokens}, reverse=True))

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of positions that attention reads, the smallest first; the last one is the context."""
        return tuple(sorted({phase.length for phase in self.phases if phase.tokens}))

    @cached_property
    def source_lengths(self) -> tuple[int, ...]:
        """The numbers of positions that the encoder reads, the smallest first; empty without one."""
        return tuple(sorted({phase.length for phase in self.phases if not phase.tokens}))


def unlike(one: Graph, other: Graph) -> str | None:
    """Return the first difference of two graphs besides shapes and attributes; None if they are alike."""
    for a, b in zip(one.ops, other.ops, strict=False):
        if (a.name, a.kind, a.inputs, a.outputs) != (b.name, b.kind, b.inputs, b.outputs):
            return f"operator '{a.name}' ({a.kind}) stands where the other has '{b.name}' ({b.kind})"
    if len(one.ops) != len(other.ops):
        return f"it has {len(one.ops):,} operators, the other {len(other.ops):,}"
    if (one.inputs, one.outputs, one.caches) != (other.inputs, other.outputs, other.caches):
        return "their inputs, outputs or caches have other names"
    return None
