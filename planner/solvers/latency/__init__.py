"""Searches for the makespan of one micro-batch."""
