"""A network for other numbers of samples, worked out from two imports of it.

::

    imported for 8 samples     [8, 3, 32, 32]  ──conv──► [8, 64, 32, 32]       8 ──► 16 samples: what doubles has the
                for 16         [16, 3, 32, 32] ──conv──► [16, 64, 32, 32]      samples in it, what is equal has not
    so     for 32 it is        [32, 3, 32, 32] ──conv──► [32, 64, 32, 32]
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from graphs.footprint import Footprint
from graphs.ir import Graph, Op

SINGLE = 1  # one sample: PyTorch traces sizes of 1 in another way


class SizedGraphs:
    """A network by its number of samples: imported for one sample and two more numbers, worked out for others."""

    def __init__(self, imported: Callable[[int], Graph]) -> None:
        """Without any import.

        Args:
            imported: imports the network for a number of samples.
        """
        self._import = imported
        self._imported: dict[int, Graph] = {}
        self._known: dict[int, Graph] = {}

    def __call__(self, samples: int) -> Graph:
        """Return the graph for a number of samples.

        Raises:
            InputError: from the import.
        """
        if samples not in self._known:
            made = None
            several = [size for size in self._imported if size > SINGLE][:2]
            if samples > SINGLE and len(several) == 2:
                one, other = several
                made = resized((one, self._imported[one]), (other, self._imported[other]), samples)
            self._known[samples] = made or self.imported(samples)
        return self._known[samples]

    def imported(self, samples: int) -> Graph:
        """Return the graph as an import for a number of samples makes it.

        Raises:
            InputError: from the import.
        """
        if samples not in self._imported:
            self._imported[samples] = self._import(samples)
        return self._imported[samples]


def resized(one: tuple[int, Graph], other: tuple[int, Graph], samples: int) -> Graph | None:
    """Return the graph for a number of samples from those for two other numbers; None if they do not imply it."""
    size = _Resize(one[0], other[0], samples)
    try:
        ops = tuple(size.op(*pair) for pair in zip(one[1].ops, other[1].ops, strict=True))
        tensors = tuple(size.record(*pair) for pair in zip(one[1].tensors, other[1].tensors, strict=True))
        ends = (one[1].name, one[1].inputs, one[1].outputs)
        size.same(ends, (other[1].name, other[1].inputs, other[1].outputs))
    except ValueError:  # also from zip
        return None
    return replace(one[1], ops=ops, tensors=tensors)


@dataclass(frozen=True)
class _Resize:
    """Numbers for some samples, from those for two other numbers of samples; ValueError where they do not follow."""

    one: int
    other: int
    samples: int

    def op(self, one: Op, other: Op) -> Op:
        """Return an operator; its footprint counts bytes."""
        bare = self.record(replace(one, footprint=None), replace(other, footprint=None))
        made: Op = replace(bare, footprint=self.footprint(one.footprint, other.footprint))
        return made

    def footprint(self, one: Footprint | None, other: Footprint | None) -> Footprint | None:
        """Return bytes, of which a part may grow with the samples."""
        made: Footprint | None = self.value(one, other, self.line)
        return made

    def record(self, one: Any, other: Any) -> Any:
        """Return a record of sizes, each of which is constant or in proportion to the samples."""
        return self.value(one, other, self.share)

    def value(self, one: Any, other: Any, number: Callable[[int, int], int]) -> Any:
        """Return any value of a graph; where the two given ones differ, ``number`` works out its numbers."""
        if type(one) is not type(other):
            raise ValueError
        if one == other:
            return one
        if type(one) is int:
            return number(one, other)
        if is_dataclass(one) and not isinstance(one, type):
            pairs = {item.name: (getattr(one, item.name), getattr(other, item.name)) for item in fields(one)}
            return replace(one, **{name: self.value(*pair, number) for name, pair in pairs.items()})
        if isinstance(one, Mapping):
            if one.keys() != other.keys():
                raise ValueError
            return {name: self.value(one[name], other[name], number) for name in one}
        if not isinstance(one, tuple):
            raise ValueError
        values = [self.value(*pair, number) for pair in zip(one, other, strict=True)]
        return one._make(values) if hasattr(one, "_make") else tuple(values)

    def same(self, one: object, other: object) -> None:
        """Check that two values are the same."""
        if one != other:
            raise ValueError

    def share(self, one: int, other: int) -> int:
        """Return a size that is in proportion to the samples; raise ValueError if the two sizes are not."""
        each, rest = divmod(one, self.one)
        if rest or each * self.other != other:
            raise ValueError
        return each * self.samples

    def line(self, one: int, other: int) -> int:
        """Bytes of which each sample has as many."""
        each, rest = divmod(other - one, self.other - self.one)
        made = one + each * (self.samples - self.one)
        if rest or made < 0:
            raise ValueError
        return made
