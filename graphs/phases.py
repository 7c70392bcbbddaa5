"""Phase: the sizes of one pass of a network that generates."""

from typing import NamedTuple


class Phase(NamedTuple):
    """The sizes of one pass."""

    tokens: int  # of each row; 0 if the encoder reads the source of one row instead
    length: int  # cached positions that attention reads: those from 0 on; of an encoder, the positions of its source
