"""Why a plan is as it is: what `planner.why.explain` and `planner.why.diff` are made of."""
