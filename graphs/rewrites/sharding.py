"""Shardings: how an operator can be divided into parts that compute shares of its result, or terms of a sum.

::

    linear    x [b, k], weight [n, k], bias [n]  ->  y [b, n]
              "output features"   n   weight and bias by rows, x whole              parts of y
              "input features"    k   x and weight by columns, bias in one part     terms of y
              "batch"             b   x by rows, weight whole                       parts of y

As in an einsum, a sharding divides one loop of the operator. The loop runs over ``units`` that stay whole, such as the
heads of an attention; each tensor has the loop along one axis, or not at all, and then every part reads it whole.
Sources: GSPMD (Xu et al., arXiv 2105.04663), and the sharding rules of PyTorch's DTensor.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from graphs.common.brief import Brief
from graphs.common.errors import InputError

REPLICATED, CHANNELS = "replicated", "channels"

Range: TypeAlias = tuple[int, int]
"""The first index and the one after the last."""


class Shard(NamedTuple):
    """The axis of a tensor that a loop runs along; in several ``runs`` if the axis holds the loop that many times.

    The 2304 output features of GPT-2's first projection are queries, keys and values of 768 each: to divide the heads
    is to divide each of three runs.

    Rows that are sorted by expert are divided by the tensor of their ``ends``, whose values are known when the network
    runs. So each part has the shape of the whole, and its own rows count.
    """

    axis: int
    runs: int = 1
    ends: str = ""


class Halo(NamedTuple):
    """The rows of the first input that a row of the output reads: neighbouring parts read some of the same rows.

    Output row ``i`` reads the rows from ``i * stride - before`` to ``i * stride - before + window``. What is outside of
    the image has the value ``fill``.
    """

    stride: int
    before: int
    window: int
    fill: float = 0.0

    def reach(self, rows: Range) -> Range:
        """Return the rows of the input, some of which may be outside of the image."""
        start, stop = rows
        return start * self.stride - self.before, (stop - 1) * self.stride - self.before + self.window


@dataclass(frozen=True)
class Sharding(Brief):
    """One way to divide an operator."""

    name: str  # of the loop, by the word of the field; no two shardings of an operator have the same
    units: int  # iterations of the loop that stay whole; there can be as many parts
    inputs: tuple[Shard | None, ...]  # for each of ``Op.inputs`` its shard; None if each part reads it whole
    outputs: tuple[Shard | None, ...]  # for each of ``Op.outputs`` its shard; None if each part writes it whole
    summed: bool = False  # whether the outputs of the parts are terms of a sum
    once: tuple[int, ...] = ()  # positions of inputs that are added to the result: only a sum's first part reads them
    halo: Halo | None = None  # which rows of the first input are read, if parts share some

    def refined(self, runs: int) -> "Sharding":
        """Return the sharding that divides each of several runs of the loop; neighbours may need it."""

        def shard(one: Shard | None) -> Shard | None:
            return one and one._replace(runs=one.runs * runs)

        name = f"{self.name} in {runs} runs"
        shards = tuple(map(shard, self.inputs)), tuple(map(shard, self.outputs))
        return replace(self, name=name, units=self.units // runs, inputs=shards[0], outputs=shards[1])

    def refines(self, runs: int) -> bool:
        """Return whether `refined` can divide the loop into this number of runs."""
        divisible = self.units % runs == 0 and self.units > runs > 1
        return divisible and self.halo is None and self.name != REPLICATED and not self.ends

    @property
    def ends(self) -> str:
        """The tensor with the ends of the rows of each unit, if values divide the rows; otherwise empty."""
        return next((shard.ends for shard in (*self.inputs, *self.outputs) if shard and shard.ends), "")

    @property
    def has_all_rows(self) -> bool:
        """Whether a part computes as many rows as the whole, of which its own count."""
        return bool(self.ends) and all(shard is None or shard.ends for shard in self.inputs)


def shares(units: int, parts: int) -> tuple[Range, ...]:
    """Return the range of units of each part, as equal as possible.

    Raises:
        InputError: if there are fewer units than parts.
    """
    if not 1 <= parts <= units:
        raise InputError(f"{units} can be divided into 1 to {units} parts, not into {parts}")
    bounds = [-(-units * part // parts) for part in range(parts + 1)]
    return tuple(pairwise(bounds))


def ranges(shard: Shard, extent: int, units: int, share: Range) -> tuple[Range, ...]:
    """Return the indices along a tensor's axis of this extent that belong to a share of the units of a loop."""
    run = extent // shard.runs
    block = run // units
    start, stop = share
    pieces = [(number * run + start * block, number * run + stop * block) for number in range(shard.runs)]
    return tuple(joined_ranges(pieces))


def joined_ranges(pieces: list[Range]) -> Iterator[Range]:
    """Yield the ranges; one that begins at the end of another is merged with it."""
    start, stop = pieces[0]
    for first, last in pieces[1:]:
        if first != stop:
            yield start, stop
            start = first
        stop = last
    yield start, stop


def sharding_named(shardings: Mapping[str, Sharding], name: str) -> Sharding | None:
    """Return a sharding by its name, which may end with "in 3 runs"; None if there is none."""
    if name in shardings:
        return shardings[name]
    base, _, runs = name.removesuffix(" runs").rpartition(" in ")
    if base in shardings and runs.isdigit() and shardings[base].refines(int(runs)):
        return shardings[base].refined(int(runs))
    return None
