"""Contiguous placements: cuts of a line of operators."""
