"""Solvers: one frozen value each."""
