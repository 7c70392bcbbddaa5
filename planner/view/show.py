"""show: a plan as a picture, in one of several formats."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from graphs.common import checks
from graphs.common.brief import brief
from graphs.common.errors import InputError
from graphs.files import write_bytes
from planner.generation.plan import GenerationPlan
from planner.plans.given import Named, given_plan
from planner.plans.plan import Plan
from planner.plans.runs import MeasuredRun, load_run
from planner.view.dot import dot_text
from planner.view.generation import generation_page, generation_svg
from planner.view.page import render
from planner.view.picture import painted, png_picture, svg_picture

Format: TypeAlias = Literal["html", "svg", "png", "dot"]
FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: dict[str, Format] = {f".{name}": name for name in FORMATS} | {".htm": "html", ".gv": "dot"}


@dataclass(frozen=True)
class Place:
    """Where a picture goes, and in which format."""

    path: Path
    format: Format

    @classmethod
    def of(cls, output: Path | None, format: Format | None) -> "Place":
        """Return the place that is asked for: each of the two follows from the other, by default plan.html.

        Raises:
            InputError: if the name of the output ends like no format.
        """
        if output is None:
            return cls(Path(f"plan.{format or 'html'}"), format or "html")
        if format is None and output.suffix not in SUFFIXES:
            raise InputError(f"'{output}' does not tell the format; add --format {', '.join(FORMATS)}")
        return cls(output, format or SUFFIXES[output.suffix])


@dataclass(frozen=True)
class Picture:
    """A plan as it was drawn."""

    path: Path  # of the file
    format: Format
    content: bytes  # of the file

    __repr__ = brief


def show(
    plan: Plan | GenerationPlan | Named,
    output: str | PathLike[str] | None = None,
    *,
    format: Format | None = None,
    measured: MeasuredRun | str | PathLike[str] | None = None,
) -> Picture:
    """Write a plan as a picture: a page that needs nothing else, SVG, PNG, or Graphviz.

    Args:
        plan: a plan, or the path of a plan.json; a plan of `planner.fit` as it was made, since its file has no picture.
        output: the file to write; None for plan.html, plan.svg, ... in this folder.
        format: "html", "svg", "png" or "dot"; None for what the name of the output ends with, or a page.
        measured: a run of the plan, or the path of its run.json, which the page shows next to the prediction.

    Returns:
        The file and what is in it.

    Raises:
        InputError: for an unknown format, a measured run in another format than a page, or a file that cannot be read
            or written.
    """
    path = None if output is None else checks.path(output, "the output", "the path of a file")
    if format is not None:
        checks.one_of(format, "the format", FORMATS)
    place = Place.of(path, format)
    if isinstance(plan, GenerationPlan):
        if measured is not None:
            raise InputError("a plan of `planner fit` runs in other programs, so it has no measured run; leave it out")
        content = _drawn_layers(plan, place.format)
    else:
        plan = given_plan(plan)
        if measured is not None and not isinstance(measured, MeasuredRun):
            file = checks.path(measured, "the measured run", "a MeasuredRun or the path of a run.json")
            measured = load_run(file, plan)
        content = drawn(plan, place.format, measured)
    picture = Picture(place.path, place.format, content)
    write_bytes(picture.content, picture.path)
    return picture


def drawn(plan: Plan, format: Format, measured: MeasuredRun | None = None) -> bytes:
    """Return the content of the file.

    Raises:
        InputError: for a measured run in another format than a page.
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


def _drawn_layers(plan: GenerationPlan, format: Format) -> bytes:
    """Return the content of the file of a plan of `planner.fit`."""
    if plan.speeds is None:
        raise InputError(f"there is no division to draw: {plan.advice}")
    match format:
        case "html":
            return generation_page(plan).encode()
        case "svg":
            return generation_svg(plan).encode()
        case "png":
            return painted(generation_svg(plan))
        case "dot":
            raise InputError("a plan of `planner fit` has layers and no graph for dot; take html, svg or png")
