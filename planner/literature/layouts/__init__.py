"""Layouts of dimensions over a mesh."""
