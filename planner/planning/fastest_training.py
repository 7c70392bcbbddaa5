"""The fastest way to train that a plan's question leaves open: no slower than what `planner.choose` finds."""

from dataclasses import dataclass
from typing import NamedTuple

from costmodels.cluster.cluster import Cluster
from planner.parallelism.closed_form.config import ParallelConfig
from planner.parallelism.network.schedule_sweep import trade_offs
from planner.parallelism.network.training_rows import Choice
from planner.planning.question import PlanQuestion
from planner.planning.training_choice import best_for_batch, best_in_closed_form
from planner.plans.plan import Plan
from planner.problem.result import Interrupted, NoPlanError, Result

CLOSED_FORM_SHARE = 0.5  # of the time of the search, for a config.json


class FasterRow(NamedTuple):
    """A configuration that no plan.json holds, and how fast it is."""

    config: ParallelConfig
    samples_per_s: float


class OnlyRowError(NoPlanError):
    """No plan trains the batch, but ranks that share layers or states can: ``row`` is their configuration."""

    def __init__(self, result: Result, row: FasterRow) -> None:
        super().__init__(result)
        self.row = row


@dataclass(frozen=True)
class FoundTraining:
    """The result of a search among ways to train.

    Attributes:
        plan: the best one.
        first: the plan for the default workload; equal to ``plan`` if nothing is faster.
        cluster: all devices, before they are divided among replicas.
        beyond: a faster choice, which needs ranks of its own, or devices that share layers or states.
        row: the fastest configuration with shared layers or states, if it is faster than the plan.
    """

    plan: Plan
    first: Plan
    cluster: Cluster
    beyond: Choice | None = None
    row: FasterRow | None = None

    @property
    def idle(self) -> int:
        """Devices that neither the plan nor its replicas use."""
        replicas = self.plan.cluster.replicas.count if self.plan.cluster.replicas else 1
        return len(self.cluster.devices) - replicas * self.plan.n_used


def fastest_training(first: Plan, question: PlanQuestion) -> FoundTraining:
    """Find a faster way to train than a plan's, if the question leaves it open.

    Args:
        first: the plan for the question's workload.
        question: for training, on one cluster.

    Raises:
        Interrupted: on Ctrl-C, with the best plan so far.
    """
    (cluster,) = question.wholes
    if not question.leaves_training_open:
        return FoundTraining(first, first, cluster)
    best, beyond = best_for_batch(first, cluster, question.sized, question.search)
    batch = first.workload.batch * first.workload.micro_batches
    try:
        row = _fastest_row(beyond, question, first.workload.optimizer, batch)
    except KeyboardInterrupt as stopped:
        raise Interrupted(best) from stopped
    return FoundTraining(best, first, cluster, beyond, row if row and row.samples_per_s > best.samples_per_s else None)


def row_without_plan(question: PlanQuestion) -> FasterRow | None:
    """Return the configuration that trains the batch if no plan can; None without one or if the question is closed."""
    if not question.leaves_training_open:
        return None
    (cluster,), work = question.wholes, question.workload_on(1)
    batch = work.batch * work.micro_batches
    part = question.search.part(1 - CLOSED_FORM_SHARE)
    found = trade_offs(question.sized, cluster, batch, part, work.optimizer)
    first = next((choice for choice in found.choices if choice.config is not None), None)
    return _fastest_row(first, question, work.optimizer, batch)


def _fastest_row(choice: Choice | None, question: PlanQuestion, optimizer: str, batch: int) -> FasterRow | None:
    """Return the faster of a choice and the closed forms' configuration for a config.json; None without either."""
    rows = [FasterRow(choice.config, choice.samples_per_s)] if choice and choice.config else []
    if network := question.transformer:
        search = question.search.part(CLOSED_FORM_SHARE)
        found = best_in_closed_form(network, question.wholes[0], batch, optimizer, search)
        rows += [FasterRow(found.config, batch / found.price.step_s)] if found else []
    return max(rows, key=lambda row: row.samples_per_s, default=None)
