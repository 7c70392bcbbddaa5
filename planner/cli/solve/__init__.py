"""`planner solve`: a file for each kind of problem of the literature."""
