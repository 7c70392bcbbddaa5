"""Checks of a plan's stages: the reference run, what crosses between stages, the first operator that differs."""
