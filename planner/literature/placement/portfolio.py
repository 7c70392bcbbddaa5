"""Solvers for a host with accelerators by name, and the sequence that ``auto`` runs for each goal."""

from collections.abc import Mapping
from types import MappingProxyType

from planner.literature.placement.ilp import OffloadILP
from planner.literature.placement.offload import OffloadTable
from planner.literature.placement.offload_branch import OffloadBranch
from planner.literature.placement.offload_latency import OffloadLatency
from planner.problem.problem import Goal
from planner.solvers.base import Solver
from planner.solvers.dp.chains.chain_dp import ChainDP
from planner.solvers.dp.downsets.downset_dp import DownsetDP
from planner.solvers.exhaustive import Exhaustive
from planner.solvers.local_search.local_search import LocalSearch
from planner.solvers.portfolio import CONTIGUOUS, PORTFOLIO, Portfolio, Turn, named_solvers, portfolio_of

SOLVERS: Mapping[str, Solver] = named_solvers(
    Exhaustive(), ChainDP(), DownsetDP(), LocalSearch(), OffloadILP(), OffloadLatency(), OffloadBranch()
)
LATENCY = (
    Turn("offload-latency", 0.02),
    Turn("offload-branch", 0.1),
    Turn("offload-latency", 0.9),
    Turn("offload-latency", 1.0),
)
TURNS = MappingProxyType({**PORTFOLIO, Goal.LATENCY: LATENCY, Goal.TRAINING: ()})


@portfolio_of.register
def portfolio_of_offload(table: OffloadTable) -> Portfolio:  # noqa: ARG001  # dispatches on it
    """Return the solvers; training is not among their goals."""
    return Portfolio(SOLVERS, TURNS, CONTIGUOUS)
