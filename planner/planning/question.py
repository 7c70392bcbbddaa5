"""The question that a plan answers: a model, one or several clusters, a goal, and the open parts of the workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from costmodels.cluster.cluster import Cluster
from costmodels.language_model.model import ModelDescription
from costmodels.language_model.read import has_headers_alone
from costmodels.workload import MICRO_BATCHES, RECOMPUTE_MODES, RecomputeMode, Workload
from graphs.common import checks
from graphs.common.documents import read_json
from graphs.common.errors import InputError
from graphs.importers.sources import model_file
from graphs.ir import Graph
from graphs.rewrites.batch_sizes import SizedGraphs
from planner.parallelism.closed_form.model_file import transformer_of
from planner.parallelism.closed_form.transformer import Transformer
from planner.parallelism.network.training_shapes import of_this_host
from planner.planning.make_plan import Search, batch_of, check_goal
from planner.plans.given import (
    ModelName,
    Named,
    NamedModel,
    fixed_generation,
    generation_model,
    given_cluster,
    given_clusters,
    given_model,
)
from planner.plans.speed import tokens_per_sample
from planner.problem.constraints import Constraint
from planner.problem.problem import Goal
from planner.problem.reporter import SILENT, Reporter

if TYPE_CHECKING:  # torch takes seconds to load
    from torch import nn

    from graphs.program.generation import GenerationProgram
    from graphs.program.program import Program

SCHEDULE = "1f1b"  # of training, unless another one is asked for or found
PROMPT, OUTPUT, SEQUENCES = 512, 128, 1  # of generation, unless others are asked for
GENERATION_ONLY = ("prompt", "output", "sequences", "context", "rows")


@dataclass(frozen=True)
class OpenWorkload:
    """A workload with open ends, as the command line takes it: None leaves a figure to the planner.

    In generation, sequences are in groups of ``rows``, which one pass advances together.

    In training, a step has the samples of ``micro_batches`` micro-batches. Where schedule, micro-batches, recomputation
    and replicas are all None, `planner.plan` takes the fastest way to train as many samples as `MICRO_BATCHES`
    micro-batches have.

    Attributes:
        in_flight: in inference, micro-batches that are in flight at the same time; None for twice the devices.
        optimizer: in training, a name of `costmodels.memory.optimizers.OPTIMIZERS`.
        schedule: in training, the order of a step.
        micro_batches: in training, of a step.
        recompute: in training, what stages run forward again.
        replicas: in training, equal parts of the cluster that train the network together.
        prompt: in generation, tokens of each prompt.
        output: in generation, tokens that each sequence gets after its prompt.
        sequences: in generation, how many are on their way at the same time.
        context: in generation, positions of a cache; None for as many as a prompt and its output need.
        rows: in generation, sequences that one pass advances; None for the faster of all of them, and a part of them
            for each device.

    Raises:
        InputError: as `Workload`, or for a number below 1.
    """

    in_flight: int | None = None
    optimizer: str = "sgd"
    schedule: str | None = None
    micro_batches: int | None = None
    recompute: RecomputeMode | None = None
    replicas: int | None = None
    prompt: int | None = None
    output: int | None = None
    sequences: int | None = None
    context: int | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        checks.check_fields(self, "the workload")
        for name in ("in_flight", "micro_batches", "replicas", *GENERATION_ONLY):
            if getattr(self, name) is not None:
                checks.integer(getattr(self, name), name.replace("_", "-"), 1)
        self.closed(batch=1, n_devices=1, training=True)  # checks the words

    @property
    def leaves_training_open(self) -> bool:
        """Whether nothing says how to train."""
        return (self.schedule, self.micro_batches, self.recompute, self.replicas) == (None,) * 4

    def closed(self, batch: int, n_devices: int, training: bool) -> Workload:
        """Return the workload with a value for everything that was left open.

        Args:
            batch: samples of one micro-batch.
            n_devices: of the cluster.
            training: whether there is a backward pass.
        """
        return Workload(
            mode="training" if training else "inference",
            batch=batch,
            in_flight=self.in_flight or 2 * n_devices,
            optimizer=self.optimizer,
            micro_batches=self.micro_batches or (MICRO_BATCHES if training else 1),
            schedule=self.schedule or SCHEDULE,
            recompute=self.recompute or RECOMPUTE_MODES[0],
        )

    def generating(self, rows: int) -> Workload:
        """Return the workload of generation with a number of rows in a group."""
        prompt, output, sequences = self.prompt or PROMPT, self.output or OUTPUT, self.sequences or SEQUENCES
        groups = -(-sequences // rows)
        return Workload(
            mode="generation",
            batch=rows,
            in_flight=groups,
            free=groups * rows - sequences,
            prompt=prompt,
            output=output,
            context=self.context or prompt + output,
        )

    def generations(self, own: GenerationProgram | None, n_devices: int) -> tuple[Workload, ...]:
        """Return the workloads of generation that are worth a plan on a number of devices.

        A model that has been imported has rows and a context of its own.
        """
        rows = self.rows or (own.rows if own else None)
        asked = replace(self, context=own.context) if own and self.context is None else self
        possible = (rows,) if rows else possible_rows(self.sequences or SEQUENCES, n_devices)
        return tuple(asked.generating(each) for each in possible)


@dataclass(frozen=True)
class PlanQuestion:
    """The question that a plan answers; the fields are the arguments of `planner.plan`, which describes them."""

    model: nn.Module | Program | GenerationProgram | Graph | ModelDescription | ModelName
    cluster: Cluster | Named | Sequence[Cluster | Named]
    example_inputs: Any = None
    goal: Goal = Goal.THROUGHPUT
    workload: Workload | OpenWorkload = OpenWorkload()
    constraints: tuple[Constraint, ...] = ()
    search: Search = field(default_factory=Search)

    def __post_init__(self) -> None:
        checks.instance(self.search, Search, "the search", "a Search")
        checks.instance(self.workload, (Workload, OpenWorkload), "the workload", "a Workload or an OpenWorkload")
        several = checks.instance(self.constraints, (tuple, list), "the constraints", "a tuple of Constraint each")
        for one in several:
            checks.instance(one, Constraint, "a constraint", "what pin, forbid, together, whole or contiguous make")
        object.__setattr__(self, "constraints", tuple(several))
        object.__setattr__(self, "goal", Goal(self.goal))
        if isinstance(self.workload, OpenWorkload):
            open_ends = {name.replace("_", "-"): getattr(self.workload, name) for name in ("schedule", "micro_batches")}
            check_training_only(self.goal, open_ends)
            self._check_lengths(self.workload)
            check_training_only(self.goal, {"replicas": None if self._replicas == 1 else self._replicas})

    def _check_lengths(self, asked: OpenWorkload) -> None:
        for name in GENERATION_ONLY:
            if getattr(asked, name) is not None and not self.generates:
                raise InputError(f"{name} is for generation and the goal is {self.goal}; leave it out")
        if asked.in_flight is not None and self.generates:
            raise InputError("in-flight is not for generation, whose groups follow from sequences and rows; give these")

    @property
    def trains(self) -> bool:
        """Whether the goal is training."""
        return self.goal is Goal.TRAINING

    @property
    def generates(self) -> bool:
        """Whether the goal is generation."""
        return self.goal is Goal.GENERATION

    @cached_property
    def by_layers(self) -> bool:
        """Whether layers are divided instead of operators: of weights alone, or of a config.json for devices elsewhere.

        None of these operators can run here, and layers are what other programs can divide.
        """
        if not self.generates or isinstance(self.model, ModelDescription):
            return self.generates
        name = self.model.name if isinstance(self.model, NamedModel) else self.model
        if not isinstance(name, str | PathLike):
            return False
        if has_headers_alone(name):
            return True
        file = model_file(fspath(name))
        is_config = file is not None and file.suffix.lower() == ".json" and file.is_file()
        return is_config and not any(of_this_host(cluster) for cluster in self.wholes)

    @property
    def is_divided(self) -> bool:
        """Whether there are several clusters to choose from, which are divisions of one machine."""
        return not isinstance(self.cluster, Cluster | str | PathLike)

    @cached_property
    def wholes(self) -> tuple[Cluster, ...]:
        """The clusters before they are divided among replicas."""
        if isinstance(self.cluster, Cluster | str | PathLike):
            return (given_cluster(self.cluster),)
        return tuple(given_clusters(self.cluster))

    @cached_property
    def clusters(self) -> tuple[Cluster, ...]:
        """The clusters that a plan is made for, each divided among the replicas that are asked for."""
        return tuple(whole.divided(self._replicas) for whole in self.wholes)

    @property
    def only_cluster(self) -> Cluster:
        """The cluster of a question that is for one alone; an InputError for several."""
        if self.is_divided:
            raise InputError("several clusters are given; give one")
        return self.clusters[0]

    @cached_property
    def imported(self) -> Program | Graph:
        """The model, imported when it is first asked for; for generation, one token at the whole context."""
        if self.generates:
            return self.generation(self.workloads_on(1)[0]).decode
        return imported_model(self.model, self.example_inputs, self.trains, self.search.reporter)

    @property
    def graph(self) -> Graph:
        """The network for the samples of one micro-batch."""
        return self.imported if isinstance(self.imported, Graph) else self.imported.graph

    @property
    def batch(self) -> int:
        """Samples of one micro-batch."""
        asked = self.model.batch if isinstance(self.model, NamedModel) else None
        return asked or batch_of(self.graph)

    def workload_on(self, n_devices: int) -> Workload:
        """Return the workload of one pass on a number of devices; an InputError for generation."""
        if self.generates:
            raise InputError("the goal generation is for planner.plan alone; take throughput or latency of one pass")
        if isinstance(self.workload, Workload):
            return self.workload
        return self.workload.closed(self.batch, n_devices, self.trains)

    def workloads_on(self, n_devices: int) -> tuple[Workload, ...]:
        """Return the workloads of generation that are worth a plan on a number of devices."""
        if isinstance(self.workload, Workload):
            check_goal(self.goal, self.workload)
            return (self.workload,)
        return self.workload.generations(self._fixed, n_devices)

    def generation(self, workload: Workload) -> GenerationProgram:
        """Return the language model for the rows and the context of a workload, imported when first asked for.

        Raises:
            InputError: if it is no language model with a cache.
        """
        key = workload.batch, workload.context
        if key not in self._generation:
            self._generation[key] = generation_model(self._fixed or self.model, *key, self.search.reporter)
        return self._generation[key]

    @cached_property
    def _fixed(self) -> GenerationProgram | None:
        return fixed_generation(self.model, self.search.reporter)

    @cached_property
    def _generation(self) -> dict[tuple[int, int], GenerationProgram]:
        return {}

    @property
    def leaves_training_open(self) -> bool:
        """Whether the planner may choose how one cluster trains."""
        asked = self.is_divided or self.constraints or self.search.robust or self.clusters[0].replicas
        is_open = isinstance(self.workload, OpenWorkload) and self.workload.leaves_training_open
        return self.trains and is_open and not asked

    @cached_property
    def sized(self) -> SizedGraphs:
        """The network for other numbers of samples; an InputError for those that it cannot be imported for."""
        return SizedGraphs(self._for_samples)

    @cached_property
    def transformer(self) -> Transformer | None:
        """The description of a transformer, if the model is a config.json with equal layers; otherwise None."""
        name = given_model(self.model)
        path = model_file(str(name)) if isinstance(name, NamedModel) else None
        if path is None or path.suffix != ".json" or not path.is_file():
            return None
        try:
            return transformer_of(read_json(path, "model", finite=False), tokens_per_sample(self.graph, self.batch))
        except InputError:  # a graph.json, or a network that is no stack of equal layers
            return None

    @property
    def _replicas(self) -> int:
        return (self.workload.replicas if isinstance(self.workload, OpenWorkload) else None) or 1

    def _for_samples(self, samples: int) -> Graph:
        return self.graph if samples == self.batch else graph_for(self.model, self.example_inputs, samples)


def possible_rows(sequences: int, n_devices: int) -> tuple[int, ...]:
    """Return the numbers of rows that are worth a plan: all sequences, and a part of them for each device.

    Rows of one pass share the reading of the weights; several groups keep several devices busy.
    """
    return tuple(sorted({sequences, -(-sequences // min(sequences, n_devices))}, reverse=True))


def graph_for(model: Any, example_inputs: Any, samples: int, reporter: Reporter = SILENT) -> Graph:
    """Import a model as it is trained, for a number of samples; the reporter receives a step for it.

    Raises:
        InputError: if it cannot be imported for this number; a graph or a program has a number of its own.
    """
    given = given_model(model)
    number = f"{samples:,} sample{'s'[: samples - 1]}"
    if isinstance(given, NamedModel):
        reporter.on_step(f"importing {given} for {number}", 0, 0)
        loaded = replace(given, batch=samples).load(training=True)
        return loaded if isinstance(loaded, Graph) else loaded.graph
    from graphs.program.program import Program

    if isinstance(given, Graph | Program):
        graph = given if isinstance(given, Graph) else given.graph
        if samples != batch_of(graph):
            raise InputError(f"'{graph.name}' is imported for {batch_of(graph)} samples; {number} need its module")
        return graph
    from graphs.importers.from_torch import imported
    from graphs.program.arguments import arguments_of

    reporter.on_step(f"importing a {type(given).__name__} for {number}", 0, 0)
    inputs = None if example_inputs is None else arguments_of(example_inputs).resized(samples)
    return imported(given, inputs, training=True).graph


def check_training_only(goal: Goal, asked: Mapping[str, object]) -> None:
    """Refuse what only a training step has, for another goal.

    Args:
        goal: what the plan is for.
        asked: by the names that a message gives them; None for what is left open.

    Raises:
        InputError: for the first one.
    """
    for name, value in asked.items():
        if value is not None and goal != Goal.TRAINING:
            raise InputError(f"{name} is for training and the goal is {goal}; leave it out")


def imported_model(model: Any, example_inputs: Any, training: bool, reporter: Reporter = SILENT) -> Program | Graph:
    """Return the program of a model, or a graph as it is; the reporter receives a step for a named model.

    Raises:
        InputError: if it is none, cannot be imported, or was imported for training and is not trained.
    """
    given = given_model(model)
    loaded = given.load(training, reporter) if isinstance(given, NamedModel) else given
    if isinstance(loaded, Graph):
        return loaded
    from graphs.importers.from_torch import imported

    program = imported(loaded, example_inputs, training=training)
    if program.training and not training:
        raise InputError(
            f"'{program.graph.name}' was imported as it is trained, which only the goal 'training' is for; "
            "import it without training=True"
        )
    return program
