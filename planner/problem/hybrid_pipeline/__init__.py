"""Pipelines whose stages are data- and tensor-parallel: the problem's format, and what a plan costs."""
