"""Pictures of a plan in every format."""

from typing import Literal, TypeAlias

from graphs.errors import InputError
from planner.plans.plan import Plan
from planner.plans.runs import MeasuredRun
from planner.view.dot import dot_text
from planner.view.page import render
from planner.view.picture import png_picture, svg_picture

Format: TypeAlias = Literal["html", "svg", "png", "dot"]
"""A page, a drawing, the drawing in pixels, and Graphviz."""


def picture(plan: Plan, format: Format, measured: MeasuredRun | None = None) -> bytes:
    """The bytes of a file; the same for the same arguments.

    Raises:
        InputError: for a measured run in another format than html, or a format whose library is not installed.
    """
    if measured is not None and format != "html":
        raise InputError(f"a measured run is drawn on the page only, not as {format}; take html, or leave the run out")
    match format:
        case "html":
            return render(plan, measured).encode()
        case "svg":
            return svg_picture(plan).encode()
        case "png":
            return png_picture(plan)
        case "dot":
            return dot_text(plan).encode()
