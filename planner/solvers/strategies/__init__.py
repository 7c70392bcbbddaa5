"""One strategy a node at the least cost: reductions, bounds, descent and an integer program; `solve` joins them."""
