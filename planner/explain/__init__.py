"""Why a plan is as it is: what `planner.explain.explain` and `planner.explain.diff` are made of."""
