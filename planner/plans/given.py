"""Arguments that callers may give instead of a record: the name of the file that holds it, or of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.file import read_cluster
from graphs.common import checks
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.weights import WEIGHTS
from planner.plans.files import load_plan
from planner.plans.plan import Plan
from planner.problem.reporter import SILENT, Reporter

if TYPE_CHECKING:  # torch takes seconds to load
    from torch import nn

    from graphs.program.generation import GenerationProgram
    from graphs.program.program import Program

MODEL = "an nn.Module, what an importer made of one, or a model as on the command line"


@dataclass(frozen=True)
class NamedModel:
    """A model by its name, as the command line takes it with ``--batch``, ``--size`` and ``--weights``.

    Attributes:
        name: a .onnx, a .pt2, "package.module:factory", a transformers config.json or its folder, or a graph.json.
        batch: samples of one micro-batch; None for the model's own, or those of the plan that it is given with.
        sizes: of symbolic dimensions of an .onnx file, by their names.
        weights: for generation, what they are kept in, see `planner.with_weights`; None as they are.

    Raises:
        InputError: for a value of another type, a batch below 1, or a kind of weights that is not known.
    """

    name: str | PathLike[str]
    batch: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    weights: str | None = None

    def __post_init__(self) -> None:
        checks.check_fields(self, "the named model")
        if self.batch is not None:
            checks.integer(self.batch, "the batch", 1)
        if self.weights is not None:
            checks.one_of(self.weights, "the weights", WEIGHTS)

    def __str__(self) -> str:
        return fspath(self.name)

    def load(self, training: bool = False, reporter: Reporter = SILENT, like: Graph | None = None) -> Program | Graph:
        """Import the model: its program, or the graph of a graph.json.

        Args:
            training: whether to import it as it is trained.
            reporter: receives a step for the import.
            like: an earlier import, whose batch and symbolic dimensions are taken where this names none.

        Raises:
            InputError: if there is no such model, or it cannot be imported for this batch and these sizes.
        """
        from graphs.importers.load import load

        self._check_weights()
        reporter.on_step(f"importing {self}", 0, 0)
        return load(str(self), self.batch, training, self.sizes, like)

    def load_program(self, training: bool = False, reporter: Reporter = SILENT, like: Graph | None = None) -> Program:
        """Import the model as a program; arguments and errors as for `load`, and an InputError for a graph.json."""
        from graphs.importers.load import load_program

        self._check_weights()
        reporter.on_step(f"importing {self}", 0, 0)
        return load_program(str(self), self.batch, training, self.sizes, like)

    def _check_weights(self) -> None:
        if self.weights is not None:
            raise InputError(
                f"weights in {self.weights} are for generation; for one pass leave them out, or give a function that "
                f'returns planner.with_weights(module, "{self.weights}")'
            )


Sizes: TypeAlias = Mapping[str, Sequence[int] | int]
"""The sizes of passes by the names of `planner.generation_program`."""

Named: TypeAlias = str | PathLike[str]
ModelName: TypeAlias = Named | NamedModel


def given_cluster(value: Cluster | Named) -> Cluster:
    """Return a cluster, or the one in a cluster.toml. Raise InputError for anything else, or a file without one."""
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
    """Return a plan, or the one in a plan.json. Raise InputError for anything else, or a file without one."""
    return value if isinstance(value, Plan) else load_plan(checks.path(value, "the plan", "a Plan or the path of one"))


def given_model(value: Any) -> nn.Module | Program | Graph | NamedModel:
    """Return a model, or its name. Raise InputError for anything else."""
    if isinstance(value, Graph | NamedModel) or _is_model(value):
        return value  # type: ignore[no-any-return]  # it is one of them
    return NamedModel(checks.path(value, "the model", MODEL))


def runnable(model: Program | Graph) -> Program:
    """Return the program of an import; a graph does not run. Raise InputError for a graph."""
    if isinstance(model, Graph):
        raise InputError(f"'{model.name}' is a graph, which cannot run; give the model it came from")
    return model


def _is_model(value: Any) -> bool:
    """Return whether a value is a module or a program; torch is not loaded for a name."""
    if isinstance(value, str | PathLike):
        return False
    from graphs.program.program import Program

    return isinstance(value, Program) or hasattr(value, "forward")


def is_generation_program(value: object) -> TypeGuard[GenerationProgram]:
    """Return whether a value is a language model that was imported with its cache; torch is not loaded for a name."""
    if isinstance(value, str | PathLike | Graph | NamedModel):
        return False
    from graphs.program.generation import GenerationProgram

    return isinstance(value, GenerationProgram)


def fixed_generation(value: Any, reporter: Reporter = SILENT) -> GenerationProgram | None:
    """Return a language model whose rows and context are fixed: an imported one, or a .pt2; None for another model.

    Raises:
        InputError: if the value is no model, or a .pt2 that cannot generate.
    """
    if is_generation_program(value):
        return value
    named = given_model(value)
    if not isinstance(named, NamedModel) or _suffix(named) != ".pt2":
        return None
    from graphs.importers.generation import generation_program

    reporter.on_step(f"importing {named}", 0, 0)
    return generation_program(_language_model(named))


def _suffix(named: NamedModel) -> str:
    """Return how the name of a model's file ends; empty for a factory."""
    from graphs.importers.sources import model_file

    file = model_file(str(named))
    return "" if file is None else file.suffix.lower()


