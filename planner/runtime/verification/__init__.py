"""Whether a plan's stages are right: the reference run, what crosses between stages, the operator to blame."""
