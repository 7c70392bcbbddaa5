"""The mathematics in one place: a problem, its evaluation, its lower bounds and its result."""