def generation_model(
    value: Any, rows: int, context: int, reporter: Reporter = SILENT, sizes: Sizes | None = None
) -> GenerationProgram:
    """Return a model as a language model that generates.

    Args:
        value: a module of transformers, what `planner.generation_program` made of one, the path of a config.json or its
            folder, or of a .pt2 with its cache, "package.module:factory" of a function that returns such a module, or a
            `NamedModel`.
        rows: sequences that one pass advances.
        context: positions of a cache.
        reporter: receives a step for the import.
        sizes: of passes besides a token at the whole context; those of the importer by default.

    Raises:
        InputError: if it is no language model with a cache, or was imported as another model.
    """
    if is_generation_program(value):
        return value
    given = given_model(value)
    if isinstance(given, Graph) or not (isinstance(given, NamedModel) or hasattr(given, "forward")):
        raise InputError(
            f"'{(given if isinstance(given, Graph) else given.graph).name}' was imported without its cache, and "
            "generation needs it; give the module or its config.json, or what planner.generation_program makes of it"
        )
    from graphs.importers.generation import generation_program

    if isinstance(given, NamedModel):
        reporter.on_step(f"importing {given} for {rows:,} sequence{'s'[: rows - 1]} at once", 0, 0)
        source = _language_model(given)
    else:
        source = cast("nn.Module", given)
    chosen: Mapping[str, Any] = sizes or {}
    return generation_program(source, rows=rows, context=context, **chosen)


def _language_model(named: NamedModel) -> nn.Module | str:
    """Return the module of a factory, or the path of a config.json or of a .pt2."""
    from graphs.importers.generation import config_model
    from graphs.importers.load import call_factory
    from graphs.importers.sources import CONFIG, model_file
    from graphs.importers.weights import with_weights

    if named.batch is not None or named.sizes:
        raise InputError(
            "--batch and --size are of one pass; leave them out: a plan for generation is made with --sequences, "
            "--rows and --context"
        )
    file = model_file(str(named))
    if file is None:
        module = call_factory(str(named))[0]
        return module if named.weights is None else with_weights(module, named.weights)
    if file.suffix.lower() not in (".json", ".pt2"):
        raise InputError(
            f"'{named}' has passes of one size, and generation needs some over a prompt and one for each token, with a "
            f"cache of a fixed size; give the {CONFIG} that it was made from, a function that returns its module of "
            "transformers, or a .pt2 that was exported with its cache"
        )
    if named.weights is None:
        return str(file)
    if file.suffix.lower() == ".pt2":
        raise InputError(f"the weights of '{named}' are those of its export; export it with weights in {named.weights}")
    return with_weights(config_model(file), named.weights)


def generation_for(plan: Plan, value: Any, reporter: Reporter = SILENT) -> GenerationProgram:
    """Return the language model of a plan for generation, imported in the plan's sizes.

    Raises:
        InputError: as `generation_model`.
    """
    work, phases = plan.workload, [each.phase for each in plan.phases]
    *shorter, source = sorted(phase.length for phase in phases if not phase.tokens) or [0]
    sizes: dict[str, Sequence[int] | int] = {
        "chunks": sorted({phase.tokens for phase in phases} - {0, 1}, reverse=True) or shorter,
        "lengths": sorted({phase.length for phase in phases if phase.tokens} - {work.context}),
    }
    if "source" in plan.graph.tensor and plan.graph.tensor["source"].dtype == "int64":
        sizes["source"] = source
    return generation_model(value, work.batch, work.context, reporter, sizes)
