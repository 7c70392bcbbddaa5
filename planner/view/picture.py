"""picture: the graph of a plan as one SVG or PNG file, for documents; the scripts of the page lay it out."""

import json
from functools import cache
from typing import Any

from graphs.common.errors import InputError
from graphs.common.visible import visible_json
from planner.plans.plan import Plan
from planner.view.page import PICTURE_SCRIPTS, template
from planner.view.payload import graph_payload

ASPECT = 2.4  # width divided by height that the layout aims at
PNG_ZOOM = 2.0  # pixels for each SVG pixel, for sharp prints

FAMILIES = (
    *("Helvetica", "Arial", "Liberation Sans", "DejaVu Sans", "Noto Sans", "Nimbus Sans", "FreeSans", "Open Sans"),
    *(
        "Roboto",
        "Ubuntu",
        "Cantarell",
        "Carlito",
        "Lato",
        "Inter",
        "Noto Sans CJK JP",
        "Droid Sans Fallback",
        "Verdana",
    ),
)
"""Fonts without serifs, of which nearly every machine has one. The library paints only with a font that is named."""

LETTER = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><text font-family="sans-serif" y="9">{}</text></svg>'
)

STACK_BYTES = 16 * 2**20  # for deeply nested modules
DRAW = """
function draw(text, aspect) {
  const network = new Network(JSON.parse(text));
  network.openReadable();
  return JSON.stringify(drawPicture(network, layoutNetwork(network, aspect)));
}
"""


def svg_picture(plan: Plan, aspect: float = ASPECT) -> str:
    """Return the graph as the page first shows it, as the text of an SVG file; the same text for the same plan.

    In a large network, modules are closed until the drawing is easy to read.

    Args:
        plan: to draw.
        aspect: width divided by height that the layout aims at.
    """
    drawing: str = json.loads(_drawing()(visible_json(graph_payload(plan)), aspect))
    return drawing


def png_picture(plan: Plan, aspect: float = ASPECT) -> bytes:
    """Return the drawing of `svg_picture` as the bytes of a PNG file; errors as for `painted`."""
    return painted(svg_picture(plan, aspect))


def painted(svg: str) -> bytes:
    """Return an SVG file's text as the bytes of a PNG file.

    Raises:
        InputError: if the library that paints it is not installed, or this machine has none of `FAMILIES`.
    """
    try:
        import resvg_py
    except ImportError as error:
        raise InputError(
            "PNG needs the package resvg-py; pip install 'placement-planner[png]', or take --format svg"
        ) from error
    family = next((name for name in FAMILIES if _paints(resvg_py, name)), None)
    if family is None:
        raise InputError(
            f"there is none of the fonts {', '.join(FAMILIES[:5])}, ... on this machine to write names with; install "
            "one (Debian: apt install fonts-dejavu-core), or take --format svg"
        )
    return bytes(resvg_py.svg_to_bytes(svg, zoom=PNG_ZOOM, sans_serif_family=family))


def _paints(resvg_py: Any, family: str) -> bool:
    """Return whether the machine has a font; without it, the library silently paints no letters."""
    painted, empty = (resvg_py.svg_to_bytes(LETTER.format(text), sans_serif_family=family) for text in ("A", ""))
    return bool(painted != empty)


@cache
def _drawing() -> Any:
    """Return the page's layout in a small JavaScript engine, as a function of the payload's JSON and the aspect."""
    import quickjs  # late: only pictures need it

    context = quickjs.Context()
    context.set_max_stack_size(STACK_BYTES)
    context.eval('"use strict";\n' + "\n".join(map(template, PICTURE_SCRIPTS)) + DRAW)
    return context.get("draw")
