"""What to choose: plan, run, check and show.

The public door: everything a user of the Python API needs is a name of this package. Each is loaded when it is asked
for, so that what needs little starts quickly; the runtime needs torch, which takes seconds to load.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from costmodels.cluster import Cluster as Cluster
    from costmodels.cluster import Device as Device
    from costmodels.cluster import Link as Link
    from costmodels.clusterfile import read_cluster as read_cluster
    from costmodels.clusterwriter import write_cluster as write_cluster
    from costmodels.paper import catalogue_cluster as catalogue_cluster
    from costmodels.workload import Workload as Workload
    from graphs.errors import InputError as InputError
    from planner.calibrate import Care as Care
    from planner.calibrate import calibrate as calibrate
    from planner.calibrate import divisions as divisions
    from planner.constraints import contiguous as contiguous
    from planner.constraints import forbid as forbid
    from planner.constraints import pin as pin
    from planner.constraints import together as together
    from planner.constraints import whole as whole
    from planner.evaluate import Evaluation as Evaluation
    from planner.evaluate import evaluate as evaluate
    from planner.plan import Search as Search
    from planner.plan import plan as plan
    from planner.planfile import load_plan as load_plan
    from planner.planfile import save_plan as save_plan
    from planner.plans import Plan as Plan
    from planner.problem import Goal as Goal
    from planner.problem import Problem as Problem
    from planner.reporter import Reporter as Reporter
    from planner.result import NoPlanError as NoPlanError
    from planner.result import Result as Result
    from planner.result import Status as Status
    from planner.runtime.processes.training_front import HostedTrainer as HostedTrainer
    from planner.runtime.runner import Runner as Runner
    from planner.runtime.runner import start as start
    from planner.runtime.training.recipe import Recipe as Recipe
    from planner.runtime.training.trainer import Trainer as Trainer
    from planner.runtime.training.trainer import train as train
    from planner.solve import solve as solve

HOMES = {
    "Care": "planner.calibrate",
    "Cluster": "costmodels.cluster",
    "Device": "costmodels.cluster",
    "Evaluation": "planner.evaluate",
    "Goal": "planner.problem",
    "HostedTrainer": "planner.runtime.processes.training_front",
    "InputError": "graphs.errors",
    "Link": "costmodels.cluster",
    "NoPlanError": "planner.result",
    "Plan": "planner.plans",
    "Problem": "planner.problem",
    "Recipe": "planner.runtime.training.recipe",
    "Reporter": "planner.reporter",
    "Result": "planner.result",
    "Runner": "planner.runtime.runner",
    "Search": "planner.plan",
    "Status": "planner.result",
    "Trainer": "planner.runtime.training.trainer",
    "Workload": "costmodels.workload",
    "calibrate": "planner.calibrate",
    "catalogue_cluster": "costmodels.paper",
    "contiguous": "planner.constraints",
    "divisions": "planner.calibrate",
    "evaluate": "planner.evaluate",
    "forbid": "planner.constraints",
    "load_plan": "planner.planfile",
    "pin": "planner.constraints",
    "plan": "planner.plan",
    "read_cluster": "costmodels.clusterfile",
    "save_plan": "planner.planfile",
    "solve": "planner.solve",
    "start": "planner.runtime.runner",
    "together": "planner.constraints",
    "whole": "planner.constraints",
    "train": "planner.runtime.training.trainer",
    "write_cluster": "costmodels.clusterwriter",
}
"""Every public name, and the module that has it."""

__all__ = list(HOMES)


class _Door(ModuleType):
    """A package in which a public name comes before a module of the same name, such as `plan`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in HOMES and isinstance(value, ModuleType)):  # what `import planner.plan` would leave here
            super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'planner' has no attribute '{name}'")
    value = getattr(import_module(HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


sys.modules[__name__].__class__ = _Door
