"""Phase: the sizes of one pass of a network that generates."""

from typing import NamedTuple


class Phase(NamedTuple):
    """The sizes of one pass."""

    tokens: int  # of each row
    length: int  # cached positions that attention reads: those from 0 on
