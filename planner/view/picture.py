"""picture: the graph of a plan as one SVG or PNG file, for documents; laid out by the page's own program."""

import json
from functools import cache
from typing import Any

from graphs.errors import InputError
from planner.plans import Plan
from planner.view.page import PICTURE_SCRIPTS, template
from planner.view.payload import graph_payload

ASPECT = 2.4  # width to height that a drawing is laid out for; one that needs less is smaller
PNG_ZOOM = 2.0  # pixels of each SVG pixel: sharp on paper

LETTER = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"><text y="15">{}</text></svg>'

STACK_BYTES = 16 * 2**20  # for modules in modules
DRAW = """
function draw(text, aspect) {
  const network = new Network(JSON.parse(text));
  network.openReadable();
  return JSON.stringify(drawPicture(network, layoutNetwork(network, aspect)));
}
"""


def svg_picture(plan: Plan, aspect: float = ASPECT) -> str:
    """What the page shows when it opens, as the text of an SVG file: the same text for the same plan.

    Modules are closed where a network is large, as far as it takes to see it at a glance.

    Args:
        plan: the answer.
        aspect: width to height that is aimed at.
    """
    drawing: str = json.loads(_drawing()(json.dumps(graph_payload(plan), allow_nan=False), aspect))
    return drawing


def png_picture(plan: Plan, aspect: float = ASPECT) -> bytes:
    """The same as a PNG file.

    Raises:
        InputError: if the library that paints it is not installed, or there is no font on this machine.
    """
    try:
        import resvg_py
    except ImportError as error:
        raise InputError(
            "PNG needs the package resvg-py; pip install 'placement-planner[png]', or take --format svg"
        ) from error
    if resvg_py.svg_to_bytes(LETTER.format("A")) == resvg_py.svg_to_bytes(LETTER.format("")):  # it would say nothing
        raise InputError("there is no font on this machine to write names with; install one, or take --format svg")
    return bytes(resvg_py.svg_to_bytes(svg_picture(plan, aspect), zoom=PNG_ZOOM))


@cache
def _drawing() -> Any:
    """The page's layout in a small JavaScript engine, as a function of the payload's JSON and the aspect."""
    import quickjs  # late: only pictures need it

    context = quickjs.Context()
    context.set_max_stack_size(STACK_BYTES)
    context.eval('"use strict";\n' + "\n".join(map(template, PICTURE_SCRIPTS)) + DRAW)
    return context.get("draw")
