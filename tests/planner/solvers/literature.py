"""The worked examples of the list-scheduling literature: what a task takes on each device, and what its edges take.

An edge (writer, reader, seconds) is a message of its own, paid if its ends are on different devices, and messages never
wait for each other. So a flow stands for each edge, one byte a second.
"""

from costmodels.table import CostTable
from tests.planner.problem.problems import make_table

Example = tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, int, int], ...]]

# Topcuoglu, Hariri, Wu, IEEE TPDS 13(3), 2002: figure 2. HEFT 80, CPOP 86; the least is 73.
TOPCUOGLU: Example = (
    (
        (14, 16, 9),
        (13, 19, 18),
        (11, 13, 19),
        (13, 8, 17),
        (12, 13, 10),
        (13, 16, 9),
        (7, 15, 11),
        (5, 11, 14),
        (18, 12, 20),
        (21, 7, 16),
    ),
    (
        (0, 1, 18),
        (0, 2, 12),
        (0, 3, 9),
        (0, 4, 11),
        (0, 5, 14),
        (1, 7, 19),
        (1, 8, 16),
        (2, 6, 23),
        (3, 7, 27),
        (3, 8, 23),
        (4, 8, 13),
        (5, 7, 15),
        (6, 9, 17),
        (7, 9, 11),
        (8, 9, 13),
    ),
)

# Arabnejad, Barbosa, IEEE TPDS 25(3), 2014: figure 1. PEFT 122, HEFT 133; the least is 113.
ARABNEJAD: Example = (
    (
        (22, 21, 36),
        (22, 18, 18),
        (32, 27, 43),
        (7, 10, 4),
        (29, 27, 35),
        (26, 17, 24),
        (14, 25, 30),
        (29, 23, 36),
        (15, 21, 8),
        (13, 16, 33),
    ),
    (
        (0, 1, 17),
        (0, 2, 31),
        (0, 3, 29),
        (0, 4, 13),
        (0, 5, 7),
        (1, 7, 3),
        (1, 8, 30),
        (2, 6, 16),
        (3, 7, 11),
        (3, 8, 7),
        (4, 8, 57),
        (5, 7, 5),
        (6, 9, 9),
        (7, 9, 42),
        (8, 9, 7),
    ),
)


def table_of(example: Example) -> CostTable:
    """The example with a channel for each ordered pair of devices."""
    computes, edges = example
    return make_table(computes, [(writer, (reader,), float(seconds)) for writer, reader, seconds in edges])
