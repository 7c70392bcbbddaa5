"""One strategy a node at the least cost: dominance, elimination, relaxation, an integer program; `solve` joins them."""
