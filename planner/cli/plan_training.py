"""`planner plan --goal training`: no slower than what `planner choose` finds for the batch, and what stays idle."""

import argparse
from collections.abc import Iterator
from functools import cache

from graphs.ir import Graph
from planner.cli.models import cluster_of
from planner.planning.make_plan import Search, batch_of
from planner.planning.schedule_sweep import Choice
from planner.planning.training_choice import best_for_batch
from planner.plans.plan import Plan


def fastest_training(
    plan: Plan, graph: Graph, options: argparse.Namespace, search: Search
) -> tuple[Plan, tuple[str, ...]]:
    """The plan, or a faster one if the options leave open how to train; and what to say of it.

    Raises:
        Interrupted: on Ctrl-C, with the plan.
    """
    if not plan.workload.trains or options.cluster is None:
        return plan, ()
    cluster = cluster_of(options)
    asked = (options.schedule, options.micro_batches, options.replicas, options.recompute or options.robust or None)
    best, beyond = plan, None
    if not (any(asked) or plan.constraints or cluster.replicas):

        @cache
        def graph_of(samples: int) -> Graph:
            from graphs.importers.load import load_graph

            own = samples == batch_of(graph)
            return graph if own else load_graph(options.model, samples, True, dict(options.sizes))

        best, beyond = best_for_batch(plan, cluster, graph_of, search)
    return best, tuple(_lines(plan, best, beyond, len(cluster.devices), options))


def _lines(
    first: Plan, plan: Plan, beyond: Choice | None, n_devices: int, options: argparse.Namespace
) -> Iterator[str]:
    """What another way to train brings, and which devices stay idle."""
    if plan is not first:
        work = first.workload
        yield (
            f"{work.micro_batches} micro-batches of {work.batch} by {work.schedule} would be slower: "
            f"{first.samples_per_s:.4g} samples/s"
        )
    if beyond is not None:
        batch = beyond.replicas * beyond.micro_batches * beyond.samples
        yield (
            f"{beyond.replicas} replicas, each by ranks of its own, would train {beyond.samples_per_s:.4g} samples/s: "
            f"planner choose {options.model} --cluster {options.cluster} --global-batch {batch}"
        )
    used = plan.n_used * (plan.cluster.replicas.count if plan.cluster.replicas else 1)
    if used < n_devices:
        yield f"{n_devices - used} of {n_devices} devices stay idle: nothing that was found is faster with them"
