"""The page and the picture of a plan for generating text: layers as a ribbon, memory in bands, the phases side by side.

The picture is SVG text that Python writes; the page has it, and the same words as the command line. Neither needs a
network or scripts.
"""

from collections.abc import Iterator, Sequence

from costmodels.units import format_bytes, format_seconds
from graphs.common.visible import xml_text
from planner.generation.plan import GenerationPlan, Holding, PlanStage
from planner.generation.words import (
    DEVICE_HEADS,
    bound_words,
    device_rows,
    expected_lines,
    layer_words,
    layers_of_stage,
)
from planner.view.choices import COLOURS, ink_on
from planner.view.page import filled, head, template

WIDTH, MARGIN, LABEL = 960, 16, 150  # pixels
LINE, BAR, GAP = 18, 26, 10
BANDS = (
    ("weights", "#4e79a7"),
    ("experts", "#59a14f"),
    ("embedding and head", "#9c755f"),
    ("cache", "#f28e2b"),
    ("buffers", "#bab0ac"),
    ("spare", "#ffffff"),
    ("margin", "#e5e5e5"),
)
"""Parts of a device's memory, and their colours."""


def generation_page(plan: GenerationPlan) -> str:
    """Return the page of a plan, as the text of an HTML file."""
    rows = "".join(f"<tr>{''.join(f'<td>{xml_text(cell)}</td>' for cell in row)}</tr>" for row in device_rows(plan))
    parts = {
        "head": head(xml_text(plan.question.model.name), template("page.css")),
        "title": xml_text(layer_words(plan)),
        "picture": generation_svg(plan),
        "heads": "".join(f"<th>{xml_text(name)}</th>" for name in DEVICE_HEADS),
        "rows": rows,
        "proof": xml_text(bound_words(plan)),
        "expected": "".join(f"<li>{xml_text(line)}</li>" for line in expected_lines(plan)),
    }
    return filled("generation.html", parts)


def generation_svg(plan: GenerationPlan) -> str:
    """Return the picture of a plan, as the text of an SVG file; the same text for the same plan."""
    drawn: list[str] = []
    top = MARGIN
    for heading, draw in (
        ("layers", _ribbon),
        ("memory of each device", _memory),
        ("seconds of a prompt of one sequence, and of a token of every sequence", _phases),
    ):
        drawn.append(_label(MARGIN, top + LINE - 5, heading, bold=True))
        lines, top = draw(plan, top + LINE + GAP // 2)
        drawn += lines
        top += 2 * GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{top}" fill="#fff"/>',
            *drawn,
            "</svg>\n",
        ]
    )


def _ribbon(plan: GenerationPlan, top: int) -> tuple[list[str], int]:
    """Draw the layers in order, a colour for each stage; a line below those whose experts are on the host."""
    lines = []
    layers = len(plan.question.model.layers)
    wide = (WIDTH - 2 * MARGIN) / layers
    for number, stage in enumerate(plan.stages):
        colour, x = COLOURS[number % len(COLOURS)], MARGIN + stage.start * wide
        width = (stage.stop - stage.start) * wide
        title = f"{', '.join(stage.devices)}: layers {layers_of_stage(stage)}"
        lines.append(_box(x, top, width, BAR, colour, title))
        for layer in range(stage.start + 1, stage.stop):
            lines.append(f'<path d="M{MARGIN + layer * wide:.2f} {top}v{BAR}" stroke="#fff" stroke-width="0.5"/>')
        shown = title if 7 * len(title) < width else stage.devices[0] if 7 * len(stage.devices[0]) < width else ""
        lines.append(_label(x + 4, top + BAR - 9, shown, ink=ink_on(colour)))
        for layer in stage.away:
            lines.append(_box(MARGIN + layer * wide, top + BAR + 2, wide, 5, "#59a14f", f"experts on {stage.host}"))
    return lines, top + BAR + 8


def _memory(plan: GenerationPlan, top: int) -> tuple[list[str], int]:
    """Draw a bar for each device, as long as its memory, with a band for each part."""
    lines = []
    most = max((holding.memory for holding in plan.holdings), default=1.0)
    scale = (WIDTH - 2 * MARGIN - LABEL) / most
    for holding in plan.holdings:
        x = float(MARGIN + LABEL)
        lines.append(_label(MARGIN, top + BAR - 9, f"{holding.device}  {format_bytes(holding.memory)}"))
        for (name, colour), n_bytes in zip(BANDS, _bands(holding), strict=True):
            if n_bytes > 0:
                lines.append(_box(x, top, n_bytes * scale, BAR - 6, colour, f"{name} {format_bytes(n_bytes)}"))
                x += n_bytes * scale
        top += BAR
    return [*lines, *_legend(BANDS, top + 4)], top + LINE + 4


def _bands(own: Holding) -> tuple[float, ...]:
    ends, margin = own.embedding + own.head, own.memory - own.usable
    return (own.weights, own.experts, ends, own.cache, own.buffers, max(0.0, own.spare), margin)


def _phases(plan: GenerationPlan, top: int) -> tuple[list[str], int]:
    """Draw the seconds of each stage in prefill and in decode, side by side."""
    lines = []
    half = (WIDTH - 2 * MARGIN - LABEL - 2 * GAP) / 2
    for number, stage in enumerate(plan.stages):
        colour = COLOURS[number % len(COLOURS)]
        lines.append(_label(MARGIN, top + BAR - 9, _short(", ".join(stage.devices))))
        for side, (phase, seconds, most) in enumerate(_pairs(plan.stages, stage)):
            x = MARGIN + LABEL + side * (half + 2 * GAP)
            width = 0.6 * half * seconds / most if most > 0 else 0.0
            lines.append(_box(x, top, width, BAR - 6, colour, f"{phase} {format_seconds(seconds)}"))
            lines.append(_label(x + width + 4, top + BAR - 11, f"{phase} {format_seconds(seconds)}"))
        top += BAR
    return lines, top


def _pairs(stages: Sequence[PlanStage], own: PlanStage) -> Iterator[tuple[str, float, float]]:
    yield "prompt", own.prompt_s, max(stage.prompt_s for stage in stages)
    yield "token", own.token_s, max(stage.token_s for stage in stages)


def _legend(bands: Sequence[tuple[str, str]], top: int) -> Iterator[str]:
    x = MARGIN + LABEL
    for name, colour in bands:
        yield _box(x, top, 10, 10, colour, name)
        yield _label(x + 14, top + 9, name)
        x += 24 + 7 * len(name)


def _box(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.5):.2f}" height="{height}" fill="{colour}" stroke="#888" '
        f'stroke-width="0.5"><title>{xml_text(title)}</title></rect>'
    )


def _label(x: float, y: float, text: str, ink: str = "#000", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.2f}" y="{y:.2f}" fill="{ink}"{weight}>{xml_text(text)}</text>'


def _short(text: str, most: int = 20) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
