"""Whether a plan's stages are right: the unsplit run, what crosses between stages, the operator to blame."""
