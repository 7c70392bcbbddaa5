"""The compiled makespan of placements."""

import numpy as np

from costmodels.table import CostTable
from planner.solvers.latency.makespan import makespan_s
from planner.solvers.latency.makespan_data import costs_of, work_for
from simulator.placement import Placement


class Makespan:
    """The makespan of any number of placements of one table.

    Attributes:
        costs: the table.
        work: room for the compiled functions.
    """

    def __init__(self, table: CostTable) -> None:
        self.costs, self.work = costs_of(table), work_for(table)

    def __call__(self, placement: Placement) -> float:
        """Seconds, `NOWHERE` where it does not fit the table; the order must be a topological one."""
        device = np.asarray(placement.device, dtype=np.int64)
        return float(makespan_s(self.costs, self.work, device, np.asarray(placement.order, dtype=np.int64)))
