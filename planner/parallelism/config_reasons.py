"""One line for each row of ``planner choose``: how the fastest step spends its time, and what others trade for it."""

from collections.abc import Sequence
from typing import NamedTuple

from costmodels.units import format_bytes
from planner.parallelism.closed_form.prices import StepPrice

LEAST = 0.005  # share of the step that is worth saying


class PricedRow(NamedTuple):
    """A way to train: the price of a step, and the number of devices."""

    price: StepPrice
    devices: int


def reasons(rows: Sequence[PricedRow]) -> list[str]:
    """Return a line for each row, the fastest first."""
    first = rows[0]
    return [f"the fastest; {_where_time_goes(first.price)}", *(_beside(first, row) for row in rows[1:])]


def _where_time_goes(price: StepPrice) -> str:
    """Return the parts of a step as shares of it."""
    said = (f"{name} {s / price.step_s:.0%}" for name, s in step_parts(price).items() if s > LEAST * price.step_s)
    return ", ".join(said)


def _beside(first: PricedRow, row: PricedRow) -> str:
    """Return how much slower a row is than the fastest one, which devices and bytes it saves, and why."""
    slower = f"{row.price.step_s / first.price.step_s - 1:.1%} slower than row 1"
    fewer = first.devices - row.devices
    saved = first.price.peak_bytes - row.price.peak_bytes
    number = f"{abs(fewer)} device{'s' if abs(fewer) > 1 else ''} {'fewer' if fewer > 0 else 'more'}"
    gains = [number] if fewer else []
    gains += [f"{format_bytes(saved)} less"] if saved > 0 else []
    if fewer:
        speed = first.price.step_s * first.devices / (row.price.step_s * row.devices)
        why = f"each device is {speed:.1%} as fast"
    else:
        why = _most_grown(first.price, row.price)
    return f"{slower}, {' and '.join(gains)}: {why}"


def _most_grown(before: StepPrice, now: StepPrice) -> str:
    """Return the part of the step that grew the most, and by how much of the earlier step."""
    earlier, later = step_parts(before), step_parts(now)
    name = max(later, key=lambda part: later[part] - earlier[part])
    return f"{name} adds {(later[name] - earlier[name]) / before.step_s:.1%}"


def step_parts(price: StepPrice) -> dict[str, float]:
    """Return the seconds of a step, by what they are spent on."""
    return {
        "computing": price.computing_s,
        "communication": price.communicating_s,
        "the pipeline's bubble": price.bubble_s,
        "gradients and optimizer": price.sync_s,
    }
