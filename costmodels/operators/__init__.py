"""Costs of kinds of operators by formula: FLOP, bytes, views; their keys; the machine's pace."""
