"""What `planner.runtime.verify` works with: the unsplit run, what crosses between stages, the operator to blame."""
