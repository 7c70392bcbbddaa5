"""Networks and scripts that show the planner at work."""
