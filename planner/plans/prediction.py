"""Prediction: the run of micro-batches through a plan, with memory over time and all transfers."""

from dataclasses import dataclass

from costmodels.cluster.cluster import Sharing
from costmodels.units import format_seconds
from graphs.common.brief import brief
from graphs.common.errors import InputError
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from simulator.memory import DeviceMemory, memory_of, training_memory
from simulator.simulate import TooManyError, simulate
from simulator.timeline import Timeline
from simulator.trace import TransferSpans, schedule_transfer_spans, transfer_spans
from simulator.training import simulate_training


@dataclass(frozen=True)
class Prediction:
    """A simulated run."""

    timeline: Timeline  # what runs where and when
    memory: tuple[DeviceMemory, ...]  # what devices hold over time; in training, of those that have a stage
    transfers: tuple[TransferSpans, ...]  # the spans of sender, transfer and receiver of every message

    __repr__ = brief


def predict(plan: Plan, micro_batches: int = 8, sharing: Sharing | None = None) -> Prediction:
    """Simulate a plan.

    Args:
        plan: a plan.
        micro_batches: how many stream through; in training the step has its own number.
        sharing: of channels; as the cluster says if left out.

    Raises:
        InputError: for less than one micro-batch, or more than a simulation takes; it says what many take.
    """
    if plan.goal is Goal.TRAINING:
        run = simulate_training(plan.costs, plan.placement, plan.problem.step, sharing)
        memory = training_memory(plan.costs, run)
        return Prediction(run.pipeline.timeline, memory, tuple(schedule_transfer_spans(run.pipeline)))
    table = plan.costs_of(micro_batches)
    try:
        timeline = simulate(table, plan.placement, micro_batches, plan.workload.in_flight, sharing)
    except TooManyError as error:
        longer = f"{micro_batches:,} take about {format_seconds(micro_batches * plan.period_s)}"
        raise InputError(f"{error}; in the long run one takes {format_seconds(plan.period_s)}, so {longer}") from error
    return Prediction(
        timeline,
        memory_of(table, plan.placement, timeline),
        tuple(transfer_spans(table, plan.placement, timeline)),
    )
