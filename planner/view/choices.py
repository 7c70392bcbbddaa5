"""choices_page: the rows of `planner choose` as one page, the time of a step against memory."""

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from typing import NamedTuple

from costmodels.units import format_bytes, format_seconds
from graphs.common.visible import xml_text
from planner.parallelism.config_reasons import PricedRow, reasons, step_parts
from planner.view.page import filled, head, template

LEFT, RIGHT, TOP, BOTTOM = 80, 1050, 24, 356  # of the chart in its drawing
SIZE = 1080, 400
TICKS = 5  # of an axis
RADIUS = 10  # of a numbered row
FAR = 2.0  # a limit above this multiple of the largest peak is named, not drawn
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442", "#999999")
"""For each number of devices, the largest first (Okabe, Ito)."""
DARK = {"#0072b2", "#009e73", "#d55e00"}

Point = tuple[float, float]


def choices_page(
    title: str,
    proof: str,
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    priced: Sequence[PricedRow],
    limit_bytes: float,
) -> str:
    """Return the page: it needs neither network nor scripts.

    Args:
        title: what is trained.
        proof: in words, what no way can beat.
        heads: of the columns.
        cells: of each row; the first is its number.
        priced: the same rows, the fastest first.
        limit_bytes: memory of the smallest device.
    """
    counts = sorted({row.devices for row in priced}, reverse=True)
    colours = {count: COLOURS[i % len(COLOURS)] for i, count in enumerate(counts)}
    parts = {
        "head": head(xml_text(title), template("page.css") + "\n" + template("choices.css")),
        "title": xml_text(title),
        "proof": xml_text(proof),
        "legend": " ".join(f"<span>{_badge('', colours[count])} {_devices(count)}</span>" for count in counts),
        "chart": "".join(_chart(priced, colours, limit_bytes)),
        "parts": " ".join(f'<i class="p{i}"></i> {name}' for i, name in enumerate(step_parts(priced[0].price))),
        "table": "".join(_table(heads, cells, priced, colours)),
    }
    return filled("choices.html", parts)


def ink_on(colour: str) -> str:
    """Return the colour of letters on another colour."""
    return "#fff" if colour in DARK else "#000"


def _badge(text: str, colour: str) -> str:
    return f'<span class="badge" style="--d:{colour};--on:{ink_on(colour)}">{text}</span>'


def _devices(count: int) -> str:
    return f"{count:,} device{'s' if count > 1 else ''}"


def _table(
    heads: Sequence[str], cells: Sequence[Sequence[str]], priced: Sequence[PricedRow], colours: Mapping[int, str]
) -> Iterator[str]:
    """Yield the cells of each row; below them where its time goes, and what it trades."""
    yield (
        "<thead><tr>"
        + "".join(f'<th scope="col" class="right">{xml_text(head)}</th>' for head in heads)
        + "</tr></thead>"
    )
    for (number, *own), row, why in zip(cells, priced, reasons(priced), strict=True):
        figures = "".join(f'<td class="right">{xml_text(cell)}</td>' for cell in own)
        yield f'<tbody id="row{number}"><tr><td>{_badge(number, colours[row.devices])}</td>{figures}</tr>'
        seconds = step_parts(row.price).values()
        bar = "".join(
            f'<i class="p{i}" style="flex-grow:{s / sum(seconds):.4f}"></i>' for i, s in enumerate(seconds) if s
        )
        reason = f'<span class="step">{bar}</span>{xml_text(why)}'
        yield f'<tr class="why"><td></td><td colspan="{len(own)}">{reason}</td></tr>'
        yield "</tbody>"


