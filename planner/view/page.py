"""render: a plan as one self-contained HTML page."""

import re
from collections.abc import Mapping
from importlib.resources import files

from graphs.common.visible import xml_text
from planner.plans.plan import Plan
from planner.plans.prediction import predict
from planner.plans.runs import MeasuredRun
from planner.view.packing import packed_text
from planner.view.payload import payload

MICRO_BATCHES = 8  # that are predicted for each copy of the network
PICTURE_SCRIPTS = ("format.js", "network.js", "layers.js", "rows.js", "layout.js", "picture.js")
"""The scripts that lay out and draw a network. They need no browser, so Python runs them too."""

PAGE_SCRIPTS = ("unpack.js", "tips.js", "scene.js", "control.js", "devices.js", "timeline.js", "memory.js", "facts.js")
SCRIPTS = (*PICTURE_SCRIPTS, *PAGE_SCRIPTS, "main.js")
"""The scripts of the page. They share one scope; the last one starts the page."""


def render(plan: Plan, measured: MeasuredRun | None = None, micro_batches: int | None = None) -> str:
    """Return the page for a plan: its graph, its timelines and its figures. The same bytes for the same arguments.

    Args:
        plan: to show.
        measured: a run of the plan, drawn below the prediction of as many micro-batches, on the same axis.
        micro_batches: that are predicted if there is no run (`MICRO_BATCHES`); a training step has its own number.

    Raises:
        InputError: if the run is not one of this plan.
    """
    count = measured.timeline.micro_batches if measured else micro_batches
    predicted = predict(plan, count or MICRO_BATCHES * len(plan.placement.copies))
    title = xml_text(f"{plan.graph.name}: placement")
    parts = {
        "head": head(title, template("page.css"), "script-src 'unsafe-inline'; "),
        "payload": packed_text(payload(plan, predicted, measured)),
        "script": '"use strict";\n(() => {\n' + "\n".join(map(template, SCRIPTS)) + "})();",
    }
    return filled("page.html", parts)


def head(title: str, style: str, scripts: str = "") -> str:
    """Return the head of a page that needs no network; ``scripts`` is what its policy allows besides styles."""
    return filled("head.html", {"title": title, "style": style, "scripts": scripts})


def filled(name: str, parts: Mapping[str, str]) -> str:
    """Return a file of the page with its parts in their places."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template(name))


def template(name: str) -> str:
    """Return a file of the page."""
    return files("planner.view").joinpath(name).read_text(encoding="utf-8")
