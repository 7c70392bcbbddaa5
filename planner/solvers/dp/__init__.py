"""Dynamic programming: over a chain of operators and over downsets of the graph."""