class _Axes(NamedTuple):
    """Time from the least to the most, equal factors equally far, and memory from nothing on."""

    least_s: float
    factor: float  # logarithm of the most time by the least
    most_bytes: float

    def x(self, seconds: float) -> float:
        share = log(seconds / self.least_s) / self.factor if self.factor else 0.5
        return LEFT + 2 * RADIUS + share * (RIGHT - LEFT - 4 * RADIUS)

    def y(self, n_bytes: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * n_bytes / self.most_bytes

    def lines(self) -> Iterator[str]:
        """Yield the grid with its figures."""
        for i in range(TICKS):
            share, across = i / (TICKS - 1), self.factor or i == 0
            n_bytes, seconds = share * self.most_bytes, self.least_s * exp(share * self.factor)
            yield _line("grid", (LEFT, self.y(n_bytes)), (RIGHT, self.y(n_bytes)))
            yield _words(LEFT - 8, self.y(n_bytes) + 4, "end", format_bytes(n_bytes))
            if across:
                yield _line("grid", (self.x(seconds), TOP), (self.x(seconds), BOTTOM))
                yield _words(self.x(seconds), BOTTOM + 16, "middle", format_seconds(seconds))


def _chart(priced: Sequence[PricedRow], colours: Mapping[int, str], limit_bytes: float) -> Iterator[str]:
    """Yield rows as numbered points, those of as many devices joined."""
    times_s, peaks = zip(*((row.price.step_s, row.price.peak_bytes) for row in priced), strict=True)
    limit = limit_bytes if limit_bytes <= FAR * max(peaks) else 0.0
    axes = _Axes(min(times_s), log(max(times_s) / min(times_s)), 1.08 * max(limit, *peaks, 1.0))
    places = [(axes.x(seconds), axes.y(peak)) for seconds, peak in zip(times_s, peaks, strict=True)]
    yield f'<svg id="chart" viewBox="0 0 {SIZE[0]} {SIZE[1]}" role="group" aria-label="Rows by time and memory">'
    yield from axes.lines()
    yield _words(RIGHT, SIZE[1] - 8, "end", "time of a step, equal factors equally far →")
    about = f"↑ memory of the fullest device; the smallest device has {format_bytes(limit_bytes)}"
    yield _words(LEFT, TOP - 9, "start", about)
    if limit:
        yield _line("limit", (LEFT, axes.y(limit)), (RIGHT, axes.y(limit)))
    for count, colour in colours.items():
        joined = [f"{x:.1f},{y:.1f}" for (x, y), row in zip(places, priced, strict=True) if row.devices == count]
        yield f'<polyline class="curve" stroke="{colour}" points="{" ".join(joined)}"/>'
    shown = _apart(places)
    for place, at, row in zip(places, shown, priced, strict=True):
        yield _line("beside", place, at) + _circle(place, 3, colours[row.devices])
    for number, ((x, y), row) in enumerate(zip(shown, priced, strict=True), 1):
        colour, price = colours[row.devices], row.price
        label = (
            f"row {number}: {format_seconds(price.step_s)}, {format_bytes(price.peak_bytes)}, {_devices(row.devices)}"
        )
        style = f'class="number" style="fill:{ink_on(colour)}"'
        yield f'<a href="#row{number}" aria-label="{label}"><title>{label}</title>{_circle((x, y), RADIUS, colour)}'
        yield f'<text {style} x="{x:.1f}" y="{y + 4:.1f}">{number}</text></a>'
    yield "</svg>"


def _apart(places: Sequence[Point]) -> list[Point]:
    """Return the places of the numbers: at their points, or as near as no number covers another."""
    shown: list[Point] = []
    steps = [(RADIUS * dx, RADIUS * dy) for dx in range(-8, 9) for dy in range(-8, 9)]
    steps.sort(key=lambda step: abs(step[0]) + abs(step[1]))

    def free(x: float, y: float) -> bool:
        inside = LEFT < x < SIZE[0] - RADIUS and TOP < y < BOTTOM
        return inside and all((x - a) ** 2 + (y - b) ** 2 > (2 * RADIUS) ** 2 for a, b in shown)

    for x, y in places:
        shown.append(next(((x + dx, y + dy) for dx, dy in steps if free(x + dx, y + dy)), (x, y)))
    return shown


def _circle(at: Point, radius: float, colour: str) -> str:
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius}" fill="{colour}"/>'


def _line(kind: str, start: Point, end: Point) -> str:
    return f'<line class="{kind}" x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"/>'


def _words(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="quiet" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
