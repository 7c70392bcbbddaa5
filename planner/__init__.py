"""What to choose: plan, run, check and show.

The public door: everything a user of the Python API needs is a name of this package.
"""

from typing import TYPE_CHECKING, Any

from costmodels.cluster import Cluster, Device, Link
from costmodels.clusterfile import read_cluster, write_cluster
from costmodels.paper import catalogue_cluster
from costmodels.workload import Workload
from graphs.errors import InputError
from planner.calibrate import Care, calibrate
from planner.constraints import contiguous, forbid, pin, together
from planner.evaluate import Evaluation, evaluate
from planner.plan import NoPlanError, Search, plan
from planner.plans import Plan, load_plan, save_plan
from planner.problem import Goal, Problem
from planner.reporter import Reporter
from planner.result import Result, Status
from planner.solve import solve

if TYPE_CHECKING:
    from planner.runtime.runner import Runner, start

__all__ = [
    "Care",
    "Cluster",
    "Device",
    "Evaluation",
    "Goal",
    "InputError",
    "Link",
    "NoPlanError",
    "Plan",
    "Problem",
    "Reporter",
    "Result",
    "Runner",
    "Search",
    "Status",
    "Workload",
    "calibrate",
    "catalogue_cluster",
    "contiguous",
    "evaluate",
    "forbid",
    "load_plan",
    "pin",
    "plan",
    "read_cluster",
    "save_plan",
    "solve",
    "start",
    "together",
    "write_cluster",
]


def __getattr__(name: str) -> Any:
    """The runtime needs torch, which takes seconds to load: it comes when it is asked for."""
    if name in ("Runner", "start"):
        from planner.runtime import runner

        return getattr(runner, name)
    raise AttributeError(f"module 'planner' has no attribute '{name}'")
