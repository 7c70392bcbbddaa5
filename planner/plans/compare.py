"""compare: predicted and measured times, of every device, link and stage and of the whole run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from costmodels.cluster.cluster import Device
from costmodels.operators.pace import PaceKind, Paces, likely_pace, network_pace, pace_kinds, pace_ratios
from graphs.common.brief import brief
from planner.plans.plan import Plan
from planner.plans.ranges import Range, Spread, operator_seconds
from simulator.schedule import ACTION
from simulator.timeline import Kind, Span, Timeline
from simulator.usage import Usage

OFF = 0.10  # error of a prediction above which another calibration is worth its time


@dataclass(frozen=True, slots=True)
class Figure:
    """One time, predicted and measured, in seconds for each micro-batch."""

    name: str  # of the device, the link, the stage or the quantity
    predicted_s: float  # by the simulator
    measured_s: float  # median of the run
    alone: bool = False  # whether one micro-batch runs alone, on one device after another
    pace: float | None = None  # times as long by the pace of its own operators; None: they are those of the whole plan

    @property
    def error(self) -> float:
        """The difference of measured and predicted time, as a share of the prediction."""
        return self.measured_s / self.predicted_s - 1 if self.predicted_s > 0 else 0.0

    def error_after(self, pace: float) -> float:
        """Return the error that remains if everything is predicted to take ``pace`` times as long."""
        return (1 + self.error) / pace - 1 if self.predicted_s > 0 else 0.0


@dataclass(frozen=True)
class PaceChange:
    """The times of operators during a run, as multiples of their times when they were measured."""

    network: float  # all operators of the plan, each kind in proportion to its time, while one device computes
    contended: float  # the same while all devices of the plan compute
    kinds: Mapping[PaceKind, float]  # each kind of operator while one device computes, see `costmodels.operators.pace`

    def of(self, alone: bool) -> float:
        """Return the change for a micro-batch alone, on one device after another, or for micro-batches that stream."""
        return self.network if alone else self.contended


@dataclass(frozen=True)
class Comparison:
    """A run against its prediction."""

    devices: tuple[Figure, ...]  # computing time of each device
    stages: tuple[Figure, ...]  # in the order of the plan, named "device: first … last operator"
    totals: tuple[Figure, ...]  # period and latency
    links: tuple[Figure, ...] = ()  # time of all tensors on each link, in the order of the predicted first use
    usage: Usage | None = None  # what the devices did in the steady part of a measured stream
    pace: PaceChange | None = None  # None if the pace of either is not known
    spreads: Mapping[bool, Spread] = field(default_factory=dict)  # of figures, by whether they are alone

    __repr__ = brief

    @property
    def off(self) -> bool:
        """Whether a total is outside its range, and off by more than `OFF` after the machine's pace."""
        return any(abs(self.unexplained(figure)) > OFF and not self.as_expected(figure) for figure in self.totals)

    def range_of(self, figure: Figure) -> Range | None:
        """Return the range in which 80 % of runs are expected; None if the spread of runs is not known."""
        spread = self.spreads.get(figure.alone)
        return spread.range(figure.predicted_s) if spread else None

    def as_expected(self, figure: Figure) -> bool:
        """Return whether the measured time is in the range of the predicted one."""
        expected = self.range_of(figure)
        return expected is not None and figure.measured_s in expected

    def unexplained(self, figure: Figure) -> float:
        """Return the error that the machine's pace does not explain."""
        whole = self.pace.of(figure.alone) if self.pace else 1.0
        return figure.error_after(whole if figure.pace is None else figure.pace)


def compare(predicted: Timeline, measured: Timeline, totals: tuple[Figure, ...]) -> Comparison:
    """Compare a run with its prediction; ``totals`` are of the whole run, measured without recording.

    Spans of the two timelines match by device and number of the stage, or by link and number of the flow.
    """
    expected, seen = (_seconds(timeline, "compute") for timeline in (predicted, measured))
    labels = {(span.resource, span.index): span.label for span in predicted.spans if span.kind == "compute"}
    stages = tuple(
        Figure(f"{stage[0]}: {labels[stage]}", expected[stage], seen[stage])
        for stage in sorted(expected, key=lambda stage: stage[1])
        if stage in seen
    )
    expected_s, seen_s = (_seconds(timeline, "transfer") for timeline in (predicted, measured))
    links = _sums(dict.fromkeys(link for link, _ in expected_s), expected_s, seen_s)
    return Comparison(_sums(predicted.devices, expected, seen), stages, totals, links)


def paced_devices(plan: Plan) -> tuple[Device, ...]:
    """Return the devices whose pace is compared: used ones of the first one's kind, if the plan has a pace of it."""
    used = [plan.cluster.devices[number] for number in plan.placement.used]
    return tuple(device for device in used if device.kind == used[0].kind and device.kind in plan.pace)


def pace_change(plan: Plan, paces: Paces) -> PaceChange | None:
    """Return the machine's pace relative to the pace of the plan's times; None if either is not known.

    ``paces`` are of the devices of `paced_devices`.
    """
    paced = paced_devices(plan)
    if not paced or not paces:
        return None
    seconds = operator_seconds(plan.table, plan.placement)
    usual = plan.pace[paced[0].kind]
    now = likely_pace(paces, usual)
    alone, at_once = (pace_ratios(now, usual, n_devices) for n_devices in (1, len(paced)))
    kinds = pace_kinds(plan.graph)
    return PaceChange(network_pace(kinds, seconds, alone), network_pace(kinds, seconds, at_once), alone)


def compare_stream(plan: Plan, stream: Timeline, period_s: float, latency_s: float) -> Comparison:
    """Compare a measured stream with the prediction; devices and links are compared in the steady parts of both."""
    totals = (
        Figure("time per micro-batch", plan.period_s, period_s),
        Figure("latency", plan.latency_s, latency_s, alone=True),
    )
    comparison = replace(compare(plan.steady, stream, totals), spreads=plan.spreads)
    expected, seen = plan.usage_of(plan.steady), plan.usage_of(stream)
    if expected is None or seen is None:
        return comparison
    used = (name for name in expected.devices if name in seen.devices)
    devices = tuple(Figure(name, expected.devices[name].busy_s, seen.devices[name].busy_s) for name in used)
    links = tuple(
        Figure(name, busy_s, seen.links[name]) for name, busy_s in expected.links.items() if name in seen.links
    )
    return replace(comparison, devices=devices, links=links, usage=seen)


def stages_of(step: Timeline, labels: Sequence[str]) -> Timeline:
    """Return a training step for `compare`: a span for each stage and micro-batch, forward and backward together.

    The transfers of a stage and micro-batch over one link are one span too; what is done once a step, like the
    optimizer, is left out. ``labels`` has [n_stages], for people.
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
    """Return a figure for each resource on which the run has a span."""
    used = {resource for resource, _ in seen}

    def total_s(name: str, times: Mapping[tuple[str, int], float]) -> float:
        return sum(seconds for (resource, _), seconds in times.items() if resource == name)

    return tuple(Figure(name, total_s(name, expected), total_s(name, seen)) for name in resources if name in used)


def _seconds(timeline: Timeline, kind: Kind) -> dict[tuple[str, int], float]:
    """Return the median seconds of each stage or transfer, by resource and number."""
    durations: dict[tuple[str, int], list[float]] = {}
    for span in timeline.spans:
        if span.kind == kind:
            durations.setdefault((span.resource, span.index), []).append(span.end_s - span.start_s)
    return {key: median(seconds) for key, seconds in durations.items()}
