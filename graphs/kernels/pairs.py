"""The order in which a core runs two micro-batches at once: kernels that read a weight once for both run for both.

::

    a b c of one micro-batch, a b c of the other, d of both, e of both        d and e are products of one row

These are kernels of one row (`graphs.kernels.rows`) and of one sequence (`graphs.kernels.recurrent`), which the
memory's bandwidth limits. What stands between two of them runs for one micro-batch, then for the other: in step, each
would find in the core's cache what the other has left there.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

from graphs.kernels.kernel import Kernel

Turn: TypeAlias = tuple[int, tuple[int, ...]]
"""An operator, and the micro-batches, of the first (0) and the second (1), that it runs for."""

ONE, OTHER, BOTH = (0,), (1,), (0, 1)


def computes_pairs(kernels: Sequence[Kernel]) -> bool:
    """Whether one of the kernels of an operator computes two micro-batches at once."""
    return any(kernel.pair for kernel in kernels)


def one_by_one(ops: Iterable[int]) -> list[Turn]:
    """The turns of operators for a single micro-batch."""
    return [(number, ONE) for number in ops]


def n_micro_batches(turns: Sequence[Turn]) -> int:
    """Return the number of micro-batches whose turns these are."""
    return 1 + max((max(which) for _, which in turns), default=0)


def in_turns(kernels: Mapping[int, Sequence[Kernel]]) -> list[Turn]:
    """The turns of operators, given by their kernels, for two micro-batches; none if no kernel computes pairs."""
    pairs = {number: computes_pairs(each) for number, each in kernels.items()}
    if not any(pairs.values()):
        return []
    turns: list[Turn] = []
    for both, run in groupby(kernels, pairs.__getitem__):
        ops = list(run)
        turns += [(number, which) for which in ((BOTH,) if both else (ONE, OTHER)) for number in ops]
    return turns
