"""Why a plan is as it is: what `planner.explain` and `planner.diff` are made of."""
