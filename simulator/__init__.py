"""What happens: a placement and a schedule become a timeline."""

from typing import Any

from graphs.notebook import VIEWS


def _timeline_html(timeline: Any) -> str:
    from simulator.chart import html_chart  # late: only notebooks need it

    return html_chart(timeline)


VIEWS["Timeline"] = _timeline_html
