"""Simulates a placement or a schedule, with a timeline as the result."""
