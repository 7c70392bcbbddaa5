"""One line for each row of ``planner choose``: where the fastest step's time goes, and what other rows trade for it."""

from collections.abc import Iterator, Sequence

from costmodels.units import format_bytes
from planner.problem.hybrid_training.prices import StepPrice
from planner.solvers.hybrid_training.search import ConfigRow

LEAST = 0.005  # share of the step that is worth saying


def reasons(rows: Sequence[ConfigRow]) -> list[str]:
    """A line for each row, the fastest first."""
    first = rows[0]
    return [f"the fastest; {_where_time_goes(first.price)}", *(_beside(first, row) for row in rows[1:])]


def _where_time_goes(price: StepPrice) -> str:
    """The parts of a step as shares."""
    parts = {
        "computing": price.computing_s,
        "communication": price.communicating_s,
        "the pipeline's bubble": price.bubble_s,
        "gradients and optimizer": price.sync_s,
    }
    said = [f"{name} {s / price.step_s:.0%}" for name, s in parts.items() if s > LEAST * price.step_s]
    return ", ".join(said)


def _beside(first: ConfigRow, row: ConfigRow) -> str:
    """What a row takes more and less than the fastest one, and what differs."""
    slower = row.price.step_s / first.price.step_s - 1
    gains = []
    if row.config.shape.devices < first.config.shape.devices:
        gains.append(f"{first.config.shape.devices - row.config.shape.devices} devices fewer")
    if row.price.peak_bytes < first.price.peak_bytes:
        gains.append(f"{format_bytes(first.price.peak_bytes - row.price.peak_bytes)} less")
    said = f"{slower:.1%} slower than row 1, {' and '.join(gains)}: {', '.join(_differences(first, row))}"
    fewer = row.config.shape.devices < first.config.shape.devices
    return said if fewer else f"{said}; {_most_grown(first.price, row.price)}"


def _differences(first: ConfigRow, row: ConfigRow) -> Iterator[str]:
    names = {"zero": "ZeRO", "samples": "micro-batch"}
    for name in ("data", "tensor", "pipeline", "samples", "schedule", "zero"):
        before, now = getattr(first.config.shape, name), getattr(row.config.shape, name)
        if before != now:
            yield f"{names.get(name, name)} {now}, not {before}"
    if first.config.recompute != row.config.recompute:
        yield f"recompute {row.config.recompute}"


def _most_grown(before: StepPrice, now: StepPrice) -> str:
    """The part of the step that takes most more."""
    growth = {
        "computing": now.computing_s - before.computing_s,
        "communication": now.communicating_s - before.communicating_s,
        "the bubble": now.bubble_s - before.bubble_s,
        "gradients and optimizer": now.sync_s - before.sync_s,
    }
    name = max(growth, key=lambda part: growth[part])
    return f"it takes longest in {name}"
