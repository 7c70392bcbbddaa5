"""What callers may give instead of a record: the name of the file that holds it."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from costmodels.cluster import Cluster
from costmodels.clusterfile import read_cluster
from graphs import checks
from graphs.errors import InputError
from graphs.ir import Graph
from planner.plans.files import load_plan
from planner.plans.plan import Plan

if TYPE_CHECKING:  # torch takes seconds to load
    from torch import nn

    from graphs.program.program import Program

Named: TypeAlias = str | PathLike[str]

MODEL = "an nn.Module, what an importer made of one, or a model as on the command line"


def given_cluster(value: Cluster | Named) -> Cluster:
    """A cluster, or what its cluster.toml holds. Raise InputError for anything else, or a file that holds none."""
    if isinstance(value, Cluster):
        return value
    return read_cluster(checks.path(value, "the cluster", "a Cluster or the path of a cluster.toml"))


def given_clusters(value: Iterable[Cluster | Named]) -> list[Cluster]:
    """Several of them. Raise InputError for anything else, or none."""
    several = checks.instance(value, (tuple, list), "the cluster", "a Cluster, the path of a cluster.toml, or several")
    if not several:
        raise InputError("there is no cluster; give at least one")
    return [given_cluster(one) for one in several]


def given_plan(value: Plan | Named) -> Plan:
    """A plan, or what its plan.json holds. Raise InputError for anything else, or a file that holds none."""
    return value if isinstance(value, Plan) else load_plan(checks.path(value, "the plan", "a Plan or the path of one"))


def given_model(value: Any, batch: int | None = None, training: bool = False) -> nn.Module | Program | Graph:
    """A model; one that is named as on the command line is imported.

    Raise InputError for anything else, or a model that cannot be imported.
    """
    if isinstance(value, Graph) or _is_model(value):
        return cast("nn.Module | Program | Graph", value)
    from graphs.importers.load import load

    return load(str(checks.path(value, "the model", MODEL)), batch, training)


def given_program(value: Any, batch: int | None, training: bool) -> nn.Module | Program:
    """Likewise a model that runs, which a graph does not."""
    if _is_model(value):
        return cast("nn.Module | Program", value)
    from graphs.importers.load import load_program

    return load_program(str(checks.path(value, "the model", MODEL)), batch, training)


def _is_model(value: Any) -> bool:
    """Whether it is a module, or what an importer made of one; a name does not load torch."""
    if isinstance(value, str | PathLike):
        return False
    from graphs.program.program import Program

    return isinstance(value, Program) or hasattr(value, "forward")
