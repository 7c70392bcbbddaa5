"""Draws a timeline as characters for the terminal, or as a self-contained SVG file.

::

    gpu0         ▇0▇▇1▇▇2▇░0░        one lane for each device and each link that is used; a colour for each micro-batch;
    gpu1            ▇0▇▇1▇           backward passes are paler
    gpu0 → gpu1    ▁  ▁  ▁
                 0      1 ms
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from costmodels.units import format_seconds
from graphs.common.errors import InputError
from graphs.common.notebook import html_picture
from graphs.common.visible import visible, xml_text
from simulator.pipeline import ends_step
from simulator.schedule import ACTION
from simulator.timeline import Span, Timeline

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
"""Safe for colour-blind readers: Okabe and Ito, Color universal design, 2008. Only the first colour is dark."""

WIDTH, MARGIN = 960, 12  # pixels of the time axis, and of the outer margin
LANE, BAR, LINK_BAR = 26, 20, 10  # pixels, heights
LETTER = 7.2  # pixels, width of a character of the labels
TICKS = 8  # at most
SEEN = 0.5  # pixels; a narrower bar is not drawn
THIN = 3  # pixels; a narrower bar has no edge
ROOM = 4  # pixels next to a text

STYLE = """
svg { background: var(--ground); font: 12px system-ui, sans-serif; }
svg { --ground: #ffffff; --ink: #1f2328; --faint: #d0d7de; }
@media (prefers-color-scheme: dark) { svg { --ground: #0d1117; --ink: #e6edf3; --faint: #30363d; } }
text { fill: var(--ink); } .in { fill: #000; text-anchor: middle; pointer-events: none; } .in.c0 { fill: #fff; }
.tick { text-anchor: middle; } .lane { text-anchor: end; } .title { font-weight: 600; font-size: 14px; }
line { stroke: var(--faint); }
rect { stroke: var(--ground); stroke-width: 0.5; } rect.thin { stroke: none; }
rect.back { fill-opacity: 0.5; } .in.back, .in.end { fill: var(--ink); }
rect.end { fill: var(--ground); stroke: var(--ink); stroke-width: 1; }
"""


def svg_chart(timeline: Timeline, title: str = "") -> str:
    """Return the chart as the text of an SVG file; the same timeline gives the same text.

    The chart is light or dark as the reader's system is. A tooltip of each bar has its name and its times. A bar that
    is too narrow to be visible is left out if its neighbour covers it.
    """
    names = [*timeline.devices, *timeline.link_busy_s]
    left = MARGIN + LETTER * max((len(visible(name)) for name in names), default=0)
    top = 2 * MARGIN + (LANE if title else 0) + LANE
    frame = _ChartLayout(timeline, {name: top + LANE * i for i, name in enumerate(names)}, left + MARGIN)
    bottom = top + LANE * len(names)
    width, height = frame.left + WIDTH + 3 * MARGIN, bottom + LANE + MARGIN
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{xml_text(title or 'timeline')}</title><style>{STYLE}"
        f"{''.join(f'rect.c{i} {{ fill: {colour}; }} ' for i, colour in enumerate(COLOURS))}</style>",
    ]
    if title:
        parts.append(f'<text class="title" x="{MARGIN}" y="{2 * MARGIN}">{xml_text(title)}</text>')
    parts += [*frame.legend(top - LANE), *frame.axis(top, bottom), *frame.lanes(), *frame.bars(), "</svg>"]
    return "\n".join(parts) + "\n"


def html_chart(timeline: Timeline) -> str:
    """Return the chart for a notebook."""
    title = f"{timeline.micro_batches} micro-batches on {', '.join(timeline.devices)}"
    return html_picture(svg_chart(timeline), title)


def ascii_chart(timeline: Timeline, width: int) -> str:
    """Return one row for each device, with a character for each of ``width`` equal pieces of the makespan.

    A character is the last digit of the micro-batch that runs in the middle of the piece, an equals sign for an
    optimizer, or a dot::

        cpu0  0011223344....
        cpu1  ..0.1.2.3.444=

    Raises:
        InputError: if the width is less than 1.
    """
    if width < 1:
        raise InputError(f"the chart's width is {width}; it must be 1 or more")
    row = {name: ["."] * width for name in timeline.devices}
    columns_per_s = width / timeline.makespan_s if timeline.makespan_s > 0 else 0.0
    for span in timeline.spans:
        if span.kind == "compute":
            first, behind = (ceil(second * columns_per_s - 0.5) for second in (span.start_s, span.end_s))
            sign = "=" if ends_step(span.label) else str(span.micro_batch % 10)
            row[span.resource][first:behind] = sign * (behind - first)
    margin = max(len(visible(name)) for name in timeline.devices)
    return "\n".join(f"{visible(name):<{margin}}  {''.join(characters)}" for name, characters in row.items())


@dataclass(frozen=True)
class _ChartLayout:
    """The layout of a chart."""

    timeline: Timeline  # the timeline
    top: dict[str, float]  # pixels from the top to each lane, by its name
    left: float  # pixels from the left to the time axis

    def x(self, time_s: float) -> float:
        """Return the pixel of a time."""
        whole_s = self.timeline.makespan_s
        return round(self.left + (WIDTH * time_s / whole_s if whole_s > 0 else 0.0), 2)

    def lanes(self) -> Iterator[str]:
        """Yield the names of the lanes."""
        for name, top in self.top.items():
            yield f'<text class="lane" x="{self.left - ROOM:g}" y="{top + 14:g}">{xml_text(name)}</text>'

    def axis(self, top: float, bottom: float) -> Iterator[str]:
        """Lines at round times, with the times below."""
        for time_s in _ticks(self.timeline.makespan_s):
            x = self.x(time_s)
            yield f'<line x1="{x:g}" x2="{x:g}" y1="{top:g}" y2="{bottom:g}"/>'
            yield f'<text class="tick" x="{x:g}" y="{bottom + 16:g}">{format_seconds(time_s)}</text>'

    def legend(self, y: float) -> Iterator[str]:
        """Yield the colours with their numbers, and samples of backward passes and of the end of a step."""
        spans, name = self.timeline.spans, "micro-batch"
        numbers = sorted({span.micro_batch for span in spans if not ends_step(span.label)})
        yield f'<text x="{MARGIN}" y="{y + 14:g}">{name}</text>'
        x = MARGIN + LETTER * len(name) + MARGIN
        for colour in sorted({number % len(COLOURS) for number in numbers}):
            same = [number for number in numbers if number % len(COLOURS) == colour]
            text = ", ".join(map(str, same[:2])) + (", …" if len(same) > 2 else "")
            yield from _sample(x, y, f"c{colour}", text)
            x += 12 + 2 * ROOM + LETTER * len(text) + MARGIN
        if any(_is_back(span) for span in spans):
            yield from _sample(x, y, "c0 back", "backward")
            x += 12 + 2 * ROOM + LETTER * len("backward") + MARGIN
        if any(ends_step(span.label) for span in spans):
            yield from _sample(x, y, "end", "end of the step")

    def bars(self) -> Iterator[str]:
        """Yield a bar for each span."""
        reach: dict[str, float] = {}  # lane -> end of its last bar
        for span in self.timeline.spans:
            first, behind = self.x(span.start_s), self.x(span.end_s)
            if span.end_s <= span.start_s or behind - reach.get(span.resource, 0.0) < SEEN:
                continue
            reach[span.resource] = behind
            yield from self._bar(span, first, max(behind - first, SEEN))

    def _bar(self, span: Span, first: float, width: float) -> Iterator[str]:
        top, tall = self.top[span.resource], BAR
        if span.kind == "transfer":
            top, tall = top + (BAR - LINK_BAR) / 2, LINK_BAR
        last = ends_step(span.label)
        look = "end" if last else f"c{span.micro_batch % len(COLOURS)}{' back' if _is_back(span) else ''}"
        when = f"{format_seconds(span.start_s)} to {format_seconds(span.end_s)}"
        tooltip = f"{span.label}{'' if last else f', micro-batch {span.micro_batch}'}: {when}"
        thin = " thin" if width < THIN else ""
        yield (
            f'<rect class="{look}{thin}" x="{first:g}" y="{top:g}" width="{width:.2f}" height="{tall}">'
            f"<title>{xml_text(tooltip)}</title></rect>"
        )
        texts = (span.label,) if last else (span.label, str(span.micro_batch))
        text = next((text for text in texts if LETTER * len(text) + ROOM < width), "")
        if text and span.kind == "compute":
            yield f'<text class="in {look}" x="{first + width / 2:.2f}" y="{top + 14:g}">{xml_text(text)}</text>'


def _sample(x: float, y: float, look: str, text: str) -> Sequence[str]:
    return (
        f'<rect class="{look}" x="{x:g}" y="{y + 4:g}" width="12" height="12"/>',
        f'<text x="{x + 12 + ROOM:g}" y="{y + 14:g}">{text}</text>',
    )


def _is_back(span: Span) -> bool:
    """Return whether a span's label is an action of a backward pass, such as 2B0."""
    action = ACTION.fullmatch(span.label) if span.kind == "compute" else None
    return action is not None and action[2] != "F"


def _ticks(whole_s: float) -> list[float]:
    """Round times from 0 to the end, at most `TICKS` of them besides 0."""
    if whole_s <= 0:
        return [0.0]
    power = 10.0 ** floor(log10(whole_s / TICKS))
    step_s = next(step * power for step in (1, 2, 5, 10) if whole_s / (step * power) <= TICKS)
    return [number * step_s for number in range(floor(whole_s / step_s * (1 + 1e-9)) + 1)]
