"""From a choice among schedules, devices, replicas and micro-batches to a plan; and the best for a batch."""

from dataclasses import replace

from costmodels.cluster.cluster import Cluster
from costmodels.workload import Workload
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.rewrites.batch_sizes import SizedGraphs
from planner.parallelism.closed_form.config import training_setting
from planner.parallelism.closed_form.search import ConfigRow, choose_config
from planner.parallelism.closed_form.transformer import Transformer
from planner.parallelism.network.schedule_sweep import trade_offs
from planner.parallelism.network.training_rows import Choice
from planner.parallelism.network.training_shapes import of_this_host
from planner.planning.make_plan import Search, make_plan
from planner.planning.training_ways import WaysInTurns, ways_to_train
from planner.plans.plan import Plan, plan_by_hand
from planner.problem.deadline import Deadline
from planner.problem.problem import Goal
from planner.problem.result import Interrupted

BEYOND = 0.3  # of the time, for choices that no plan can be
EVEN = 1e-6  # two times that are the same


def choice_plan(graph: Graph, cluster: Cluster, choice: Choice, optimizer: str, time_limit_s: float = 1.0) -> Plan:
    """Return the plan of a choice, or one with better stages if they are found, with a bound.

    Args:
        graph: the network for the samples of the choice's micro-batches.
        cluster: that the choice was made for.
        choice: from `trade_offs`.
        optimizer: a name of an optimizer of `Workload`.
        time_limit_s: of the search for better stages.
    """
    work = Workload(
        "training",
        batch=choice.samples,
        optimizer=optimizer,
        micro_batches=choice.micro_batches,
        schedule=choice.schedule,
        recompute=choice.recompute,
    )
    part = cluster.first(choice.n_devices).divided(choice.replicas)
    found = make_plan(graph, part, Goal.TRAINING, work, (), Search(time_limit_s=time_limit_s, rewrites="none"))
    chosen = replace(plan_by_hand(found, choice.placement), solver="pipeline")
    return chosen if chosen.latency_s < found.latency_s else found


def best_for_batch(plan: Plan, cluster: Cluster, graph_of: SizedGraphs, search: Search) -> tuple[Plan, Choice | None]:
    """Return the plan, or a faster one for the same batch under another schedule, replicas or micro-batches.

    Args:
        plan: for one way to train.
        cluster: that it was made for, before it was divided among replicas.
        graph_of: the network for a number of samples.
        search: how to search, and how long.

    Returns:
        The plan, and a choice that is faster still, if ranks could run it: with replicas on several hosts, or with
        devices that share layers or states.

    Raises:
        Interrupted: on Ctrl-C, with the plan.
    """
    work = plan.workload
    batch = work.batch * work.micro_batches * (plan.cluster.replicas.count if plan.cluster.replicas else 1)
    part = search.part(1 - BEYOND)
    deadline = Deadline(part.time_limit_s)
    plan = WaysInTurns(plan, ways_to_train(cluster, graph_of, batch, work.optimizer, deadline), part).run(deadline)
    try:
        found = trade_offs(graph_of, cluster, batch, search.part(BEYOND), work.optimizer)
    except InputError:  # a graph without its model is there for one number of samples only
        return plan, None
    except Interrupted as stopped:
        raise Interrupted(plan) from stopped
    here = of_this_host(cluster)
    beyond = next((choice for choice in found.choices if choice.config or (here and choice.replicas > 1)), None)
    faster = beyond is not None and beyond.samples_per_s > plan.samples_per_s * (1 + EVEN)
    return plan, beyond if faster else None


def best_in_closed_form(
    network: Transformer, cluster: Cluster, batch: int, optimizer: str, search: Search
) -> ConfigRow | None:
    """Return the fastest configuration of a transformer; None if closed forms do not hold or nothing fits.

    Args:
        network: what is trained.
        cluster: its devices need a peak in 16 bits.
        batch: samples of a step.
        optimizer: as in `trade_offs`.
        search: how long to search.
    """
    try:
        setting = training_setting(network, cluster, batch, optimizer=optimizer)
        found = choose_config(setting, search.time_limit_s, search.reporter)
    except InputError:
        return None
    return found.rows[0] if found.rows else None
