"""Why a plan is as it is: what `planner.explanations.explain` and `planner.explanations.diff` are made of."""
