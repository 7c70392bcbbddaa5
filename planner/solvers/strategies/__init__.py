"""One strategy a node at the least cost: dominance, elimination of nodes, an integer program; `solve` joins them."""
