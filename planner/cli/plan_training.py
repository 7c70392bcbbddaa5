"""`planner plan --goal training`: no slower than what `planner choose` finds for the batch, and what stays idle."""

import argparse
import json
from collections.abc import Iterator
from typing import NamedTuple

from costmodels.cluster import Cluster
from costmodels.units import format_rate
from graphs.documents import read_json
from graphs.errors import InputError
from graphs.files import write_text
from graphs.importers.sources import file_of
from graphs.ir import Graph
from graphs.rewrites.batch_sizes import SizedGraphs
from planner.cli.models import cluster_of, constraints_of, workload_of
from planner.planning.make_plan import Search, batch_of
from planner.planning.schedule_sweep import trade_offs
from planner.planning.training_choice import best_for_batch, best_in_closed_form
from planner.planning.training_rows import Choice
from planner.plans.plan import Plan
from planner.plans.speed import tokens_per_sample
from planner.problem.hybrid_training.config import ParallelConfig
from planner.problem.hybrid_training.config_file import config_to_dict
from planner.problem.hybrid_training.model_file import transformer_of
from planner.problem.problem import Goal

CLOSED_FORM_SHARE = 0.5  # of the time of the search, for a config.json


class FasterRow(NamedTuple):
    """A configuration that is no plan.json, and how fast it is."""

    config: ParallelConfig
    samples_per_s: float


def fastest_training(
    plan: Plan, graph: Graph, options: argparse.Namespace, search: Search
) -> tuple[Plan, tuple[str, ...]]:
    """The plan, or a faster one if the options leave open how to train; and what to say of it.

    A configuration that no plan.json holds is written beside it if it is faster still. Raise Interrupted on Ctrl-C,
    with the plan.
    """
    if not plan.workload.trains or options.cluster is None:
        return plan, ()
    cluster = cluster_of(options)
    best, beyond, row = plan, None, None
    if _open(options, cluster) and not plan.constraints:
        work = plan.workload
        best, beyond = best_for_batch(plan, cluster, _graph_of(graph, options), search)
        row = _faster(beyond, graph, cluster, options, work.batch * work.micro_batches, search)
        if row is not None and row.samples_per_s <= best.samples_per_s:
            row = None
    lines = [*_lines(plan, best, beyond, len(cluster.devices), options)]
    return best, (*lines, *([_written(row, options)] if row else []))


def training_without_plan(graph: Graph, cluster: Cluster, options: argparse.Namespace, search: Search) -> Iterator[str]:
    """Where no plan trains: the configuration that trains the batch all the same, written."""
    asked = options.goal == Goal.TRAINING and options.cluster is not None and not constraints_of(options)
    if not asked or not _open(options, cluster):
        return
    work = workload_of(options, options.batch or batch_of(graph), 1)
    batch = work.batch * work.micro_batches
    part = search.part(1 - CLOSED_FORM_SHARE)
    found = trade_offs(_graph_of(graph, options), cluster, batch, options.optimizer, part)
    first = next((choice for choice in found.choices if choice.config is not None), None)
    if row := _faster(first, graph, cluster, options, batch, search):
        yield _written(row, options)


def _open(options: argparse.Namespace, cluster: Cluster) -> bool:
    """Whether the options leave open how to train."""
    asked = (options.schedule, options.micro_batches, options.replicas, options.recompute or options.robust or None)
    return not (any(asked) or cluster.replicas)


def _graph_of(graph: Graph, options: argparse.Namespace) -> SizedGraphs:
    """The network for a number of samples."""

    def imported(samples: int) -> Graph:
        from graphs.importers.load import load_graph

        own = samples == batch_of(graph)
        return graph if own else load_graph(options.model, samples, True, dict(options.sizes))

    return SizedGraphs(imported)


def _faster(
    choice: Choice | None, graph: Graph, cluster: Cluster, options: argparse.Namespace, batch: int, search: Search
) -> FasterRow | None:
    """The faster of a choice and of what the closed forms find for a config.json; None for neither."""
    rows = [FasterRow(choice.config, choice.samples_per_s)] if choice and choice.config else []
    path = file_of(options.model)
    if path is not None and path.suffix == ".json" and path.is_file():
        try:
            network = transformer_of(read_json(path, "model", finite=False), tokens_per_sample(graph, batch_of(graph)))
        except InputError:  # a graph.json, or a network that is no stack of equal layers
            return rows[0] if rows else None
        found = best_in_closed_form(network, cluster, batch, options.optimizer, search.part(CLOSED_FORM_SHARE))
        rows += [FasterRow(found.config, batch / found.price.step_s)] if found else []
    return max(rows, key=lambda row: row.samples_per_s, default=None)


def _written(row: FasterRow, options: argparse.Namespace) -> str:
    """Write a configuration beside the plan, and say what it brings."""
    what = f"{row.config.title} with ZeRO {row.config.zero}"
    output = options.output.with_name(f"{options.output.stem}-row.json")
    how = f"{output}; planner run {output} {options.model} trains it"
    if output.exists() and not options.force:
        how = f"'{output}' is there already, and --force overwrites it"
    else:
        write_text(json.dumps(config_to_dict(row.config), indent=2) + "\n", output)
    return f"ranks that share layers or states would train {format_rate(row.samples_per_s)} samples/s: {what} → {how}"


def _lines(
    first: Plan, plan: Plan, beyond: Choice | None, n_devices: int, options: argparse.Namespace
) -> Iterator[str]:
    """What another way to train brings, and which devices stay idle."""
    if plan is not first:
        work = first.workload
        yield (
            f"{work.micro_batches} micro-batches of {work.batch} by {work.schedule} would be slower: "
            f"{format_rate(first.samples_per_s)} samples/s"
        )
    if beyond is not None and beyond.config is None:
        batch = beyond.replicas * beyond.micro_batches * beyond.samples
        yield (
            f"{beyond.replicas} replicas, each by ranks of its own, would train {format_rate(beyond.samples_per_s)} "
            f"samples/s: planner choose {options.model} --cluster {options.cluster} --global-batch {batch}"
        )
    used = plan.n_used * (plan.cluster.replicas.count if plan.cluster.replicas else 1)
    if used < n_devices:
        yield f"{n_devices - used} of {n_devices} devices stay idle: nothing that was found is faster with them"
