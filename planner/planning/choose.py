"""choose: ways to train a network on many devices, of which none beats another in time, memory and devices."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.fabric import fabric_of
from costmodels.units import format_bytes
from graphs.common import checks
from graphs.common.brief import Brief
from graphs.common.documents import read_json
from graphs.common.errors import InputError
from graphs.files import write_text
from graphs.importers.sources import model_file
from graphs.ir import Graph
from graphs.rewrites.batch_sizes import SizedGraphs
from planner.parallelism.closed_form.config import ParallelConfig, TrainingSetting, training_setting
from planner.parallelism.closed_form.config_file import config_to_dict
from planner.parallelism.closed_form.model_file import transformer_of
from planner.parallelism.closed_form.room import what_fits
from planner.parallelism.closed_form.search import ConfigRow, ConfigTable, choose_config
from planner.parallelism.exports.parallel_config import target_limits
from planner.parallelism.network.schedule_sweep import trade_offs
from planner.parallelism.network.training_rows import Choice, TradeOffs, undominated
from planner.planning.choose_options import (
    ChooseOptions,
    check_closed_form_schedule,
    check_for_transformers_only,
    limited,
)
from planner.planning.make_plan import Search
from planner.planning.question import graph_for
from planner.planning.training_choice import choice_plan
from planner.plans.files import save_plan
from planner.plans.given import ModelName, Named, NamedModel, given_cluster, given_model
from planner.problem.result import Interrupted, Status

if TYPE_CHECKING:  # torch takes seconds to load
    from torch import nn

    from graphs.program.program import Program

RowT = TypeVar("RowT")

GRADIENT_BYTES = {"float32": 4, "bfloat16": 2}
SHOWN = 12
ALIKE = 1.25  # a row is left out if a faster one takes less than this many times its memory
NO_TIME = "nothing was found in time; allow more with --time-limit"
NO_ROOM = "nothing fits into memory; take more or larger devices, or a smaller batch"


class Choices(Brief, ABC, Generic[RowT]):
    """Ways to train, of which a user takes one."""

    @abstractmethod
    def rows(self, all: bool = False) -> tuple[RowT, ...]:
        """Return the ways, the fastest first; unless ``all``, those that are worth choosing between."""

    @abstractmethod
    def save_row(self, row: RowT, output: Path) -> None:
        """Write one of the ways for ``planner run``."""

    def save(self, output: str | PathLike[str], row: int = 1, all: bool = False) -> None:
        """Write a row for ``planner run``: a configuration, or a plan where no devices share layers or states.

        Args:
            output: the file.
            row: its number among the `rows`, from 1.
            all: whether the number counts all rows.

        Raises:
            InputError: if there is no such row, or the file cannot be written.
        """
        path = checks.path(output, "the output", "the path of a file")
        self.save_row(row_of(self.rows(all), row), path)


@dataclass(frozen=True)
class TransformerChoices(Choices[ConfigRow]):
    """Ways to train a transformer, priced in closed form.

    Attributes:
        setting: the training problem with its demands.
        found: all configurations, with a proof of how good the fastest is.
    """

    setting: TrainingSetting
    found: ConfigTable

    def rows(self, all: bool = False) -> tuple[ConfigRow, ...]:
        """Return the configurations, the fastest first; unless ``all``, without those near a better one."""
        return self.found.rows if all else worthwhile(self.found.rows)[:SHOWN]

    @property
    def advice(self) -> str:
        """The changes that would give rows; empty if there are rows."""
        if self.found.rows:
            return ""
        if self.found.status is Status.UNKNOWN:
            return NO_TIME
        need, changes = self.found.least_need, list(what_fits(self.setting))
        takes = f": the way that needs the least takes {format_bytes(need.n_bytes)} of a device, and " if need else ""
        room = f"a plan may use {format_bytes(need.usable_bytes)} of it" if need else ""
        way_out = f"{' or '.join(changes)} fits; or " if changes else ""
        return f"nothing fits{takes}{room}; {way_out}add devices or memory, or leave more open"

    def save_row(self, row: ConfigRow, output: Path) -> None:
        """Write the configuration of a row."""
        save_config(row.config, output)


@dataclass(frozen=True)
class NetworkChoices(Choices[Choice]):
    """Ways to train any network, priced operator by operator.

    Attributes:
        cluster: the devices that may be used.
        optimizer: of the training step.
        sweep: all ways that were found and meet the demands.
        graph_of: the network for a number of samples.
    """

    cluster: Cluster
    optimizer: str
    sweep: TradeOffs
    graph_of: SizedGraphs

    def rows(self, all: bool = False) -> tuple[Choice, ...]:
        """Return the ways, the fastest first; unless ``all``, those that no other one dominates."""
        return self.sweep.choices if all else undominated(self.sweep.choices)

    @property
    def advice(self) -> str:
        """The changes that would give rows; empty if there are rows."""
        if self.sweep.choices:
            return ""
        return NO_TIME if self.sweep.unsearched else NO_ROOM

    def save_row(self, row: Choice, output: Path) -> None:
        """Write the plan of a row, or its configuration where devices share layers or states."""
        if row.config is None:
            graph = self.graph_of.imported(row.samples)
            save_plan(choice_plan(graph, self.cluster, row, self.optimizer), output)
        else:
            save_config(row.config, output)


def choose(
    model: nn.Module | Program | Graph | ModelName,
    example_inputs: Any = None,
    *,
    cluster: Cluster | Named,
    global_batch: int,
    choose_options: ChooseOptions | None = None,
) -> TransformerChoices | NetworkChoices:
    """Choose how to train on many devices: parallelism, ZeRO, recomputation, micro-batches and schedule.

    Args:
        model: a transformer by the path of its config.json, or of JSON with its numbers, is priced in closed form; any
            other model that `planner.plan` takes, operator by operator.
        example_inputs: as for `planner.plan`; other numbers of samples repeat the first one.
        cluster: the devices, or the path of a cluster.toml.
        global_batch: samples of a step, of all replicas together.
        choose_options: the demands, and the time of the search.

    Returns:
        The rows, possibly none; ``advice`` then says what to change.

    Raises:
        InputError: if something is not of its type, the model cannot be imported, or the demands cannot be met
            together: the message names the nearest that can.
        Interrupted: on Ctrl-C, with the rows until then, for a network that is priced operator by operator.
    """
    options = ChooseOptions() if choose_options is None else choose_options
    checks.instance(options, ChooseOptions, "the options of choose", "a ChooseOptions")
    checks.integer(global_batch, "the global batch", 1)
    devices = limited(given_cluster(cluster), options.memory_bytes)
    given = given_model(model)
    if isinstance(given, NamedModel) and (path := numbers_of(given)) is not None:
        if given.sizes:
            raise InputError(f"'{path}' has no symbolic dimension '{min(given.sizes)}'; leave the sizes out")
        return _transformer(path, devices, global_batch, options)
    return _network(given, example_inputs, devices, global_batch, options)


def numbers_of(model: NamedModel) -> Path | None:
    """Return the JSON file with the numbers of a transformer; None for another model."""
    path = model_file(str(model))
    return path if path is not None and path.suffix == ".json" else None


def save_config(config: ParallelConfig, output: Path) -> None:
    """Write a configuration for ``planner run``."""
    write_text(json.dumps(config_to_dict(config), indent=2) + "\n", output)


def row_of(rows: Sequence[RowT], number: int) -> RowT:
    """Return the row of a number, counted from 1.

    Raises:
        InputError: if there is none.
    """
    if not 1 <= checks.integer(number, "the row", 1) <= len(rows):
        raise InputError(f"there is no row {number}; there are {len(rows)}")
    return rows[number - 1]


def _transformer(path: Path, cluster: Cluster, batch: int, options: ChooseOptions) -> TransformerChoices:
    check_closed_form_schedule(options.schedule)
    document = read_json(path, "model", finite=False)
    try:
        network = transformer_of(document, options.sequence, options.flash_attention)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    gradient_bytes = GRADIENT_BYTES[options.gradients]
    setting = training_setting(network, cluster, batch, options.demands, gradient_bytes, options.optimizer)
    if options.to is not None:
        limits = target_limits(setting, options.to)
        setting = replace(setting, demands=replace(setting.demands, limits=limits))
    found = choose_config(setting, options.time_limit_s, options.reporter)
    if not found.shapes:
        raise InputError("no way keeps all that is asked for at once; leave one of the options open")
    return TransformerChoices(setting, found)


def _network(model: Any, example_inputs: Any, cluster: Cluster, batch: int, options: ChooseOptions) -> NetworkChoices:
    asked = {"sequence": options.sequence, "flash_attention": options.flash_attention, "expert": options.expert}
    check_for_transformers_only(model, asked)
    if options.gradients != options.precision == "float32":
        raise InputError("gradients in bfloat16 are for the precision bfloat16; take both, or neither")
    cluster = cluster if options.devices is None else cluster.first(options.devices)
    fabric_of(cluster)  # refuses devices that do not reach each other
    graph_of = SizedGraphs(partial(graph_for, model, example_inputs, reporter=options.reporter))
    search = Search(time_limit_s=options.time_limit_s, reporter=options.reporter)
    made = partial(NetworkChoices, cluster, options.optimizer, graph_of=graph_of)
    try:
        sweep = trade_offs(graph_of, cluster, batch, search, options.optimizer, options.demands)
    except Interrupted as stopped:
        raise Interrupted(made(sweep=stopped.best)) from stopped
    kept = tuple(choice for choice in sweep.choices if _keeps(choice, options))
    if sweep.choices and not kept:
        raise InputError(_none_kept(sweep.choices, options, model))
    return made(sweep=replace(sweep, choices=kept))


def _keeps(choice: Choice, options: ChooseOptions) -> bool:
    """Return whether a choice meets the demands."""
    pairs = (
        (options.pipeline, len(choice.devices)),
        (options.schedule, choice.schedule if len(choice.devices) > 1 else options.schedule),
        (options.recompute, choice.recomputed),
    )
    return all(asked in (None, own) for asked, own in pairs)


def _none_kept(choices: Sequence[Choice], options: ChooseOptions, model: object) -> str:
    """Return the message that no choice meets the demands, with the nearest number of stages."""
    known = {len(choice.devices) for choice in choices}
    if options.pipeline is None or options.pipeline in known:
        return "no way keeps all that is asked for at once; leave one of the options open"
    asked = options.pipeline
    near = min(known, key=lambda number: (abs(number - asked), number))
    name = model if isinstance(model, NamedModel) else "the model"
    return (
        f"no row has pipeline = {asked}: {name} cannot be cut so, or fewer of the devices are faster; the nearest that "
        f"works is {near}"
    )


def worthwhile(rows: Sequence[ConfigRow]) -> tuple[ConfigRow, ...]:
    """Return the rows without those that save little memory where a faster one has as few devices."""
    kept: list[ConfigRow] = []
    for row in rows:
        if not any(
            other.config.devices <= row.config.devices and other.price.peak_bytes <= ALIKE * row.price.peak_bytes
            for other in kept
        ):
            kept.append(row)
    return tuple(kept)
