"""compare: what was predicted beside what was measured, for every device, link and stage and for the whole run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphs.brief import brief
from simulator.schedule import ACTION
from simulator.timeline import Kind, Span, Timeline

OFF = 0.10  # by how much a prediction may be off before calibrating again is worth it


@dataclass(frozen=True, slots=True)
class Figure:
    """One time, predicted and measured, in seconds for each micro-batch.

    Attributes:
        name: of the device, the link, the stage or the quantity.
        predicted_s: by the simulator.
        measured_s: in the run, a median.
    """

    name: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """How much longer it took than predicted, as a share of the prediction."""
        return self.measured_s / self.predicted_s - 1 if self.predicted_s > 0 else 0.0


@dataclass(frozen=True)
class Comparison:
    """A run against its prediction.

    Attributes:
        devices: how long each device computes.
        stages: how long each stage takes, in the order of the plan; named "device: first … last operator".
        totals: the time from one micro-batch to the next, and of one alone.
        links: how long the tensors that go over each link take together, in the order of the first use that was
            predicted.
    """

    devices: tuple[Figure, ...]
    stages: tuple[Figure, ...]
    totals: tuple[Figure, ...]
    links: tuple[Figure, ...] = ()

    __repr__ = brief

    @property
    def off(self) -> bool:
        """Whether a total is off by more than `OFF`."""
        return any(abs(figure.error) > OFF for figure in self.totals)


def compare(predicted: Timeline, measured: Timeline, totals: tuple[Figure, ...]) -> Comparison:
    """Put two runs of one plan side by side.

    Args:
        predicted: stages are told apart by the device and the number of the stage, transfers by the link and the number
            of the flow; so in ``measured``.
        measured: of any number of micro-batches, recorded while they streamed.
        totals: times that were measured otherwise.
    """
    expected, seen = (_seconds(timeline, "compute") for timeline in (predicted, measured))
    labels = {(span.resource, span.index): span.label for span in predicted.spans if span.kind == "compute"}
    stages = tuple(
        Figure(f"{stage[0]}: {labels[stage]}", expected[stage], seen[stage])
        for stage in sorted(expected, key=lambda stage: stage[1])
        if stage in seen
    )
    sent, came = (_seconds(timeline, "transfer") for timeline in (predicted, measured))
    links = dict.fromkeys(link for link, _ in sent)
    return Comparison(_sums(predicted.devices, expected, seen), stages, totals, _sums(links, sent, came))


def stages_of(step: Timeline, labels: Sequence[str]) -> Timeline:
    """A training run for `compare`: for each stage and micro-batch one span, as long as its way forward and back takes.

    So also for what the stage sends over each link.

    Args:
        step: whose spans are actions of a schedule; what is done once a step, like the optimizer, is left out.
        labels: [n_stages], what a person reads.
    """
    seconds: dict[tuple[Kind, str, int, int], float] = {}
    for span in step.spans:
        if span.kind == "transfer" or ACTION.fullmatch(span.label):
            key = (span.kind, span.resource, span.index, span.micro_batch)
            seconds[key] = seconds.get(key, 0.0) + span.end_s - span.start_s
    spans = (
        Span(kind, resource, labels[stage], micro_batch, stage, 0.0, length_s)
        for (kind, resource, stage, micro_batch), length_s in seconds.items()
    )
    return Timeline(step.devices, step.micro_batches, tuple(spans))


def _sums(
    resources: Iterable[str], expected: Mapping[tuple[str, int], float], seen: Mapping[tuple[str, int], float]
) -> tuple[Figure, ...]:
    """A figure for each resource that something was seen on."""
    used = {where for where, _ in seen}
    return tuple(
        Figure(name, *(sum(s for (where, _), s in times.items() if where == name) for times in (expected, seen)))
        for name in resources
        if name in used
    )


def _seconds(timeline: Timeline, kind: Kind) -> dict[tuple[str, int], float]:
    """The median seconds of each stage or transfer, by resource and number."""
    found: dict[tuple[str, int], list[float]] = {}
    for span in timeline.spans:
        if span.kind == kind:
            found.setdefault((span.resource, span.index), []).append(span.end_s - span.start_s)
    return {stage: float(np.median(seconds)) for stage, seconds in found.items()}
