"""Predicted against measured, as a run in inference and one in training show it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from costmodels.operators.pace import PaceKind
from costmodels.units import format_rate, format_seconds
from planner.cli.console import Console
from planner.cli.statuses import INTERRUPTED
from planner.cli.text import short
from planner.planning.autotune import DISTURBED_CORES
from planner.plans.compare import OFF, Comparison, PaceChange
from planner.plans.plan import Plan

MOST_STAGES = 12  # that are shown, those furthest from what was predicted
PACE_WORDS: dict[PaceKind, str] = {
    "computing": "computing",
    "streaming": "streaming memory",
}
AT_ONCE = "at once"  # of a tensor that goes by reference to a thread that was busy then: nothing is to be measured


def figures_document(comparison: Comparison) -> dict[str, list[dict[str, Any]]]:
    """Predicted against measured as ``--json`` shows it, with every stage."""
    return {
        part: [
            {
                "name": figure.name,
                "predicted_s": figure.predicted_s,
                "range_s": expected.ends if (expected := comparison.range_of(figure)) else None,
                "measured_s": figure.measured_s,
                "error": figure.error,
                "error_after_pace": comparison.unexplained(figure) if comparison.pace else None,
            }
            for figure in getattr(comparison, part)
        ]
        for part in ("totals", "devices", "links", "stages")
    }


def show_figures(comparison: Comparison, what: str, console: Console) -> None:
    """Predicted against measured for people; `figures_document` is for scripts."""
    if console.json:
        return
    furthest = sorted(comparison.stages, key=lambda figure: -abs(figure.measured_s - figure.predicted_s))
    kept = set(furthest[:MOST_STAGES])
    stages = [figure for figure in comparison.stages if figure in kept]
    rows = []
    for figure in (*comparison.totals, *comparison.devices, *comparison.links, *stages):
        measured = [format_seconds(figure.measured_s), f"{figure.error:+.1%}", f"{comparison.unexplained(figure):+.1%}"]
        if figure.measured_s <= 0:
            measured = [AT_ONCE, "", ""]
        expected = comparison.range_of(figure) or ""
        rows.append((short(figure.name, 60), format_seconds(figure.predicted_s), str(expected), *measured))
    if rest := len(comparison.stages) - len(stages):
        rows.append((f"{rest} more stages, nearer to what was predicted", *[""] * 5))
    heads = (what, "predicted", "80 % of runs", "measured", "off by", "after pace")
    known = {"80 % of runs": bool(comparison.spreads), "after pace": comparison.pace is not None}
    shown = [column for column, head in enumerate(heads) if known.get(head, True)]
    console.show({}, "predicted against measured", [heads[c] for c in shown], [[row[c] for c in shown] for row in rows])


def show_usage(comparison: Comparison, console: Console) -> None:
    """Print where the seconds of each device went; they add up to the time per micro-batch."""
    if console.json or comparison.usage is None:
        return
    heads = (
        "of each micro-batch",
        "busy",
        "of that processor",
        "waits for input",
        "for a micro-batch",
        "between stages",
    )
    rows = [
        (name, *map(format_seconds, (d.busy_s, d.processor_s, d.input_s, d.admission_s, d.between_s)))
        for name, d in comparison.usage.devices.items()
    ]
    title = f"where the {format_seconds(comparison.usage.period_s)} of a micro-batch went"
    console.show({}, title, heads, rows)


def contender_rows(plan: Plan, measured: Iterable[tuple[str, float, float, float]]) -> Sequence[tuple[str, ...]]:
    """Return rows of the prediction and of contenders: name, samples per second, seconds and the plan's speedup."""
    used = str(plan.n_used)
    rows = [("plan, predicted", used, format_rate(plan.samples_per_s), format_seconds(plan.latency_s), "")]
    for name, samples_per_s, seconds, speedup in measured:
        several = str(len(plan.cluster.devices)) if name.endswith("copies") else "1"
        devices, faster = (used, "") if name == "plan" else (several, f"{speedup:.2f}×")
        rows.append((f"{name}, measured", devices, format_rate(samples_per_s), format_seconds(seconds), faster))
    return rows


def pace_document(pace: PaceChange | None) -> dict[str, float] | None:
    """Return the machine's pace for ``--json``: how many times as long the network and each kind of operator take."""
    return (
        {"network": pace.network, "contended": pace.contended}
        | {str(kind): ratio for kind, ratio in pace.kinds.items()}
        if pace
        else None
    )


def _say_pace(pace: PaceChange | None, console: Console) -> None:
    """Say how the machine's pace has changed since its operators were measured."""
    if pace is None:
        console.say("the plan does not say at which pace this machine was measured; calibrate and plan again to know")
        return
    kinds = _kinds(pace.kinds)
    at_once = f", {pace.contended:.2f} while all devices compute" if pace.contended != pace.network else ""
    console.say(f"pace: this machine takes {pace.network:.2f} times as long as usual{at_once} ({kinds})")


def say_unusual_pace(kinds: Mapping[PaceKind, float], console: Console) -> None:
    """Report that the machine is slower or faster than usual, before a plan is made for its usual pace."""
    if kinds:
        seldom = "plans are made for the usual pace of this machine; now it takes this many times as long"
        console.note(f"{seldom}: {_kinds(kinds)}")


def _kinds(kinds: Mapping[PaceKind, float]) -> str:
    return ", ".join(f"{PACE_WORDS[kind]} {ratio:.2f}" for kind, ratio in kinds.items())


def say_doubts(comparison: Comparison, foreign_cores: float, options: str, console: Console) -> None:
    """Say the machine's pace, that others disturbed the figures, or that a prediction is off and what to do then."""
    _say_pace(comparison.pace, console)
    if foreign_cores > DISTURBED_CORES:
        console.say(f"other processes used {foreign_cores:.2f} cores meanwhile: the figures are disturbed")
    elif comparison.off:
        console.say(
            f"a total is outside its range, and off by more than {OFF:.0%} after the pace: measure this machine again "
            f"with `planner calibrate {options} --again` and plan again"
        )


def told_interrupted(console: Console) -> int:
    """Say that Ctrl-C has ended the measurement, and return the exit status."""
    console.error("interrupted: the figures are of the rounds until then")
    return INTERRUPTED
