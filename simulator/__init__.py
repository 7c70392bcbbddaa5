"""Simulates a placement or a schedule, with a timeline as the result."""

from typing import Any

from graphs.common.notebook import VIEWS


def _timeline_html(timeline: Any) -> str:
    from simulator.chart import html_chart  # late: only notebooks need it

    return html_chart(timeline)


VIEWS["Timeline"] = _timeline_html
