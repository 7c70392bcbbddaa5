"""render: a plan as one self-contained HTML page."""

import html
import json
import re
from importlib.resources import files
from typing import Any

from planner.plans import Plan
from planner.view.payload import payload
from simulator.timeline import Timeline

SCRIPTS = (
    "format.js",
    "network.js",
    "layers.js",
    "rows.js",
    "layout.js",
    "tips.js",
    "scene.js",
    "control.js",
    "timeline.js",
    "facts.js",
    "main.js",
)
"""They share one scope; the last one starts the page."""


def render(plan: Plan, predicted: Timeline, measured: Timeline | None = None) -> str:
    """The page for a plan: what runs where, what happens when, and why. The same bytes for the same arguments.

    Args:
        plan: the answer.
        predicted: what will happen when micro-batches stream through it, from `Plan.simulate`.
        measured: what happened when they did; drawn below the prediction on the same axis.
    """
    parts = {
        "title": html.escape(f"{plan.graph.name}: placement"),
        "style": _template("page.css"),
        "payload": embed(payload(plan, predicted, measured)),
        "script": '"use strict";\n(() => {\n' + "\n".join(map(_template, SCRIPTS)) + "})();",
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _template("page.html"))


def embed(document: Any) -> str:
    """JSON that is safe inside a script element: no character of markup, nothing but ASCII."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _template(name: str) -> str:
    return files("planner.view").joinpath(name).read_text(encoding="utf-8")
