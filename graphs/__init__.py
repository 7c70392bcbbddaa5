"""Computation graphs: operators and tensors, importers, and file formats."""
