"""A row of `planner choose` for other tools."""
