"""Plan, run, check and show: the Python API.

Everything that a user of the Python API needs is a name of this package. A name is loaded on first use, so that a
program that needs few of them starts quickly; the runtime needs torch, which takes seconds to load.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from graphs.common.notebook import VIEWS

if TYPE_CHECKING:
    from costmodels.cluster.cluster import Cluster as Cluster
    from costmodels.cluster.cluster import Device as Device
    from costmodels.cluster.cluster import Link as Link
    from costmodels.cluster.file import read_cluster as read_cluster
    from costmodels.cluster.links import Level as Level
    from costmodels.cluster.one_line import catalogue_cluster as catalogue_cluster
    from costmodels.cluster.writer import write_cluster as write_cluster
    from costmodels.language_model.model import ModelDescription as ModelDescription
    from costmodels.language_model.read import read_language_model as read_language_model
    from costmodels.workload import Workload as Workload
    from graphs.common.errors import InputError as InputError
    from graphs.importers.generation import generation_program as generation_program
    from graphs.importers.weights import with_weights as with_weights
    from planner.explanations.diff import diff as diff
    from planner.explanations.elsewhere import elsewhere as elsewhere
    from planner.explanations.explain import explain as explain
    from planner.explanations.simulate import WhatIf as WhatIf
    from planner.explanations.simulate import simulate as simulate
    from planner.exports.import_map import import_map as import_map
    from planner.exports.rows import export_row as export_row
    from planner.exports.targets import export as export
    from planner.generation.fit import fit as fit
    from planner.generation.plan import GenerationPlan as GenerationPlan
    from planner.generation.serve import ServingLimits as ServingLimits
    from planner.generation.serve import serve as serve
    from planner.parallelism.closed_form.config_file import load_config as load_config
    from planner.planning.calibrate import CalibrationOptions as CalibrationOptions
    from planner.planning.calibrate import calibrate as calibrate
    from planner.planning.calibrate import divisions as divisions
    from planner.planning.choose import choose as choose
    from planner.planning.choose_options import ChooseOptions as ChooseOptions
    from planner.planning.find_plan import plan as plan
    from planner.planning.make_plan import Search as Search
    from planner.planning.question import OpenWorkload as OpenWorkload
    from planner.planning.tune import Tuned as Tuned
    from planner.planning.tune import tune as tune
    from planner.plans.files import load_plan as load_plan
    from planner.plans.files import save_plan as save_plan
    from planner.plans.given import NamedModel as NamedModel
    from planner.plans.plan import Plan as Plan
    from planner.problem.constraints import contiguous as contiguous
    from planner.problem.constraints import forbid as forbid
    from planner.problem.constraints import pin as pin
    from planner.problem.constraints import together as together
    from planner.problem.constraints import whole as whole
    from planner.problem.evaluate import Evaluation as Evaluation
    from planner.problem.evaluate import evaluate as evaluate
    from planner.problem.problem import Goal as Goal
    from planner.problem.problem import Problem as Problem
    from planner.problem.reporter import Reporter as Reporter
    from planner.problem.result import NoPlanError as NoPlanError
    from planner.problem.result import Result as Result
    from planner.problem.result import Status as Status
    from planner.runtime.checkpoint.shard import shard as shard
    from planner.runtime.distributed.training.hosted_trainer import HostedTrainer as HostedTrainer
    from planner.runtime.generation.runner import GenerationRunner as GenerationRunner
    from planner.runtime.generation.sampling import Sampling as Sampling
    from planner.runtime.hybrid.trainer import HybridTrainer as HybridTrainer
    from planner.runtime.inference.runner import Runner as Runner
    from planner.runtime.start import start as start
    from planner.runtime.start import train as train
    from planner.runtime.training.options import TrainerOptions as TrainerOptions
    from planner.runtime.training.trainer import Trainer as Trainer
    from planner.runtime.verification.verify import verify as verify
    from planner.solvers.solve import solve as solve
    from planner.view.show import show as show

HOMES = {
    "CalibrationOptions": "planner.planning.calibrate",
    "ChooseOptions": "planner.planning.choose_options",
    "Cluster": "costmodels.cluster.cluster",
    "Device": "costmodels.cluster.cluster",
    "Evaluation": "planner.problem.evaluate",
    "GenerationPlan": "planner.generation.plan",
    "GenerationRunner": "planner.runtime.generation.runner",
    "Goal": "planner.problem.problem",
    "HostedTrainer": "planner.runtime.distributed.training.hosted_trainer",
    "HybridTrainer": "planner.runtime.hybrid.trainer",
    "InputError": "graphs.common.errors",
    "Level": "costmodels.cluster.links",
    "Link": "costmodels.cluster.cluster",
    "ModelDescription": "costmodels.language_model.model",
    "NamedModel": "planner.plans.given",
    "NoPlanError": "planner.problem.result",
    "OpenWorkload": "planner.planning.question",
    "Plan": "planner.plans.plan",
    "Problem": "planner.problem.problem",
    "Reporter": "planner.problem.reporter",
    "Result": "planner.problem.result",
    "Runner": "planner.runtime.inference.runner",
    "Sampling": "planner.runtime.generation.sampling",
    "Search": "planner.planning.make_plan",
    "ServingLimits": "planner.generation.serve",
    "Status": "planner.problem.result",
    "Trainer": "planner.runtime.training.trainer",
    "TrainerOptions": "planner.runtime.training.options",
    "Tuned": "planner.planning.tune",
    "WhatIf": "planner.explanations.simulate",
    "Workload": "costmodels.workload",
    "calibrate": "planner.planning.calibrate",
    "catalogue_cluster": "costmodels.cluster.one_line",
    "choose": "planner.planning.choose",
    "contiguous": "planner.problem.constraints",
    "diff": "planner.explanations.diff",
    "divisions": "planner.planning.calibrate",
    "elsewhere": "planner.explanations.elsewhere",
    "evaluate": "planner.problem.evaluate",
    "explain": "planner.explanations.explain",
    "export": "planner.exports.targets",
    "export_row": "planner.exports.rows",
    "fit": "planner.generation.fit",
    "forbid": "planner.problem.constraints",
    "import_map": "planner.exports.import_map",
    "generation_program": "graphs.importers.generation",
    "load_config": "planner.parallelism.closed_form.config_file",
    "load_plan": "planner.plans.files",
    "pin": "planner.problem.constraints",
    "plan": "planner.planning.find_plan",
    "read_cluster": "costmodels.cluster.file",
    "read_language_model": "costmodels.language_model.read",
    "save_plan": "planner.plans.files",
    "serve": "planner.generation.serve",
    "shard": "planner.runtime.checkpoint.shard",
    "show": "planner.view.show",
    "simulate": "planner.explanations.simulate",
    "solve": "planner.solvers.solve",
    "start": "planner.runtime.start",
    "together": "planner.problem.constraints",
    "train": "planner.runtime.start",
    "tune": "planner.planning.tune",
    "verify": "planner.runtime.verification.verify",
    "whole": "planner.problem.constraints",
    "with_weights": "graphs.importers.weights",
    "write_cluster": "costmodels.cluster.writer",
}
"""Every public name, and the module that has it."""

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        from graphs.common.errors import nearest  # late: only errors need it

        raise AttributeError(f"module 'planner' has no attribute '{name}'{nearest(name, HOMES)}")
    value = getattr(import_module(HOMES[name]), name)
    globals()[name] = value
    return value


def _plan_html(plan: Any) -> str:
    from planner.view.notebook import plan_html  # late: only notebooks need it

    return plan_html(plan)


VIEWS["Plan"] = _plan_html


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
