"""The view: a plan as one web page that opens without a network or a server."""

from planner.view.page import render

__all__ = ["render"]
